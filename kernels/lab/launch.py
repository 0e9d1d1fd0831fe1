"""Running kernels in the lab: ``with check(): kernel[grid, block](...)``."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from types import CodeType, TracebackType
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numba.cuda.dispatcher import CUDADispatcher
from numpy.typing import NDArray

from kernels.lab import analysis, lint
from kernels.lab.block import Block, Deadlock, Divergence
from kernels.lab.inference import Typing, infer
from kernels.lab.intrinsics import Dimensions, Intrinsics
from kernels.lab.memory import ATOMIC, READ, SHARED, WRITE, Memory
from kernels.lab.rebind import Program
from kernels.lab.report import KINDS, Access, Race, Report, SplitBranch, Traffic, Unwritten
from kernels.lab.source import LabError

MOST_LOOPS = 1_000_000
"""Tests of ``while`` by one thread in one block, until the lab takes the loop for endless."""

Order = Literal["ascending", "descending"] | int
"""In which order threads take turns; a number seeds a random one."""


@contextmanager
def check(order: Order = "ascending", late_stores: bool = True) -> Iterator[list[Report]]:
    """Within the block kernels run in the lab, with all checks; each launch adds a report to the list.

    With ``late_stores`` a thread's stores are seen by others only after the next barrier, so that a missing barrier
    is wrong every time. Raises what the kernel raises, with kernel, block, thread and values noted, and LabError for
    what no GPU could run.
    """
    reports: list[Report] = []

    def launch(kernel: CUDADispatcher, arguments: Any, grid: Any, block: Any, stream: Any, sharedmem: int) -> None:
        launched = _Checked(kernel, _dimensions(grid), _dimensions(block), order, late_stores)
        reports.append(launched.run(list(map(_argument, arguments)), sharedmem))

    with patch.object(CUDADispatcher, "call", launch):
        yield reports


@contextmanager
def run(order: Order = "ascending") -> Iterator[None]:
    """Within the block kernels run in the lab as fast as it can, without any check."""

    def launch(kernel: CUDADispatcher, arguments: Any, grid: Any, block: Any, stream: Any, sharedmem: int) -> None:
        _run_unchecked(kernel, list(map(_argument, arguments)), _dimensions(grid), _dimensions(block), sharedmem, order)

    with patch.object(CUDADispatcher, "call", launch):
        yield


def _run_unchecked(
    kernel: CUDADispatcher, arguments: list[Any], grid: Dimensions, shape: Dimensions, sharedmem: int, order: Order
) -> None:
    intrinsics = Intrinsics(grid, shape, sharedmem, None)
    program = Program(kernel, intrinsics, branch=None)
    in_turn = _in_turn(order)
    for index in _indices(grid):
        intrinsics.enter_block(index)
        block = Block(shape, in_turn, lambda thread: None, lambda: None, lambda warp, mask: None)
        coordinates = block.coordinates
        block.enter = lambda thread, at=coordinates: intrinsics.enter_thread(thread, at[thread])  # type: ignore[misc]
        block.run(program.run, arguments)


class _Checked:
    """One launch with all checks."""

    def __init__(self, kernel: CUDADispatcher, grid: Dimensions, shape: Dimensions, order: Order, late: bool) -> None:
        self._kernel, self._grid, self._shape, self._order = kernel, grid, shape, order
        self._in_turn = _in_turn(order)
        self._memory = Memory(late)
        self._chunks: list[NDArray[np.int64]] = []
        self._branches: list[tuple[int, int, int, bool]] = []
        self._loops: Counter[tuple[int, int]] = Counter()
        self._warp_syncs: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._divergences: set[Divergence] = set()
        self._epoch = 0

    def run(self, arguments: list[Any], sharedmem: int) -> Report:
        function: Any = self._kernel.py_func
        refused = tuple(lint.refused(function))
        typing = Typing({}, (), {}) if refused else infer(self._kernel, arguments)
        intrinsics = Intrinsics(self._grid, self._shape, sharedmem, self._memory)
        program = Program(self._kernel, intrinsics, self._branch)
        names = function.__code__.co_varnames
        given = [
            self._memory.array(name, value) if isinstance(value, np.ndarray) else value
            for name, value in zip(names, arguments, strict=False)
        ]
        for number, index in enumerate(_indices(self._grid)):
            self._memory.place.block = number
            self._run_block(program, intrinsics, index, given)
        return self._report(program, typing, refused)

    def _run_block(self, program: Program, intrinsics: Intrinsics, index: Dimensions, arguments: list[Any]) -> None:
        self._epoch = 0
        self._loops.clear()
        intrinsics.enter_block(index)
        block = Block(self._shape, self._in_turn, lambda thread: None, self._end_epoch, self._warp_synced)
        at = block.coordinates

        def enter(thread: int) -> None:
            intrinsics.enter_thread(thread, at[thread])
            self._memory.place.warp_sync = len(self._warp_syncs[self._memory.place.block, thread // 32])

        block.enter = enter
        try:
            block.run(program.run, arguments)
        except Exception as error:
            thread = at[self._memory.place.thread]
            raise _noted(error, program.codes, f"{program.run.__name__}, block {index}, thread {thread}") from None
        self._end_epoch()
        self._divergences |= block.divergences

    def _end_epoch(self) -> None:
        """All threads are at the block's barrier: what they stored is seen, and later accesses come after it."""
        count = self._shape[0] * self._shape[1] * self._shape[2]
        self._memory.commit(self._in_turn(list(range(count))))
        rows = self._memory.take_log()
        stamps = np.full((len(rows), 2), (self._memory.place.block, self._epoch), np.int64)
        self._chunks.append(np.hstack((rows, stamps)))
        self._epoch += 1

    def _warp_synced(self, warp: int, mask: int) -> None:
        lanes = [warp * 32 + lane for lane in range(32) if mask >> lane & 1]
        self._memory.commit(self._in_turn(lanes))
        self._warp_syncs[self._memory.place.block, warp].append(mask)

    def _branch(self, number: int, outcome: Any) -> bool:
        truth, place = bool(outcome), self._memory.place
        self._branches.append((place.block, place.thread, number, truth))
        self._loops[place.thread, number] += 1
        if self._loops[place.thread, number] > MOST_LOOPS:
            raise Deadlock(f"a thread has come to the same test {MOST_LOOPS} times: what it waits for does not come")
        return truth

    def _report(self, program: Program, typing: Typing, refused: tuple[lint.Refused, ...]) -> Report:
        rows = _by_place(np.concatenate(self._chunks), program.codes)
        log = _Log(rows, program.codes, self._memory, self._grid, self._shape)
        branches = np.array(self._branches, np.int64).reshape(-1, 4)
        on_device = rows[rows[:, analysis.ADDRESS] < SHARED]
        return Report(
            kernel=program.run.__name__,
            grid=self._grid,
            block=self._shape,
            order=str(self._order),
            late_stores=self._memory.late_stores,
            variables=typing.variables,
            float64=typing.float64,
            refused=refused,
            races=tuple(map(log.race, analysis.races(rows, self._warp_syncs))),
            divergences=tuple(sorted(self._divergences, key=lambda each: each.line)),
            unwritten=log.unwritten(),
            traffic=log.traffic(),
            split_branches=tuple(
                SplitBranch(program.branches[number].line, times)
                for number, times in sorted(analysis.split_warps(branches).items())
            ),
            global_reads_per_thread=analysis.accesses_per_thread(on_device, (READ, ATOMIC)),
            global_writes_per_thread=analysis.accesses_per_thread(on_device, (WRITE, ATOMIC)),
            float_operations=_operations(program, typing),
        )


@dataclass(frozen=True, slots=True)
class _Log:
    """Rows, put into words."""

    rows: NDArray[np.int64]
    codes: dict[int, CodeType]
    memory: Memory
    grid: Dimensions
    shape: Dimensions

    def race(self, conflict: analysis.Conflict) -> Race:
        first, second = self.rows[conflict.first], self.rows[conflict.second]
        return Race(self._cell(int(first[analysis.ADDRESS])), self._access(first), self._access(second), conflict.cells)

    def unwritten(self) -> tuple[Unwritten, ...]:
        times = Counter((code, instruction) for code, instruction, _, _, _ in self.memory.unwritten)
        seen: dict[tuple[int, int], Unwritten] = {}
        for code, instruction, thread, address, block in self.memory.unwritten:
            site = (code, instruction)
            if site not in seen:
                row = np.array([*site, thread, address, READ, 0, block, 0])
                seen[site] = Unwritten(self._cell(address), self._access(row), times[site])
        return tuple(seen.values())

    def traffic(self) -> tuple[Traffic, ...]:
        found = []
        for moved in analysis.traffic(self.rows, self._itemsizes()):
            row = self.rows[moved.row]
            array, shared = self._segment(int(row[analysis.ADDRESS])).name, bool(row[analysis.ADDRESS] >= SHARED)
            kind, line = KINDS[row[analysis.KIND]], self._line(row)
            counts = (moved.accesses, moved.sectors, moved.ideal, moved.degree)
            found.append(Traffic(array, kind, line, shared, *counts))
        return tuple(sorted(found, key=lambda each: (each.line, each.array, each.kind)))

    def _itemsizes(self) -> NDArray[np.int64]:
        segments = sorted(self.memory.segments, key=lambda segment: segment.first)
        starts = np.array([segment.first for segment in segments])
        sizes = np.array([segment.flat.itemsize for segment in segments])
        return np.asarray(sizes[np.searchsorted(starts, self.rows[:, analysis.ADDRESS], side="right") - 1])

    def _segment(self, address: int) -> Any:
        return next(each for each in self.memory.segments if each.first <= address < each.end)

    def _cell(self, address: int) -> str:
        segment = self._segment(address)
        return f"{segment.name}[{(address - segment.first) // segment.flat.itemsize}]"

    def _access(self, row: NDArray[np.int64]) -> Access:
        block, thread = int(row[analysis.BLOCK]), int(row[analysis.THREAD])
        return Access(KINDS[row[analysis.KIND]], self._line(row), _point(block, self.grid), _point(thread, self.shape))

    def _line(self, row: NDArray[np.int64]) -> int:
        code = self.codes[int(row[analysis.CODE])]
        positions = list(code.co_positions())
        return positions[int(row[analysis.INSTRUCTION]) // 2][0] or code.co_firstlineno


def _by_place(rows: NDArray[np.int64], codes: dict[int, CodeType]) -> NDArray[np.int64]:
    """The rows with one number for each place in the source: CPython reports an instruction by several offsets."""
    ids, number = np.unique(rows[:, analysis.CODE], return_inverse=True)
    span = max((len(code.co_code) for code in codes.values()), default=1)
    keys, which = np.unique(number * span + rows[:, analysis.INSTRUCTION], return_inverse=True)
    sites = np.column_stack((ids[keys // span], keys % span)) if len(rows) else np.empty((0, 2), np.int64)
    positions = [(code, list(codes[code].co_positions())[instruction // 2]) for code, instruction in sites.tolist()]
    first = [positions.index(position) for position in positions]
    rows[:, analysis.INSTRUCTION] = sites[first, 1][which]
    return rows


def _operations(program: Program, typing: Typing) -> int:
    """Operations on floats of all threads: those of each line, as often as its suite was entered."""
    total = 0
    for suite, hits in zip(program.suites, program.hits, strict=True):
        total += hits * sum(typing.float_operations.get(line, 0) for line in suite.lines)
    return total


def _argument(value: Any) -> Any:
    """An argument as the lab takes it: device arrays and tensors on the CPU share their memory."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise LabError(f"a {type(value).__name__} is no argument for a kernel; give arrays and numbers")


def _dimensions(sizes: Any) -> Dimensions:
    x, y, z = (*((sizes,) if isinstance(sizes, int) else sizes), 1, 1)[:3]
    return int(x), int(y), int(z)


def _indices(grid: Dimensions) -> Iterator[Dimensions]:
    for z, y, x in product(*map(range, reversed(grid))):
        yield x, y, z


def _point(number: int, shape: Dimensions) -> Dimensions:
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def _in_turn(order: Order) -> Callable[[list[int]], Sequence[int]]:
    """Raises LabError for an order that is neither a name nor a seed."""
    if order == "ascending":
        return lambda threads: threads
    if order == "descending":
        return lambda threads: threads[::-1]
    if not isinstance(order, int):
        raise LabError(f"the order {order!r} is unknown; use ascending, descending, or a number as seed")
    generator = random.Random(order)
    return lambda threads: generator.sample(threads, len(threads))


def _noted(error: Exception, codes: dict[int, CodeType], where: str) -> Exception:
    """The error with the student's frames alone in its traceback, and a note of where it happened, with values."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if id(trace.tb_frame.f_code) in codes:
            frames.append(trace)
        trace = trace.tb_next
    chain: TracebackType | None = None
    for each in reversed(frames):
        chain = TracebackType(chain, each.tb_frame, each.tb_lasti, each.tb_lineno)
    note = f"in {where}"
    if frames:
        values = frames[-1].tb_frame.f_locals
        shown = [f"{name} = {value}" for name, value in values.items() if isinstance(value, int | float | np.generic)]
        note += f", line {frames[-1].tb_lineno}: {', '.join(shown)}"
    error.add_note(note)
    return error.with_traceback(chain)
