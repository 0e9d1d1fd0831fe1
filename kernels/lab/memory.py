"""The lab's memory: arrays that know who reads and writes them, and stores that others see only after a barrier.

Each access leaves one row in a log, which is analysed when the launch is over: an access itself has to stay cheap.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from sys import _getframe
from typing import Any

import numpy as np
from numpy.typing import NDArray

READ, WRITE, ATOMIC = 0, 1, 2
SHARED = 1 << 44
"""Addresses from here on are shared memory; below it is global memory. In bytes, from 0."""
ALIGNMENT = 256
"""Bytes; the CUDA runtime aligns each allocation so."""
COLUMNS = ("code", "instruction", "thread", "address", "kind", "warp_sync")


class OutOfBounds(IndexError):
    """An index that the array does not have. On a GPU this reads or overwrites somebody else's memory, silently."""


@dataclass(slots=True)
class Place:
    """Which thread runs at this moment: its number in the block, the block's in the grid, its warp's syncs so far."""

    block: int = 0
    thread: int = 0
    warp_sync: int = 0


@dataclass(slots=True)
class Segment:
    """One array's stretch of addresses. ``written`` has a byte per element, or is None where all count as written."""

    name: str
    first: int
    flat: NDArray[Any]
    written: bytearray | None

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.first + self.flat.nbytes


@dataclass
class Memory:
    """All arrays of a launch, and the log of accesses. With ``late_stores`` a thread's stores wait for ``commit``."""

    late_stores: bool
    place: Place = field(default_factory=Place)
    segments: list[Segment] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    unwritten: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Reads of what nobody wrote: code, instruction, thread, address, block."""
    _stores: dict[int, dict[int, tuple[Segment, int, Any]]] = field(default_factory=dict)
    _next: dict[bool, int] = field(default_factory=lambda: {False: 0, True: SHARED})

    def array(self, name: str, values: NDArray[Any], shared: bool = False) -> "CheckedArray":
        """An array whose accesses are logged. Shared arrays start as unwritten."""
        contiguous = values.flags.c_contiguous
        flat = values.reshape(-1) if contiguous else _storage(values)
        first = self._next[shared]
        self._next[shared] = first + -(-flat.nbytes // ALIGNMENT) * ALIGNMENT
        segment = Segment(name, first, flat, bytearray(len(flat)) if shared else None)
        self.segments.append(segment)
        strides = tuple(stride // values.itemsize for stride in values.strides)
        return CheckedArray(self, segment, 0, values.shape, strides)

    def forget_shared(self) -> None:
        """A block has ended: the next one's shared arrays take the same addresses."""
        self._next[True] = SHARED
        self.segments = [segment for segment in self.segments if segment.first < SHARED]

    def commit(self, threads: Iterable[int]) -> None:
        """Let all see what these threads stored, in this order."""
        for thread in threads:
            for segment, element, value in self._stores.pop(thread, {}).values():
                segment.flat[element] = value
                if segment.written:
                    segment.written[element] = 1

    def read(self, segment: Segment, element: int, code: int, instruction: int) -> Any:
        """What the running thread finds there."""
        place, address = self.place, segment.first + element * segment.flat.itemsize
        self.log += (code, instruction, place.thread, address, READ, place.warp_sync)
        if self.late_stores:
            own = self._stores.get(place.thread)
            if own is not None and address in own:
                return segment.flat.dtype.type(own[address][2])
        if segment.written and not segment.written[element]:
            self.unwritten.append((code, instruction, place.thread, address, place.block))
        return segment.flat[element]

    def write(self, segment: Segment, element: int, value: Any, code: int, instruction: int) -> None:
        """Store for the running thread."""
        place, address = self.place, segment.first + element * segment.flat.itemsize
        self.log += (code, instruction, place.thread, address, WRITE, place.warp_sync)
        value = stored(segment.flat.dtype, value)
        if self.late_stores:
            self._stores.setdefault(place.thread, {})[address] = (segment, element, value)
            return
        segment.flat[element] = value
        if segment.written:
            segment.written[element] = 1

    def exchange(self, segment: Segment, element: int, change: Any, code: int, instruction: int) -> Any:
        """Replace the value there by ``change(value)``, seen by all at once; returns the old value."""
        place, address = self.place, segment.first + element * segment.flat.itemsize
        self.log += (code, instruction, place.thread, address, ATOMIC, place.warp_sync)
        own = self._stores.get(place.thread, {}).pop(address, None)
        if own is not None:
            segment.flat[element] = own[2]
        old = segment.flat[element]
        segment.flat[element] = stored(segment.flat.dtype, change(old))
        if segment.written:
            segment.written[element] = 1
        return old

    def take_log(self) -> NDArray[np.int64]:
        """The rows ``[accesses, 6]`` since the last call, in ``COLUMNS``."""
        rows = np.array(self.log, dtype=np.int64).reshape(-1, len(COLUMNS))
        self.log.clear()
        return rows


def stored(dtype: np.dtype[Any], value: Any) -> Any:
    """A value as an array of this type keeps it: integers wrap, as they do on a GPU."""
    if dtype.kind in "iu":
        return np.array(int(value) & ((1 << 8 * dtype.itemsize) - 1)).astype(dtype)
    return value


def _storage(values: NDArray[Any]) -> NDArray[Any]:
    """The elements that a view with gaps spans, in the order of their addresses."""
    span = 1 + sum(
        (size - 1) * stride // values.itemsize for size, stride in zip(values.shape, values.strides, strict=True)
    )
    if any(stride < 0 for stride in values.strides):
        raise ValueError("the lab takes no arrays with negative strides; copy the array first")
    return np.lib.stride_tricks.as_strided(values, (span,), (values.itemsize,))


class CheckedArray:
    """An array, or a view of one, as a kernel in the lab sees it. Indices are checked, accesses logged."""

    __slots__ = ("_dtype", "_integer", "_memory", "_offset", "_segment", "_strides", "ndim", "shape")

    def __init__(
        self, memory: Memory, segment: Segment, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self._memory, self._segment, self._offset, self._strides = memory, segment, offset, strides
        self.shape, self.ndim = shape, len(shape)
        self._integer = segment.flat.dtype.kind in "iub"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' type."""
        return self._segment.flat.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return tuple(stride * self.dtype.itemsize for stride in self._strides)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        place = self._locate(index)
        if type(place) is not int:
            return place
        frame = _getframe(1)
        value = self._memory.read(self._segment, place, id(frame.f_code), frame.f_lasti)
        return int(value) if self._integer else value

    def __setitem__(self, index: Any, value: Any) -> None:
        place = self._locate(index)
        frame = _getframe(1)
        if isinstance(place, CheckedArray):
            self._fill(place, value, id(frame.f_code), frame.f_lasti)
        else:
            self._memory.write(self._segment, place, value, id(frame.f_code), frame.f_lasti)

    def exchange(self, index: Any, change: Any, code: int, instruction: int) -> Any:
        """An atomic update of one element; returns the old value."""
        place = self._locate(index)
        if type(place) is not int:
            raise OutOfBounds(f"{self._segment.name} has {self.ndim} dimensions: an atomic needs an index for each")
        old = self._memory.exchange(self._segment, place, change, code, instruction)
        return int(old) if self._integer else old

    def _fill(self, view: "CheckedArray", value: Any, code: int, instruction: int) -> None:
        """``a[i] = value`` for a row, element by element, as the compiler's loop does it."""
        for position in np.ndindex(*view.shape):
            element = view._offset + sum(i * s for i, s in zip(position, view._strides, strict=True))
            one = value[position] if hasattr(value, "shape") and value.shape else value
            self._memory.write(self._segment, element, one, code, instruction)

    def _locate(self, index: Any) -> "int | CheckedArray":
        """The element's number in the storage, or for fewer indices than dimensions the view that is left."""
        if type(index) is int and self.ndim == 1:  # the commonest case, and the quickest
            if 0 <= index < self.shape[0]:
                return self._offset + index * self._strides[0]
            raise self._out_of_bounds((index,))
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim:
            raise OutOfBounds(f"{self._segment.name} has {self.ndim} dimensions and is given {len(indices)} indices")
        offset = self._offset
        for each, size, stride in zip(indices, self.shape, self._strides, strict=False):
            if type(each) is slice:
                return self._sliced(indices)
            if not 0 <= each < size:
                raise self._out_of_bounds(indices)
            offset += int(each) * stride
        left = len(indices)
        if left == self.ndim:
            return offset
        return CheckedArray(self._memory, self._segment, offset, self.shape[left:], self._strides[left:])

    def _sliced(self, indices: Sequence[Any]) -> "CheckedArray":
        offset, shape, strides = self._offset, [], []
        full = [*indices, *[slice(None)] * (self.ndim - len(indices))]
        for each, size, stride in zip(full, self.shape, self._strides, strict=True):
            if type(each) is slice:
                start, stop, step = each.indices(size)
                offset += start * stride
                shape.append(len(range(start, stop, step)))
                strides.append(step * stride)
            elif 0 <= int(each) < size:
                offset += int(each) * stride
            else:
                raise self._out_of_bounds(indices)
        return CheckedArray(self._memory, self._segment, offset, tuple(shape), tuple(strides))

    def _out_of_bounds(self, indices: Sequence[Any]) -> OutOfBounds:
        shown = ", ".join(map(str, indices))
        negative = any(type(each) is not slice and int(each) < 0 for each in indices)
        rule = "a negative index counts from the end, which no kernel means" if negative else "it has no such element"
        return OutOfBounds(f"{self._segment.name}[{shown}] of shape {self.shape}: {rule}")
