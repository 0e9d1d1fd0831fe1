"""``cuda.atomic``: each call reads and writes in one step, gives the old value, and lets other threads run."""

from collections.abc import Callable
from sys import _getframe
from typing import Any

import numpy as np

from kernels.lab.arrays import Change, CheckedArray
from kernels.lab.block import Wait
from kernels.lab.numbers import conversion


class Atomic:
    """The atomics, bound to what makes a thread wait for its next turn."""

    def __init__(self, wait: Callable[[Wait], Any]) -> None:
        self._wait = wait

    def add(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] += value``."""
        return self._exchange(array, index, lambda old: old + value)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] -= value``."""
        return self._exchange(array, index, lambda old: old - value)

    def max(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the larger; NaN loses."""
        return self._exchange(array, index, lambda old: np.fmax(old, value))

    def min(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the smaller; NaN loses."""
        return self._exchange(array, index, lambda old: np.fmin(old, value))

    nanmax, nanmin = max, min

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] &= value``."""
        return self._exchange(array, index, lambda old: old & int(value))

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] |= value``."""
        return self._exchange(array, index, lambda old: old | int(value))

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] ^= value``."""
        return self._exchange(array, index, lambda old: old ^ int(value))

    def inc(self, array: Any, index: Any, limit: Any) -> Any:
        """Count up, and from ``limit`` back to 0."""
        return self._exchange(array, index, lambda old: 0 if old >= limit else old + 1)

    def dec(self, array: Any, index: Any, limit: Any) -> Any:
        """Count down, and from 0 back to ``limit``."""
        return self._exchange(array, index, lambda old: limit if old == 0 or old > limit else old - 1)

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        """Replace."""
        return self._exchange(array, index, lambda old: value)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        """Replace where ``old`` stands."""
        return self._exchange(array, index, lambda found: value if found == old else found)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        """Replace the first element where ``old`` stands."""
        return self._exchange(array, 0, lambda found: value if found == old else found)

    def _exchange(self, array: Any, index: Any, change: Change) -> Any:
        frame = _getframe(2)
        if isinstance(array, CheckedArray):
            old = array.exchange(index, change, frame)
        else:
            old = array[index]
            array[index] = conversion(array.dtype)(change(old))
        self._wait(Wait("turn", "atomic", frame))
        return old
