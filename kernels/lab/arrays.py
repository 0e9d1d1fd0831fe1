"""Arrays as a kernel in the lab sees them: with checked indices and logged accesses, or plain and fast."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from operator import index as as_index
from sys import _getframe
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.lab.memory import ATOMIC, KIND_SHIFT, WRITE, Memory, Segment, contiguous_strides, positions
from kernels.lab.numbers import conversion
from kernels.lab.source import LabError

Change = Callable[[Any], Any]


class OutOfBounds(IndexError):
    """An index that the array does not have. On a GPU this reads or overwrites somebody else's memory, silently."""


class CheckedArray:
    """An array, or a view of one: indices are checked, accesses logged.

    ``first`` is the cell of its first element, counted from the segment's start, ``strides_in_cells`` go with shape.
    """

    __slots__ = (
        *("_cell", "_elements", "_first", "_log_entry", "_log_site", "_memory", "_name", "_segment", "_strides"),
        *("_values", "ndim", "shape"),
    )

    def __init__(
        self,
        memory: Memory,
        segment: Segment,
        name: str,
        first: int,
        shape: tuple[int, ...],
        strides_in_cells: tuple[int, ...],
    ) -> None:
        self._memory, self._segment, self._name = memory, segment, name
        self._first, self._strides = first, strides_in_cells
        self.shape, self.ndim = shape, len(shape)
        self._log_site, self._log_entry = memory.log.sites.append, memory.log.entries.append
        self._cell = segment.first_cell
        # A memoryview gives integers as plain ints, and quicker than numpy does.
        whole = segment.values
        self._values: Any = memoryview(whole.data) if whole.dtype.kind in "iub" else whole
        self._elements: dict[Any, Any] = {}
        """What indices meant that were used before: an element's number in the segment, or a view."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' type."""
        return self._segment.values.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return tuple(stride * self.itemsize for stride in self._strides)

    def transpose(self) -> "CheckedArray":
        """The view with its axes reversed."""
        return self.T

    def reshape(self, *shape: Any) -> "CheckedArray":
        """The view with another shape. Raises LabError for an array that is not contiguous, or of another size."""
        sizes = tuple(shape[0]) if isinstance(shape[0], tuple) else shape
        if self._strides != contiguous_strides(self.shape) or prod(sizes) != self.size:
            raise LabError(
                f"{self._name} of shape {self.shape} and strides {self.strides} has no view of shape {sizes}"
            )
        return self._view(self._first, sizes, contiguous_strides(sizes))

    @property
    def T(self) -> "CheckedArray":  # noqa: N802 - numpy's name
        """The view with its axes reversed."""
        return self._view(self._first, self.shape[::-1], self._strides[::-1])

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self._read(self._find(index), _getframe(1))

    def __getitem__(self, index: Any) -> Any:
        try:
            element = self._elements[index]
        except (KeyError, TypeError):
            element = self._find(index)
        if element.__class__ is CheckedArray:
            return element
        # What follows is ``_read``, written out: no other line of the lab runs so often.
        frame = _getframe(1)
        cell = self._cell + element
        self._log_site(id(frame.f_code) + frame.f_lasti)
        self._log_entry(cell)
        own = self._memory.own
        if own and cell in own:
            return own[cell][2]
        return self._values[element]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            element = self._elements[index]
        except (KeyError, TypeError):
            element = self._find(index)
        if element.__class__ is CheckedArray:
            element._fill(value, _getframe(1))
        else:
            self._write(element, value, _getframe(1))

    def exchange(self, index: Any, change: Change, frame: FrameType) -> Any:
        """An atomic update of one element for the call in ``frame``, seen by all at once; returns the old value."""
        element = self._find(index)
        if isinstance(element, CheckedArray):
            raise OutOfBounds(f"{self._name} has {self.ndim} dimensions: an atomic needs an index for each")
        cell = self._log(element, ATOMIC, frame)
        whole, own = self._segment.values, self._memory.own.pop(cell, None)
        if own is not None:
            whole[element] = own[2]
        old = self._values[element]
        whole[element] = self._segment.convert(change(old))
        return old

    def _read(self, element: Any, frame: FrameType) -> Any:
        if isinstance(element, CheckedArray):
            return element
        cell = self._log(element, 0, frame)
        own = self._memory.own.get(cell)
        return self._values[element] if own is None else own[2]

    def _write(self, element: int, value: Any, frame: FrameType) -> None:
        cell = self._log(element, WRITE, frame)
        kept = self._segment.convert(value)
        if self._memory.late_stores and self._cell not in self._memory.early:
            self._memory.own[cell] = (self._segment, element, kept)
        else:
            self._segment.values[element] = kept

    def _fill(self, value: Any, frame: FrameType) -> None:
        """``a[i] = value`` for a row, element by element, as the compiler's loop does it."""
        for position in positions(self.shape):
            one = value
            if isinstance(value, CheckedArray):
                one = value._read(value._find(position), frame)
            elif isinstance(value, np.ndarray):
                one = value[position]
            self._write(self._find(position), one, frame)

    def _log(self, element: int, kind: int, frame: FrameType) -> int:
        """Note an access; returns the cell."""
        cell = self._cell + element
        self._log_site(id(frame.f_code) + frame.f_lasti)
        self._log_entry(cell + (kind << KIND_SHIFT))
        return cell

    def _find(self, index: Any) -> Any:
        """The element's number in the segment; for slices, and for fewer indices than dimensions, the view."""
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim and len(indices) > self.ndim + (Ellipsis in indices):
            raise OutOfBounds(f"{self._name} has {self.ndim} dimensions and is given {len(indices)} indices")
        first = self._first
        for each, size, stride in zip(indices, self.shape, self._strides, strict=False):
            if each.__class__ is slice or each is Ellipsis:
                return self._sliced(indices)
            position = as_index(each)
            if not 0 <= position < size:
                raise self._out_of_bounds(indices)
            first += position * stride
        left = len(indices)
        found = first if left == self.ndim else self._view(first, self.shape[left:], self._strides[left:])
        self._elements[index] = found
        return found

    def _sliced(self, indices: Sequence[Any]) -> "CheckedArray":
        first, shape, strides = self._first, [], []
        if Ellipsis in indices:
            at, missing = indices.index(Ellipsis), self.ndim - len(indices) + 1
            indices = (*indices[:at], *[slice(None)] * missing, *indices[at + 1 :])
        full = [*indices, *[slice(None)] * (self.ndim - len(indices))]
        for each, size, stride in zip(full, self.shape, self._strides, strict=True):
            if type(each) is slice:
                start, stop, step = each.indices(size)
                first += start * stride
                shape.append(len(range(start, stop, step)))
                strides.append(step * stride)
            elif 0 <= as_index(each) < size:
                first += as_index(each) * stride
            else:
                raise self._out_of_bounds(indices)
        return self._view(first, tuple(shape), tuple(strides))

    def _view(self, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> "CheckedArray":
        return CheckedArray(self._memory, self._segment, self._name, first, shape, strides)

    def _out_of_bounds(self, indices: Sequence[Any]) -> OutOfBounds:
        shown = ", ".join(map(str, indices))
        negative = any(type(each) is not slice and as_index(each) < 0 for each in indices)
        rule = "a negative index counts from the end, which no kernel means" if negative else "it has no such element"
        return OutOfBounds(f"{self._name}[{shown}] of shape {self.shape}: {rule}")


class PlainIntegers:
    """An integer array without checks, whose elements are plain ints: numpy's small integers would wrap in sums."""

    __slots__ = ("_convert", "_values", "_view", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides")

    def __init__(self, values: NDArray[Any]) -> None:
        self._values, self._view, self._convert = values, values.data, conversion(values.dtype)
        self.dtype, self.ndim, self.shape, self.size = values.dtype, values.ndim, values.shape, values.size
        self.strides, self.itemsize, self.nbytes = values.strides, values.itemsize, values.nbytes

    @property
    def T(self) -> "PlainIntegers":  # noqa: N802 - numpy's name
        """The view with its axes reversed."""
        return PlainIntegers(self._values.T)

    def transpose(self) -> "PlainIntegers":
        """The same."""
        return self.T

    def reshape(self, *shape: Any) -> "PlainIntegers":
        """The view with another shape."""
        return PlainIntegers(self._values.reshape(*shape))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        try:
            found: Any = self._view[index]  # a plain int, for an index of each dimension
        except (NotImplementedError, TypeError):
            found = None
        return PlainIntegers(self._values[index]) if found is None or isinstance(found, memoryview) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        whole = isinstance(value, np.ndarray | PlainIntegers)
        self._values[index] = np.asarray(value) if whole else self._convert(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._values


def unchecked(values: NDArray[Any]) -> Any:
    """The array as a kernel sees it that runs without checks."""
    return PlainIntegers(values) if values.dtype.kind in "iub" else values


def checked(memory: Memory, segment: Segment) -> CheckedArray:
    """The segment as an array with checks. It holds one array, not several arguments that overlap."""
    return CheckedArray(memory, segment, *segment.arrays[0])
