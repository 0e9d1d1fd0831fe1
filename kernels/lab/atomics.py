"""``cuda.atomic``: each call reads and writes in one step, gives the old value, and lets other threads run."""

from collections.abc import Callable
from math import isnan
from sys import _getframe
from typing import Any

from kernels.lab.arrays import CheckedArray
from kernels.lab.block import Wait
from kernels.lab.numbers import conversion


class Atomic:
    """The atomics, bound to what makes a thread wait for its next turn."""

    def __init__(self, wait: Callable[[Wait], Any]) -> None:
        self._wait = wait

    def add(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] += value``."""
        return self._exchange(array, index, lambda old, value: old + value, value)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] -= value``."""
        return self._exchange(array, index, lambda old, value: old - value, value)

    def max(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the larger; NaN loses."""
        return self._exchange(array, index, lambda old, value: old if old >= value or isnan(value) else value, value)

    def min(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the smaller; NaN loses."""
        return self._exchange(array, index, lambda old, value: old if old <= value or isnan(value) else value, value)

    nanmax, nanmin = max, min

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] &= value``."""
        return self._exchange(array, index, lambda old, value: old & value, value)

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] |= value``."""
        return self._exchange(array, index, lambda old, value: old | value, value)

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] ^= value``."""
        return self._exchange(array, index, lambda old, value: old ^ value, value)

    def inc(self, array: Any, index: Any, limit: Any) -> Any:
        """Count up, and from ``limit`` back to 0."""
        return self._exchange(array, index, lambda old, limit: 0 if old >= limit else old + 1, limit)

    def dec(self, array: Any, index: Any, limit: Any) -> Any:
        """Count down, and from 0 back to ``limit``."""
        return self._exchange(array, index, lambda old, limit: limit if old == 0 or old > limit else old - 1, limit)

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        """Replace."""
        return self._exchange(array, index, lambda old, value: value, value)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        """Replace where ``old`` stands."""
        return self._exchange(array, index, lambda found, old, value: value if found == old else found, old, value)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        """Replace the first element where ``old`` stands."""
        return self._exchange(array, 0, lambda found, old, value: value if found == old else found, old, value)

    def _exchange(self, array: Any, index: Any, change: Callable[..., Any], *operands: Any) -> Any:
        """Operands have the array's type before anything is done with them, as numba compiles it."""
        frame, convert = _getframe(2), conversion(array.dtype)
        given = [convert(each) for each in operands]
        if isinstance(array, CheckedArray):
            old = array.exchange(index, lambda old: change(old, *given), frame)
        else:
            old = array[index]
            array[index] = convert(change(old, *given))
        self._wait(Wait("turn", "atomic", frame))
        return old
