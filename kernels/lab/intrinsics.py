"""What stands for ``cuda`` in the lab: thread numbers, barriers, shuffles, votes, atomics, shared and local arrays."""

from collections.abc import Callable
from math import prod
from sys import _getframe
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent
from numpy.typing import NDArray

from kernels.lab.block import FULL_MASK, WARP_SIZE, Answer, Wait
from kernels.lab.memory import CheckedArray, Memory, stored

Dimensions = tuple[int, int, int]


class Intrinsics(SimpleNamespace):
    """The members of ``cuda`` that kernels use, bound to one launch.

    ``memory`` is None where nothing is checked: arrays are then plain numpy arrays.
    """

    def __init__(self, grid: Dimensions, block: Dimensions, dynamic_bytes: int, memory: Memory | None) -> None:
        super().__init__()
        self.gridDim, self.blockDim = _point(grid), _point(block)
        self.blockIdx, self.threadIdx = _point((0, 0, 0)), _point((0, 0, 0))
        self.laneid, self.warpsize = 0, WARP_SIZE
        self.shared, self.local = SimpleNamespace(array=self._shared), SimpleNamespace(array=self._local)
        self.const = SimpleNamespace(array_like=lambda values: values)
        self.atomic = Atomic()
        self._memory = memory
        self._dynamic_bytes = dynamic_bytes
        self._arrays: dict[tuple[int, int], Any] = {}

    def enter_block(self, index: Dimensions) -> None:
        """A new block: its shared arrays are its own."""
        self.blockIdx.x, self.blockIdx.y, self.blockIdx.z = index
        self._arrays.clear()
        if self._memory:
            self._memory.forget_shared()

    def enter_thread(self, thread: int, coordinates: Dimensions) -> None:
        """The thread that runs from here on."""
        self.threadIdx.x, self.threadIdx.y, self.threadIdx.z = coordinates
        self.laneid = thread % WARP_SIZE
        if self._memory:
            self._memory.place.thread = thread

    def grid(self, ndim: int) -> Any:
        """The thread's number in the whole grid, in each of ``ndim`` dimensions."""
        at = [getattr(self.blockIdx, d) * getattr(self.blockDim, d) + getattr(self.threadIdx, d) for d in "xyz"]
        return at[0] if ndim == 1 else tuple(at[:ndim])

    def gridsize(self, ndim: int) -> Any:
        """Threads of the whole grid, in each of ``ndim`` dimensions."""
        sizes = [getattr(self.gridDim, d) * getattr(self.blockDim, d) for d in "xyz"]
        return sizes[0] if ndim == 1 else tuple(sizes[:ndim])

    # Barriers of the block.

    def syncthreads(self) -> None:
        """Wait for all threads of the block."""
        _wait(Wait("block", "syncthreads", _getframe(1).f_lineno))

    def syncthreads_count(self, predicate: Any) -> int:
        """Wait, and count the threads whose predicate is true."""
        return _block_vote("syncthreads_count", predicate, lambda values: sum(map(bool, values)))

    def syncthreads_and(self, predicate: Any) -> int:
        """Wait, and tell whether all predicates are true."""
        return _block_vote("syncthreads_and", predicate, lambda values: int(all(values)))

    def syncthreads_or(self, predicate: Any) -> int:
        """Wait, and tell whether any predicate is true."""
        return _block_vote("syncthreads_or", predicate, lambda values: int(any(values)))

    # A warp's barrier, shuffles and votes.

    def syncwarp(self, mask: int = FULL_MASK) -> None:
        """Wait for the lanes of the mask."""
        _wait(Wait("warp", "syncwarp", _getframe(1).f_lineno, mask))

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of ``lane``."""
        return _shuffle("shfl_sync", mask, value, lane, lambda own, other: other % WARP_SIZE)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` below; the lowest keep their own."""
        return _shuffle("shfl_up_sync", mask, value, delta, lambda own, by: own - by if own >= by else own)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` above; the highest keep their own."""
        return _shuffle("shfl_down_sync", mask, value, delta, lambda own, by: own + by if own + by < WARP_SIZE else own)

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:
        """The value of the lane whose number differs in these bits."""
        return _shuffle("shfl_xor_sync", mask, value, lane_mask, lambda own, bits: own ^ bits)

    def all_sync(self, mask: int, predicate: Any) -> bool:
        """Whether all lanes' predicates are true."""
        return bool(_vote("all_sync", mask, predicate, all))

    def any_sync(self, mask: int, predicate: Any) -> bool:
        """Whether any lane's predicate is true."""
        return bool(_vote("any_sync", mask, predicate, any))

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        """Whether all lanes' predicates are alike."""
        return bool(_vote("eq_sync", mask, predicate, lambda values: len(set(map(bool, values))) == 1))

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        """A bit for each lane whose predicate is true."""
        answer: Answer = lambda values: dict.fromkeys(values, sum(1 << lane for lane, v in values.items() if v))  # noqa: E731
        return int(_wait(Wait("warp", "ballot_sync", _getframe(1).f_lineno, mask, predicate, answer)))

    def activemask(self) -> int:
        """All lanes: the lab runs none without the others."""
        return FULL_MASK

    # Arithmetic.

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded twice, where a GPU rounds once."""
        return a * b + c

    def popc(self, value: int) -> int:
        """Number of bits that are set."""
        return (int(value) & ((1 << 64) - 1)).bit_count()

    def clz(self, value: int) -> int:
        """Number of leading zeros among 32 bits."""
        return 32 - (int(value) & FULL_MASK).bit_length()

    def ffs(self, value: int) -> int:
        """The lowest set bit's number, counted from 1; 0 where none is set."""
        return (int(value) & -int(value)).bit_length()

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        """``a`` where the condition is true, else ``b``."""
        return a if condition else b

    def threadfence(self) -> None:
        """Orders a thread's own stores for other blocks. It makes no thread wait, and the lab sees no race less."""

    threadfence_block = threadfence_system = threadfence

    # Arrays.

    def _shared(self, shape: Any, dtype: Any) -> Any:
        """One array for all threads of the block that come to this call, unwritten at first."""
        key = _site(_getframe(1))
        if key not in self._arrays:
            values = self._dynamic(dtype) if shape == 0 else poisoned(shape, dtype)
            self._arrays[key] = values if self._memory is None else self._memory.array("shared", values, shared=True)
        return self._arrays[key]

    def _dynamic(self, dtype: Any) -> NDArray[Any]:
        """The memory that the launch asked for. All arrays of size 0 are this one."""
        whole = self._arrays.setdefault((0, 0), np.full(self._dynamic_bytes, 255, np.uint8))
        kind = np.dtype(dtype)
        return np.asarray(whole[: len(whole) // kind.itemsize * kind.itemsize].view(kind))

    def _local(self, shape: Any, dtype: Any) -> Any:
        """An array of the thread's own, unwritten at first."""
        return poisoned(shape, dtype)


def poisoned(shape: Any, dtype: Any) -> NDArray[Any]:
    """An array of NaN, or of large numbers where the type has no NaN."""
    size = prod(shape) if isinstance(shape, tuple) else int(shape)
    values = np.full(size * np.dtype(dtype).itemsize, 255, np.uint8).view(np.dtype(dtype))
    return np.asarray(values.reshape(shape))


class Atomic:
    """``cuda.atomic``: each call reads and writes in one step, gives the old value, and lets other threads run."""

    def add(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] += value``."""
        return _exchange(array, index, lambda old: old + value)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] -= value``."""
        return _exchange(array, index, lambda old: old - value)

    def max(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the larger; NaN loses."""
        return _exchange(array, index, lambda old: np.fmax(old, value))

    def min(self, array: Any, index: Any, value: Any) -> Any:
        """Keep the smaller; NaN loses."""
        return _exchange(array, index, lambda old: np.fmin(old, value))

    nanmax, nanmin = max, min

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] &= value``."""
        return _exchange(array, index, lambda old: int(old) & int(value))

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] |= value``."""
        return _exchange(array, index, lambda old: int(old) | int(value))

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        """``array[index] ^= value``."""
        return _exchange(array, index, lambda old: int(old) ^ int(value))

    def inc(self, array: Any, index: Any, limit: Any) -> Any:
        """Count up, and from ``limit`` back to 0."""
        return _exchange(array, index, lambda old: 0 if old >= limit else old + 1)

    def dec(self, array: Any, index: Any, limit: Any) -> Any:
        """Count down, and from 0 back to ``limit``."""
        return _exchange(array, index, lambda old: limit if old == 0 or old > limit else old - 1)

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        """Replace."""
        return _exchange(array, index, lambda old: value)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        """Replace where ``old`` stands."""
        return _exchange(array, index, lambda found: value if found == old else found)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        """Replace the first element where ``old`` stands."""
        return _exchange(array, 0, lambda found: value if found == old else found)


def _exchange(array: Any, index: Any, change: Callable[[Any], Any]) -> Any:
    frame = _getframe(2)
    if isinstance(array, CheckedArray):
        old = array.exchange(index, change, *_site(frame))
    else:
        old = array[index]
        array[index] = stored(array.dtype, change(old))
        old = int(old) if array.dtype.kind in "iub" else old
    _wait(Wait("turn", "atomic", frame.f_lineno))
    return old


def _site(frame: FrameType) -> tuple[int, int]:
    """Where a call stands, as the log writes it: code and instruction."""
    return id(frame.f_code), frame.f_lasti


def _point(values: Dimensions) -> SimpleNamespace:
    return SimpleNamespace(x=values[0], y=values[1], z=values[2])


def _wait(wait: Wait) -> Any:
    """Let other threads run; returns what the wait brought."""
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(wait)


def _block_vote(name: str, predicate: Any, count: Callable[[list[Any]], int]) -> int:
    answer: Answer = lambda values: dict.fromkeys(values, count(list(values.values())))  # noqa: E731
    return int(_wait(Wait("block", name, _getframe(2).f_lineno, value=predicate, answer=answer)))


def _vote(name: str, mask: int, predicate: Any, decide: Callable[[list[Any]], bool]) -> bool:
    answer: Answer = lambda values: dict.fromkeys(values, decide(list(values.values())))  # noqa: E731
    return bool(_wait(Wait("warp", name, _getframe(2).f_lineno, mask, predicate, answer)))


def _shuffle(name: str, mask: int, value: Any, operand: int, source: Callable[[int, int], int]) -> Any:
    """Each lane gets the value of the lane that ``source(own lane, operand)`` names; NaN from one that is absent."""

    def answer(values: dict[int, Any]) -> dict[int, Any]:
        return {lane: values.get(source(lane, int(by)), (float("nan"), 0))[0] for lane, (_, by) in values.items()}

    return _wait(Wait("warp", name, _getframe(2).f_lineno, mask, (value, operand), answer))
