"""The lab's memory: arrays with addresses, a log of accesses, and stores that others see only after a barrier.

An access itself has to stay cheap: it leaves two numbers in the log, which is read when the launch is over.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_byte
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from kernels.lab.numbers import Convert, conversion, poisoned
from kernels.lab.source import LabError

READ, WRITE, ATOMIC = 0, 1, 2
KIND_SHIFT = 48
"""An entry of the log is a cell's number with the kind of access above these bits."""
ALIGNMENT = 256
"""Bytes; the CUDA runtime aligns each allocation at least so (CUDA C++ Programming Guide, device memory accesses)."""


class Space(IntEnum):
    """Which memory an array lies in. LOCAL is a thread's own; CONSTANT is read by all and written by none."""

    GLOBAL = 0
    SHARED = 1
    LOCAL = 2
    CONSTANT = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """One array's stretch of memory: ``values`` ``[cells]`` in the order of their addresses.

    Cells are numbered through all segments from ``first_cell`` on; addresses, in bytes, within each space from
    ``first_address`` on. ``arrays`` are the kernel's arguments that lie here: name, first cell from the segment's
    start, shape, and strides in cells.
    """

    space: Space
    first_cell: int
    first_address: int
    values: NDArray[Any]
    arrays: tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...]
    convert: Convert

    def name(self, cell: int) -> str:
        """The array that holds a cell."""
        return self._owner(cell)[0]

    def describe(self, cell: int) -> str:
        """The cell in the kernel's words, such as ``x[3, 1]``."""
        name, start, shape, strides = self._owner(cell)
        left = cell - self.first_cell - start
        index = [0] * len(shape)
        for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
            if strides[axis] > 0:
                index[axis], left = divmod(left, strides[axis])
        inside = left == 0 and all(i < size for i, size in zip(index, shape, strict=True))
        return f"{name}{index}" if inside else f"{name}'s element {cell - self.first_cell - start} in memory"

    def _owner(self, cell: int) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
        at = cell - self.first_cell
        spans = ((each, each[1] + _span(each[2], each[3])) for each in self.arrays)
        return next((each for each, end in spans if each[1] <= at < end), self.arrays[0])


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Cells from the first to the last element of an array without negative strides."""
    return 1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))


@dataclass(slots=True)
class Log:
    """Everything that happens in a launch, as numbers in one row each.

    ``sites`` and ``entries`` have one number per access: where in the code (the code object's address plus the
    instruction's offset: CPython 3.11 keeps the instructions inside the code object, so the sum is unique), and the
    cell with the kind of access. ``tests`` and ``outcomes`` have one per test of a branch. ``turns`` has six numbers
    each time that a thread goes on: block, epoch, thread, the warp's syncs so far, and the lengths of both logs.
    """

    sites: "array[int]" = field(default_factory=lambda: array("q"))
    entries: "array[int]" = field(default_factory=lambda: array("q"))
    tests: "array[int]" = field(default_factory=lambda: array("q"))
    outcomes: "array[int]" = field(default_factory=lambda: array("q"))
    turns: "array[int]" = field(default_factory=lambda: array("q"))


Store = tuple[Segment, int, Any]
"""What a thread has stored and others do not see yet: the segment, the element, the value."""


@dataclass(slots=True)
class Memory:
    """All arrays of a launch. With ``late_stores`` a thread's stores wait for ``commit``."""

    late_stores: bool
    log: Log = field(default_factory=Log)
    segments: list[Segment] = field(default_factory=list)
    pending: list[dict[int, Store]] = field(default_factory=list)
    """For each thread of the running block its stores that wait, by cell."""
    own: dict[int, Store] = field(default_factory=dict)
    """The running thread's among them."""
    early: set[int] = field(default_factory=set)
    """First cells of the segments to which stores are seen at once."""
    _next_cell: int = 0
    _next_address: dict[Space, int] = field(default_factory=lambda: dict.fromkeys(Space, 0))

    def commit(self, threads: Iterable[int]) -> None:
        """Let all see what these threads stored, in this order."""
        for thread in threads:
            stores = self.pending[thread]
            for segment, element, value in stores.values():
                segment.values[element] = value
            stores.clear()

    def commit_all(self, in_turn: Callable[[list[int]], Sequence[int]]) -> None:
        """Let all see what any thread stored, in this order of threads."""
        self.commit(in_turn([thread for thread, stores in enumerate(self.pending) if stores]))

    def allocate(self, name: str, shape: Any, dtype: Any, space: Space) -> Segment:
        """A new array that nobody has written."""
        return self._add(space, poisoned(shape, dtype).reshape(-1), _contiguous(name, shape), 0)

    def overlay(self, name: str, values: NDArray[Any], others: Sequence[Segment]) -> Segment:
        """A shared array that is the memory of others, of other types, too: it gets cells of its own at their address.

        Where there are others, stores to all of them are seen at once from here on.
        """
        if not others:
            return self._add(Space.SHARED, values, _contiguous(name, values.shape), 0)
        segment = self._at(Space.SHARED, others[0].first_address, values, _contiguous(name, values.shape))
        self.early |= {each.first_cell for each in (*others, segment)}
        for stores in self.pending:
            for cell in [cell for cell, store in stores.items() if store[0].first_cell in self.early]:
                stored, element, value = stores.pop(cell)
                stored.values[element] = value
        return segment

    def constant(self, name: str, values: NDArray[Any]) -> Segment:
        """An array that the kernel's source holds."""
        return self._add(Space.CONSTANT, np.ravel(values), _contiguous(name, values.shape), 0)

    def arguments(self, arrays: Sequence[tuple[str, NDArray[Any]]]) -> list[tuple[Segment, int]]:
        """For each named array its segment, and in it the cell of its first element. Arrays that overlap share one.

        Raises LabError for arrays that overlap and differ in type.
        """
        placed: dict[int, tuple[Segment, int]] = {}
        for group in _overlapping([values for _, values in arrays]):
            segment = self._of_group([arrays[number] for number in group])
            for number, (_, start, _, _) in zip(group, segment.arrays, strict=True):
                placed[number] = (segment, start)
        return [placed[number] for number in range(len(arrays))]

    def _of_group(self, arrays: Sequence[tuple[str, NDArray[Any]]]) -> Segment:
        if len({values.dtype for _, values in arrays}) > 1:
            names = ", ".join(name for name, _ in arrays)
            raise LabError(f"{names} overlap in memory and differ in type; give the kernel copies")
        size = arrays[0][1].itemsize
        lowest = min(_low(values) for _, values in arrays)
        end = max(byte_bounds(values)[1] for _, values in arrays)
        first = min((values for _, values in arrays), key=_low)
        writable = next((values for _, values in arrays if values.flags.writeable), first)
        whole = _from_lowest(writable, lowest, (end - lowest) // size)
        owners = tuple(
            (name, (_pointer(values) - lowest) // size, values.shape, tuple(s // size for s in values.strides))
            for name, values in arrays
        )
        return self._add(Space.GLOBAL, whole, owners, _offset_in_allocation(first) % ALIGNMENT)

    def _add(self, space: Space, values: NDArray[Any], arrays: Any, misalignment: int) -> Segment:
        address = self._next_address[space] + misalignment
        self._next_address[space] = -(-(address + values.nbytes) // ALIGNMENT) * ALIGNMENT
        return self._at(space, address, values, arrays)

    def _at(self, space: Space, address: int, values: NDArray[Any], arrays: Any) -> Segment:
        segment = Segment(space, self._next_cell, address, values, arrays, conversion(values.dtype))
        self._next_cell += max(values.size, 1)
        self.segments.append(segment)
        return segment


def _contiguous(name: str, shape: Any) -> tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...]:
    sizes = shape if isinstance(shape, tuple) else (int(shape),)
    return ((name, 0, sizes, contiguous_strides(sizes)),)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """In elements, of an array whose last axis lies together."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _overlapping(arrays: Sequence[NDArray[Any]]) -> Iterator[list[int]]:
    """Numbers of arrays, those together whose stretches of memory overlap."""
    group: list[int] = []
    end = -1
    for number in sorted(range(len(arrays)), key=lambda number: byte_bounds(arrays[number])):
        low, high = byte_bounds(arrays[number])
        if group and low >= end:
            yield group
            group, end = [], -1
        group.append(number)
        end = max(end, high)
    if group:
        yield group


def _from_lowest(values: NDArray[Any], lowest: int, count: int) -> NDArray[Any]:
    """``count`` elements from an address on that lies in the array's memory or before it."""
    memory = (c_byte * (count * values.itemsize)).from_address(lowest)
    whole = np.frombuffer(memoryview(memory), values.dtype)
    whole.flags.writeable = values.flags.writeable
    return whole


def _pointer(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])


def _low(values: NDArray[Any]) -> int:
    return int(byte_bounds(values)[0])


def _offset_in_allocation(values: NDArray[Any]) -> int:
    """Bytes from the start of the array of which this one is a view."""
    whole = values
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return max(_low(values) - _low(whole), 0)


def positions(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every index of an array of this shape."""
    return product(*map(range, shape))
