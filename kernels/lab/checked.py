"""One launch with all checks, from the kernel and its arguments to the report."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any

import numpy as np

from kernels.lab.accesses import in_pieces, read_log, read_tests
from kernels.lab.allocation import CheckedArrays
from kernels.lab.arrays import CheckedArray
from kernels.lab.block import WARP_SIZE, Block, Deadlock, Divergence
from kernels.lab.inference import UNKNOWN, Typing, infer
from kernels.lab.intrinsics import Intrinsics
from kernels.lab.lint import Refused, refused
from kernels.lab.memory import ATOMIC, READ, WRITE, Memory
from kernels.lab.numbers import plain_number
from kernels.lab.order import Dimensions, InTurn, indices, named, numbered
from kernels.lab.races import races, unwritten
from kernels.lab.reading import Reading
from kernels.lab.rebind import Program
from kernels.lab.report import Race, Report, SplitBranch
from kernels.lab.source import function_name, place, variables_at
from kernels.lab.traffic import accesses_per_thread, split_warps, traffic

MOST_TESTS = 200_000
"""Tests of one ``while``, or trips of one ``for``, by a thread in a block, until the lab takes it for endless."""


class CheckedLaunch:
    """A launch of ``grid`` blocks of ``shape`` threads. ``run`` is called once."""

    def __init__(
        self, kernel: Any, grid: Dimensions, shape: Dimensions, order: str, in_turn: InTurn, late_stores: bool
    ) -> None:
        self._kernel, self._grid, self._shape, self._order, self._in_turn = kernel, grid, shape, order, in_turn
        self._memory = Memory(late_stores)
        self._divergences: dict[Divergence, None] = {}
        self._warp_syncs: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._tests: Counter[tuple[int, int]] = Counter()
        self._at = list(indices(shape))
        self._thread = self._block = self._epoch = 0
        self._syncs: list[int] = []

    def run(self, arguments: list[Any], shared_bytes: int) -> Report:
        """Run all blocks. Raises what the kernel raises."""
        arrays = CheckedArrays(self._memory, shared_bytes)
        intrinsics = Intrinsics(self._grid, self._shape, arrays)
        program = Program(intrinsics, arrays.constant, self._recorder)
        function = program.rebound(self._kernel.py_func)
        refusals = tuple(found for each in program.functions for found in refused(each, self._kernel.py_func))
        typing = UNKNOWN if refusals else infer(self._kernel, arguments)
        intrinsics.operand_bits = typing.operand_bits
        given = self._given(function.__code__, arguments)
        with np.errstate(all="ignore"):
            for number, index in enumerate(indices(self._grid)):
                self._block = number
                intrinsics.enter_block(index)
                self._run_block(program, function, intrinsics, given)
        return self._report(program, typing, refusals)

    def _given(self, code: CodeType, arguments: list[Any]) -> list[Any]:
        """The arguments, with checked arrays."""
        names = code.co_varnames[: len(arguments)]
        given = dict(zip(names, map(plain_number, arguments), strict=True))
        arrays = [(name, value) for name, value in given.items() if isinstance(value, np.ndarray)]
        for (name, values), (segment, first) in zip(arrays, self._memory.arguments(arrays), strict=True):
            strides = tuple(stride // values.itemsize for stride in values.strides)
            given[name] = CheckedArray(self._memory, segment, name, first, values.shape, strides)
        return list(given.values())

    def _run_block(self, program: Program, function: Any, intrinsics: Intrinsics, arguments: list[Any]) -> None:
        self._epoch = 0
        self._tests.clear()
        block = Block(
            len(self._at),
            self._in_turn,
            self._enter(intrinsics),
            self._at_barrier,
            self._warp_synced,
            numbered(self._shape),
        )
        try:
            block.run(function, arguments)
        except Exception as error:
            raise _noted(error, program.codes, self._where(function.__name__, intrinsics)) from None
        self._end_epoch()
        self._divergences |= dict.fromkeys(sorted(block.divergences, key=lambda each: each.line))

    def _where(self, kernel: str, intrinsics: Intrinsics) -> str:
        at = intrinsics.blockIdx
        block, thread = named((at.x, at.y, at.z), self._grid), named(self._at[self._thread], self._shape)
        return f"{kernel}, block {block}, thread {thread}"

    # What the block's threads report while they run.

    def _enter(self, intrinsics: Intrinsics) -> Callable[[int], None]:
        memory, log, block = self._memory, self._memory.log, self._block
        pending = memory.pending = [{} for _ in self._at]
        syncs = self._syncs = [0] * (len(self._at) // WARP_SIZE + 1)
        enter_thread = intrinsics.entering(self._at)

        def enter(thread: int) -> None:
            self._thread = thread
            enter_thread(thread)
            memory.own = pending[thread]
            now = (block, self._epoch, thread, syncs[thread // WARP_SIZE], len(log.entries), len(log.tests))
            log.turns.extend(now)

        return enter

    def _at_barrier(self, block: Block) -> None:
        block.note_divergence()
        self._end_epoch()

    def _end_epoch(self) -> None:
        """All threads have come to a barrier or an end: what they stored is seen, later accesses come after it."""
        self._memory.commit_all(self._in_turn)
        self._epoch += 1

    def _warp_synced(self, warp: int, mask: int) -> None:
        self._memory.commit(
            self._in_turn([thread for thread in self._threads_of(warp) if mask >> thread % WARP_SIZE & 1])
        )
        self._warp_syncs[self._block, warp].append(mask)
        self._syncs[warp] += 1

    def _threads_of(self, warp: int) -> range:
        return range(warp * WARP_SIZE, min((warp + 1) * WARP_SIZE, len(self._at)))

    def _recorder(self, first: int) -> tuple[Callable[[int, Any], Any], ...]:
        """``test``, ``loop`` and ``trips`` of a function whose branches are numbered from ``first`` on."""
        note_test, note_outcome = self._memory.log.tests.append, self._memory.log.outcomes.append
        tests = self._tests

        def test(branch: int, outcome: Any) -> bool:
            truth = bool(outcome)
            note_test(first + branch)
            note_outcome(truth)
            return truth

        def loop(branch: int, outcome: Any) -> bool:
            key = (self._thread, first + branch)
            tests[key] += 1
            if tests[key] > MOST_TESTS:
                raise Deadlock(f"the thread came {MOST_TESTS} times to one test: what it waits for does not come")
            return test(branch, outcome)

        def trips(branch: int, iterable: Any) -> Any:
            if isinstance(iterable, range):
                note_test(first + branch)
                note_outcome(len(iterable))
                return iterable if len(iterable) <= MOST_TESTS else _bounded(iterable)
            return iterable

        return test, loop, trips

    # When all blocks have ended.

    def _report(self, program: Program, typing: Typing, refusals: tuple[Refused, ...]) -> Report:
        log = read_log(self._memory.log, self._memory, program.codes)
        functions = _names(program)
        reading = Reading(log, list(functions.values()), self._memory.segments, self._grid, self._shape)
        moved = map(reading.traffic, traffic(log))
        pieces, origin = in_pieces(log, self._memory.segments)
        raced = [each.whole(origin) for each in races(pieces, self._warp_syncs)]
        never_written = [each.whole(origin) for each in unwritten(pieces, self._warp_syncs)]
        return Report(
            kernel=self._kernel.py_func.__name__,
            grid=self._grid,
            block=self._shape,
            order=self._order,
            late_stores=self._memory.late_stores,
            variables=typing.variables,
            float64=typing.float64,
            refused=refusals,
            races=tuple(sorted(map(reading.race, raced), key=_lines)),
            divergences=tuple(self._divergences),
            unwritten=tuple(map(reading.unwritten, never_written)),
            traffic=tuple(sorted(moved, key=lambda each: (each.line, each.array, each.kind))),
            split_branches=self._split_branches(program),
            global_reads_per_thread=accesses_per_thread(log, (READ, ATOMIC)),
            global_writes_per_thread=accesses_per_thread(log, (WRITE, ATOMIC)),
            float_operations=_operations(program, typing),
            accesses=log,
            segment_names=tuple(each.arrays[0][0] for each in self._memory.segments),
        )

    def _split_branches(self, program: Program) -> tuple[SplitBranch, ...]:
        names = _names(program)
        split = sorted(split_warps(*read_tests(self._memory.log)).items())
        branches = [(*program.branches[number], times) for number, times in split]
        return tuple(SplitBranch(branch.line, names[code], branch.what, times) for branch, code, times in branches)


def _names(program: Program) -> dict[int, str]:
    """Of the kernel, which is empty, and of all its device functions, by the ids of their code."""
    kernel = next(iter(program.codes.values()))
    return {number: function_name(code, kernel) for number, code in program.codes.items()}


def _lines(race: Race) -> tuple[int, int]:
    return race.first.line, race.second.line


def _bounded(trips: range) -> Iterator[int]:
    """The first trips of a loop that may be left early, and an error where it is not."""
    yield from trips[:MOST_TESTS]
    raise Deadlock(f"the thread made {MOST_TESTS} trips of a loop of {len(trips)}: the lab does not wait for its end")


def _operations(program: Program, typing: Typing) -> int:
    """Operations on floats of all threads: those of each line, as often as its suite was entered."""
    return sum(
        hits * sum(typing.float_operations.get((suite.file, line), 0) for line in suite.lines)
        for suite, hits in program.hits()
    )


def _noted(error: Exception, codes: dict[int, CodeType], where: str) -> Exception:
    """The error with the student's frames alone in its traceback, and a note of where it happened.

    The note has the numbers among the variables of the line, or of the lines of the expression.
    """
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
        last, values = frames[-1], frames[-1].tb_frame.f_locals
        code, kernel = last.tb_frame.f_code, next(iter(codes.values()))
        names = [name for name in variables_at(code, last.tb_lasti) if name in values]
        shown = [f"{name} = {values[name]}" for name in names if isinstance(values[name], int | float | np.generic)]
        note += f", {place(last.tb_lineno, function_name(code, kernel))}" + (f": {', '.join(shown)}" if shown else "")
    error.add_note(note)
    return error.with_traceback(chain)
