"""Where a kernel's shared, local and constant arrays come from: with checks, or plain and fast."""

from types import FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.lab.arrays import checked, unchecked
from kernels.lab.limits import require_shared
from kernels.lab.memory import Memory, Segment, Space
from kernels.lab.numbers import poisoned, size_in_bytes
from kernels.lab.source import assigned_name

DYNAMIC = "dynamic shared memory"
"""The name of its cells."""


class Arrays(Protocol):
    """Where a kernel's shared, local and constant arrays come from."""

    def shared(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """One array for all threads of the block that come to this call."""

    def local(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """An array of the thread's own."""

    def constant(self, values: NDArray[Any]) -> Any:
        """An array that nobody writes."""

    def new_block(self) -> None:
        """From here on shared arrays are another block's."""


class FastArrays:
    """Arrays without checks. ``dynamic_bytes`` is the launch's dynamic shared memory.

    Both raise LabError for more shared memory than a block gets.
    """

    def __init__(self, dynamic_bytes: int) -> None:
        require_shared(0, dynamic_bytes)
        self._dynamic_bytes = dynamic_bytes
        self._static_bytes = 0
        self._shared: dict[Any, Any] = {}
        self._dynamic = np.empty(0, np.uint8)

    def new_block(self) -> None:
        """From here on shared arrays are another block's."""
        self._shared.clear()
        self._static_bytes = 0
        self._dynamic = poisoned(self._dynamic_bytes, np.uint8)

    def shared(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """One array for all threads of the block that come to this call, unwritten at first."""
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._shared:
            self._shared[key] = unchecked(_whole(self._dynamic, dtype) if shape == 0 else self._static(shape, dtype))
        return self._shared[key]

    def _static(self, shape: Any, dtype: Any) -> NDArray[Any]:
        self._static_bytes += size_in_bytes(shape, dtype)
        require_shared(self._static_bytes, self._dynamic_bytes)
        return poisoned(shape, dtype)

    def local(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """An array of the thread's own, unwritten at first."""
        return unchecked(poisoned(shape, dtype))

    def constant(self, values: NDArray[Any]) -> Any:
        """An array that nobody writes."""
        return unchecked(values)


class CheckedArrays:
    """Arrays whose accesses are checked and logged. Shared ones keep their addresses from block to block."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        require_shared(0, dynamic_bytes)
        self._memory, self._dynamic_bytes, self._static_bytes = memory, dynamic_bytes, 0
        self._shared: dict[Any, Any] = {}
        self._segments: list[Segment] = []
        self._bytes = poisoned(dynamic_bytes, np.uint8)
        self._overlaid: list[Segment] = []
        """Dynamic shared memory, once in each type in which the kernel has it."""

    def new_block(self) -> None:
        """From here on shared arrays are another block's: nobody has written them."""
        for segment in self._segments:
            segment.values.view(np.uint8).fill(255)

    def shared(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """One array for all threads of the block that come to this call, unwritten at first."""
        kind = np.dtype(dtype)
        key: Any = kind if shape == 0 else (id(frame.f_code), frame.f_lasti)
        if key not in self._shared:
            segment = self._dynamic(kind) if shape == 0 else self._static(shape, kind, frame)
            self._segments.append(segment)
            self._shared[key] = checked(self._memory, segment)
        return self._shared[key]

    def _static(self, shape: Any, kind: np.dtype[Any], frame: FrameType) -> Segment:
        self._static_bytes += size_in_bytes(shape, kind)
        require_shared(self._static_bytes, self._dynamic_bytes)
        return self._memory.allocate(assigned_name(frame.f_code, frame.f_lasti, "shared"), shape, kind, Space.SHARED)

    def _dynamic(self, kind: np.dtype[Any]) -> Segment:
        segment = self._memory.overlay(DYNAMIC, _whole(self._bytes, kind), self._overlaid)
        self._overlaid.append(segment)
        return segment

    def local(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """An array of the thread's own, unwritten at first."""
        name = assigned_name(frame.f_code, frame.f_lasti, "local")
        return checked(self._memory, self._memory.allocate(name, shape, np.dtype(dtype), Space.LOCAL))

    def constant(self, values: NDArray[Any]) -> Any:
        """An array that nobody writes."""
        return checked(self._memory, self._memory.constant("constant", values))


def _whole(memory: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """Bytes as elements of a type, as many as there are whole ones."""
    size = np.dtype(dtype).itemsize
    return np.asarray(memory[: len(memory) // size * size].view(dtype))
