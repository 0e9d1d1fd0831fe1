"""What stands for ``cuda`` in the lab: thread numbers, barriers, shuffles, votes, atomics, shared and local arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from sys import _getframe
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernels.lab.allocation import Arrays
from kernels.lab.atomics import Atomic
from kernels.lab.block import BARRIER, FULL_MASK, WARP_SIZE, Wait, current_thread
from kernels.lab.numbers import conversion, poison_like
from kernels.lab.order import Dimensions
from kernels.lab.source import LabError

UNKNOWN_BITS = 32
"""Taken for an integer's size where its type is not known: the kernel was refused, or has no source."""
as_int32: Callable[[Any], int] = conversion(np.dtype(np.int32))


class Intrinsics:
    """The members of ``cuda`` that kernels use, bound to one launch, in the greenlet that makes it."""

    def __init__(self, grid: Dimensions, block: Dimensions, arrays: Arrays) -> None:
        self.gridDim, self.blockDim = Point(*grid), Point(*block)
        self.blockIdx, self.threadIdx = Point(0, 0, 0), Point(0, 0, 0)
        self.warpsize = WARP_SIZE
        self.operand_bits: Mapping[tuple[str, int, str], set[int]] = {}
        """Sizes of the integers to which a file's line applies ``popc``, ``brev`` or ``clz``."""
        self._arrays, self._wait = arrays, current_thread().switch
        self.shared, self.local = SimpleNamespace(array=self._shared_array), SimpleNamespace(array=self._local_array)
        self.const = SimpleNamespace(array_like=self._constant)
        self.atomic = Atomic(self._wait)
        self.syncthreads = partial(self._wait, BARRIER)
        """Wait for all threads of the block. It costs no frame of its own: it is called most."""

    def enter_block(self, index: Dimensions) -> None:
        """A new block: its shared arrays are its own."""
        self.blockIdx.x, self.blockIdx.y, self.blockIdx.z = index
        self._arrays.new_block()

    def entering(self, coordinates: Sequence[Dimensions]) -> Callable[[int], None]:
        """What is called with the number of each thread that runs from there on. ``coordinates`` are all threads'."""
        at = self.threadIdx

        def enter(thread: int) -> None:
            at.x, at.y, at.z = coordinates[thread]

        def enter_in_row(thread: int) -> None:
            at.x = thread

        return enter if coordinates[-1] != (len(coordinates) - 1, 0, 0) else enter_in_row

    @property
    def laneid(self) -> int:
        """The thread's number in its warp."""
        at, size = self.threadIdx, self.blockDim
        return (at.x + (at.y + at.z * size.y) * size.x) % WARP_SIZE

    def grid(self, ndim: int) -> Any:
        """The thread's number in the whole grid, in each of ``ndim`` dimensions."""
        block, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        x = block.x * size.x + thread.x
        return x if ndim == 1 else (x, block.y * size.y + thread.y, block.z * size.z + thread.z)[:ndim]

    def gridsize(self, ndim: int) -> Any:
        """Threads of the whole grid, in each of ``ndim`` dimensions."""
        blocks, size = self.gridDim, self.blockDim
        x = blocks.x * size.x
        return x if ndim == 1 else (x, blocks.y * size.y, blocks.z * size.z)[:ndim]

    # Barriers of the block.

    def syncthreads_count(self, predicate: Any) -> int:
        """Wait, and count the threads whose predicate is true."""
        return self._block_vote("syncthreads_count", predicate, lambda values: sum(map(bool, values)))

    def syncthreads_and(self, predicate: Any) -> int:
        """Wait, and tell whether all predicates are true."""
        return self._block_vote("syncthreads_and", predicate, lambda values: int(all(values)))

    def syncthreads_or(self, predicate: Any) -> int:
        """Wait, and tell whether any predicate is true."""
        return self._block_vote("syncthreads_or", predicate, lambda values: int(any(values)))

    def _block_vote(self, name: str, predicate: Any, count: Callable[[list[Any]], int]) -> int:
        def answer(values: dict[int, Any]) -> dict[int, Any]:
            return dict.fromkeys(values, count(list(values.values())))

        return int(self._waited(Wait("block", name, _getframe(2), value=predicate, answer=answer)))

    # A warp's barrier, shuffles and votes.

    def syncwarp(self, mask: int = FULL_MASK) -> None:
        """Wait for the lanes of the mask."""
        self._wait(Wait("warp", "syncwarp", _getframe(1), mask))

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        """The value of ``lane``."""
        return self._shuffle("shfl_sync", mask, value, lane, lambda own, other: other % WARP_SIZE)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` below; the lowest keep their own."""
        return self._shuffle("shfl_up_sync", mask, value, delta, lambda own, by: own - by if own >= by else own)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        """The value of the lane ``delta`` above; the highest keep their own."""
        return self._shuffle(
            "shfl_down_sync", mask, value, delta, lambda own, by: own + by if own + by < WARP_SIZE else own
        )

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:
        """The value of the lane whose number differs in these bits."""
        return self._shuffle("shfl_xor_sync", mask, value, lane_mask, lambda own, bits: own ^ bits)

    def _shuffle(self, name: str, mask: int, value: Any, operand: int, source: Callable[[int, int], int]) -> Any:
        """Each lane gets the value of the lane that ``source(own lane, operand)`` names; poison if it is absent."""

        def answer(values: dict[int, Any]) -> dict[int, Any]:
            sources = {lane: source(lane, int(by)) for lane, (_, by) in values.items()}
            return {
                lane: values[sources[lane]][0] if sources[lane] in values else poison_like(own)
                for lane, (own, _) in values.items()
            }

        return self._waited(Wait("warp", name, _getframe(2), mask, (value, operand), answer))

    def all_sync(self, mask: int, predicate: Any) -> bool:
        """Whether all lanes' predicates are true."""
        return bool(self._vote("all_sync", mask, predicate, all))

    def any_sync(self, mask: int, predicate: Any) -> bool:
        """Whether any lane's predicate is true."""
        return bool(self._vote("any_sync", mask, predicate, any))

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        """Whether all lanes' predicates are alike."""
        return bool(self._vote("eq_sync", mask, predicate, lambda values: len(set(map(bool, values))) == 1))

    def _vote(self, name: str, mask: int, predicate: Any, decide: Callable[[list[Any]], bool]) -> Any:
        def answer(values: dict[int, Any]) -> dict[int, Any]:
            return dict.fromkeys(values, decide(list(values.values())))

        return self._waited(Wait("warp", name, _getframe(2), mask, predicate, answer))

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        """A bit for each lane whose predicate is true, as an int32: lane 31's is the sign."""

        def answer(values: dict[int, Any]) -> dict[int, Any]:
            return dict.fromkeys(values, _lanes(values, bool))

        return as_int32(self._waited(Wait("warp", "ballot_sync", _getframe(1), mask, predicate, answer)))

    def match_any_sync(self, mask: int, value: Any) -> int:
        """A bit for each lane with the same value, as an int32."""

        def answer(values: dict[int, Any]) -> dict[int, Any]:
            return {lane: _lanes(values, own.__eq__) for lane, own in values.items()}

        return as_int32(self._waited(Wait("warp", "match_any_sync", _getframe(1), mask, value, answer)))

    def match_all_sync(self, mask: int, value: Any) -> tuple[int, bool]:
        """The mask and true if all lanes have the same value, else 0 and false."""

        def answer(values: dict[int, Any]) -> dict[int, Any]:
            alike = len(set(values.values())) == 1
            return dict.fromkeys(values, (_lanes(values, lambda _: True) if alike else 0, alike))

        lanes, alike = self._waited(Wait("warp", "match_all_sync", _getframe(1), mask, value, answer))
        return as_int32(lanes), alike

    def activemask(self) -> int:
        """All lanes: the lab runs none without the others."""
        return FULL_MASK

    def lanemask_lt(self) -> int:
        """A bit for each lane below this one."""
        return (1 << self.laneid) - 1

    def nanosleep(self, nanoseconds: int) -> None:
        """Let the other threads run."""
        self._wait(Wait("turn", "nanosleep", _getframe(1)))

    def _waited(self, wait: Wait) -> Any:
        """Let other threads run; returns what the wait brought."""
        self._wait(wait)
        return wait.result

    # Arithmetic.

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded twice, where a GPU rounds once."""
        return a * b + c

    def popc(self, value: int) -> int:
        """Number of bits that are set."""
        return len(self._bits(value, "popc").replace("0", ""))

    def brev(self, value: int) -> int:
        """The bits in reverse."""
        return int(self._bits(value, "brev")[::-1], 2)

    def clz(self, value: int) -> int:
        """Number of leading zeros."""
        bits = self._bits(value, "clz")
        return len(bits) - len(bits.lstrip("0"))

    def _bits(self, value: int, name: str) -> str:
        """The bits of an operand, as many as its type has where it is compiled."""
        frame = _getframe(2)
        sizes = self.operand_bits.get((frame.f_code.co_filename, frame.f_lineno, name), {UNKNOWN_BITS})
        if len(sizes) > 1:
            rule = f"takes integers of {' and '.join(map(str, sorted(sizes)))} bits; convert them to one type"
            raise LabError(f"cuda.{name} in line {frame.f_lineno} {rule}, or call it in several lines")
        (size,) = sizes
        return f"{int(value) & (1 << size) - 1:0{size}b}"

    def ffs(self, value: int) -> int:
        """The lowest set bit's number, counted from 1; 0 where none is set."""
        return (int(value) & -int(value)).bit_length()

    def selp(self, condition: Any, a: Any, b: Any) -> Any:
        """``a`` where the condition is true, else ``b``."""
        return a if condition else b

    def cbrt(self, value: Any) -> Any:
        """The cube root."""
        return np.cbrt(value)

    def threadfence(self) -> None:
        """Orders a thread's own stores for other blocks. It makes no thread wait, and the lab sees no race less."""

    threadfence_block = threadfence_system = threadfence

    # Arrays.

    def _shared_array(self, shape: Any, dtype: Any) -> Any:
        return self._arrays.shared(shape, dtype, _getframe(1))

    def _local_array(self, shape: Any, dtype: Any) -> Any:
        return self._arrays.local(shape, dtype, _getframe(1))

    def _constant(self, values: Any) -> Any:
        return self._arrays.constant(values) if isinstance(values, np.ndarray) else values


def _lanes(values: dict[int, Any], wanted: Callable[[Any], bool]) -> int:
    """A bit for each lane whose value is wanted."""
    return sum(1 << lane for lane, value in values.items() if wanted(value))


@dataclass(slots=True)
class Point:
    """``threadIdx`` and its like."""

    x: int
    y: int
    z: int
