"""Where a kernel's shared, local and constant arrays come from: with checks, or plain and fast."""

from types import FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.lab.arrays import checked, unchecked
from kernels.lab.memory import Memory, Segment, Space
from kernels.lab.numbers import poisoned
from kernels.lab.source import assigned_name


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
    """Arrays without checks. ``dynamic_bytes`` is the launch's dynamic shared memory."""

    def __init__(self, dynamic_bytes: int) -> None:
        self._dynamic_bytes = dynamic_bytes
        self._shared: dict[Any, Any] = {}
        self._dynamic = np.empty(0, np.uint8)

    def new_block(self) -> None:
        """From here on shared arrays are another block's."""
        self._shared.clear()
        self._dynamic = poisoned(self._dynamic_bytes, np.uint8)

    def shared(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """One array for all threads of the block that come to this call, unwritten at first."""
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._shared:
            values = _whole(self._dynamic, dtype) if shape == 0 else poisoned(shape, dtype)
            self._shared[key] = unchecked(values)
        return self._shared[key]

    def local(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """An array of the thread's own, unwritten at first."""
        return unchecked(poisoned(shape, dtype))

    def constant(self, values: NDArray[Any]) -> Any:
        """An array that nobody writes."""
        return unchecked(values)


class CheckedArrays:
    """Arrays whose accesses are checked and logged. Shared ones keep their addresses from block to block."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        self._memory, self._dynamic_bytes = memory, dynamic_bytes
        self._shared: dict[Any, Any] = {}
        self._segments: list[Segment] = []

    def new_block(self) -> None:
        """From here on shared arrays are another block's: nobody has written them."""
        for segment in self._segments:
            segment.values.view(np.uint8).fill(255)

    def shared(self, shape: Any, dtype: Any, frame: FrameType) -> Any:
        """One array for all threads of the block that come to this call, unwritten at first."""
        kind = np.dtype(dtype)
        key: Any = kind if shape == 0 else (id(frame.f_code), frame.f_lasti)
        if key not in self._shared:
            size = self._dynamic_bytes // kind.itemsize if shape == 0 else shape
            name = "dynamic shared memory" if shape == 0 else assigned_name(frame.f_code, frame.f_lasti, "shared")
            segment = self._memory.allocate(name, size, kind, Space.SHARED)
            self._segments.append(segment)
            self._shared[key] = checked(self._memory, segment)
        return self._shared[key]

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
