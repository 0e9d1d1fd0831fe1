"""What the lab tells about one launch: as an object, as sentences and as a table."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from kernels.lab.accesses import Accesses
from kernels.lab.block import Divergence, listed
from kernels.lab.inference import Float64
from kernels.lab.lint import Refused
from kernels.lab.memory import ATOMIC
from kernels.lab.order import Dimensions, named, numbered
from kernels.lab.source import LabError, place
from kernels.lab.traffic import SECTOR_BYTES

KINDS = ("read", "write", "atomic")
"""Names of READ, WRITE and ATOMIC."""


_BUDGETS = {
    "sectors": "the launch moves {} sectors of global memory",
    "excess_sectors": "the launch moves {} sectors of global memory more than hold what is asked for",
    "bank_conflict": "an access to shared memory takes up to {} turns at its banks",
    "shared_accesses": "warps come to shared memory {} times",
    "atomics": "warps come to atomic operations {} times",
    "global_reads_per_thread": "a thread reads global memory up to {} times",
    "global_writes_per_thread": "a thread writes global memory up to {} times",
    "float_operations": "the launch does {} operations on floats",
}
"""For each number that may have a budget how to say what a launch has used of it."""


class Fault(AssertionError):
    """A launch that breaks a rule or a budget: the sentences name each place."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thread's access: ``kind`` is "read", "write" or "atomic"; ``block`` and ``thread`` are (x, y, z).

    ``function`` is the device function in which the line stands, with its file where that is another than the
    kernel's, or empty for the kernel itself; so everywhere here.
    ``block_name`` and ``thread_name`` are the same in words, without dimensions that the launch does not have.
    """

    kind: str
    line: int
    function: str
    block: Dimensions
    thread: Dimensions
    block_name: str
    thread_name: str

    def __str__(self) -> str:
        where = place(self.line, self.function)
        return f"{self.kind} by thread {self.thread_name} of block {self.block_name} in {where}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to ``cell`` that nothing orders; the same two places in the source race on so many ``cells``.

    ``first`` is at the place to which a thread comes first. ``lost_update`` is true where both belong to one
    ``a[i] += x``, ``next_turn`` where the second one stands further up: in a loop, whose next turn comes to it.
    """

    cell: str
    first: Access
    second: Access
    cells: int
    lost_update: bool
    next_turn: bool

    def __str__(self) -> str:
        others = self.cells - 1
        more = f" (and {others} more cell{'s' if others > 1 else ''})" if others else ""
        pair = f"{self.first}, {self.second}" + (" in the loop's next turn" if self.next_turn else "")
        if self.lost_update:
            return f"lost update of {self.cell}{more}: {pair}; both may add to the same old value: use cuda.atomic"
        if self.first.block != self.second.block:
            return f"race on {self.cell}{more}: {pair}; nothing orders two blocks"
        return f"race on {self.cell}{more}: {pair}, and no barrier between them"


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A read of ``cell``, which nobody had written; the same place did so ``times`` times."""

    cell: str
    access: Access
    times: int

    def __str__(self) -> str:
        return f"{self.cell} was read before anyone wrote it: {self.access}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one place moved. ``accesses`` counts whole warps; ``sectors`` of 32 bytes against the ``ideal``.

    ``turns`` is the most that one access took at shared memory's banks: 1 is free of conflicts.
    """

    array: str
    kind: str
    line: int
    function: str
    shared: bool
    accesses: int
    sectors: int
    ideal: int
    turns: int


@dataclass(frozen=True, slots=True)
class SplitBranch:
    """A branch at which lanes of one warp disagreed, ``times`` times: the warp then runs both ways.

    ``what`` is "if", "while", or "for" where lanes make different numbers of trips.
    """

    line: int
    function: str
    what: str
    times: int

    def __str__(self) -> str:
        differed = "made different numbers of trips" if self.what == "for" else "went both ways"
        return f"{place(self.line, self.function)}: lanes of a warp {differed} at this {self.what}, {self.times} times"


@dataclass(frozen=True, slots=True)
class Report:
    """One launch of a kernel in the lab. It speaks for this input, this order of threads and these stores alone."""

    kernel: str
    grid: Dimensions
    block: Dimensions
    order: str
    late_stores: bool
    variables: dict[str, str]
    float64: tuple[Float64, ...]
    refused: tuple[Refused, ...]
    races: tuple[Race, ...]
    divergences: tuple[Divergence, ...]
    unwritten: tuple[Unwritten, ...]
    traffic: tuple[Traffic, ...]
    split_branches: tuple[SplitBranch, ...]
    global_reads_per_thread: int
    global_writes_per_thread: int
    float_operations: int
    accesses: Accesses = field(repr=False, compare=False)
    """The log itself, from which ``picture`` draws."""
    segment_names: tuple[str, ...] = field(repr=False, compare=False)
    """The array of each of the log's segments."""

    @property
    def sectors(self) -> int:
        """Sectors of global memory that all warps' accesses moved."""
        return sum(each.sectors for each in self.traffic)

    @property
    def excess_sectors(self) -> int:
        """Sectors moved beyond what would have held the elements that were asked for."""
        return sum(max(each.sectors - each.ideal, 0) for each in self.traffic)

    @property
    def bank_conflict(self) -> int:
        """The most turns that one warp's access took at shared memory's banks: 1 is free of conflicts."""
        return max((each.turns for each in self.traffic), default=0)

    @property
    def shared_accesses(self) -> int:
        """How many times a warp read or wrote shared memory."""
        return sum(each.accesses for each in self.traffic if each.shared)

    @property
    def atomics(self) -> int:
        """How many times a warp came to an atomic operation."""
        return sum(each.accesses for each in self.traffic if each.kind == KINDS[ATOMIC])

    @property
    def arithmetic_intensity(self) -> float:
        """Operations on floats per byte of global memory moved (Williams, Waterman and Patterson 2009)."""
        return self.float_operations / (self.sectors * SECTOR_BYTES) if self.sectors else float("inf")

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong on a GPU, a sentence each."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from (
            f"{place(each.line, each.function)} has {each.what}, which no kernel can hold" for each in self.refused
        )
        yield from map(str, self.races)
        yield from _divergences(self.divergences, numbered(self.block))
        yield from map(str, self.unwritten)
        for birth in self.float64:
            where = place(birth.line, birth.function)
            yield f"{where}: {birth.expression} makes a float64, and the kernel is given none"

    @property
    def costs(self) -> list[str]:
        """What is right and slow, a sentence each: sectors moved for nothing, bank conflicts, split warps."""
        return [*filter(None, map(_cost, self.traffic)), *map(str, self.split_branches)]

    def check(self, **budgets: float) -> None:
        """Raise Fault unless the launch is free of faults and within budgets such as ``global_reads_per_thread=2``.

        A budget is the most that one of the report's numbers may be: ``sectors``, ``excess_sectors``,
        ``bank_conflict``, ``shared_accesses``, ``atomics``, ``global_reads_per_thread``, ``global_writes_per_thread``,
        ``float_operations``.
        """
        over = self.over(**budgets)
        if self.faults or over:
            raise Fault("\n".join([f"{self.kernel}:", *self.faults, *over]))

    def over(self, **budgets: float) -> list[str]:
        """A sentence for each of these budgets that is exceeded."""
        return [_over(name, self._number(name), most) for name, most in budgets.items() if self._number(name) > most]

    def _number(self, name: str) -> float:
        if name not in _BUDGETS:
            raise LabError(f"a report has no number {name} to set a budget for; see the help of check")
        return float(getattr(self, name))

    def __str__(self) -> str:
        head = f"{self.kernel}[{named(self.grid, self.grid)}, {named(self.block, self.block)}]"
        return "\n".join([head, *(self.faults or ["no fault on this input"])])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield str(self)
        if self.variables:
            yield _table(("variable", "type"), self.variables.items())
        rows = [
            (f"{each.line} {each.function}".rstrip(), each.array, each.kind, str(each.accesses), *_moved(each))
            for each in self.traffic
        ]
        yield _table(("line", "array", "what", "warps", "sectors", "ideal", "bank turns"), rows)
        yield from self.costs
        yield f"{self.float_operations} float operations, {self.arithmetic_intensity:.2f} per byte moved"


def _over(name: str, used: float, most: float) -> str:
    words = _BUDGETS[name].format(f"{used:g}")
    return f"{_singular(words)}; {f'{most:g}' if most else 'none'} {'is' if most in (0, 1) else 'are'} allowed"


def _singular(words: str) -> str:
    """The sentence with its plural mended where it speaks of one."""
    return re.sub(r"\b1 (sector|turn|time|operation)s\b", r"1 \1", words)


def _moved(each: Traffic) -> tuple[str, str, str]:
    return ("", "", str(each.turns)) if each.shared else (str(each.sectors), str(each.ideal), "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    return table


def _cost(each: Traffic) -> str:
    """A sentence where an access moves twice what it needs, or more, or has bank conflicts; else nothing."""
    where = f"{place(each.line, each.function)}: {each.accesses} warps' {each.kind}s of {each.array}"
    if each.turns > 1:
        return f"{where} took up to {each.turns} turns: lanes ask one bank for different words"
    if each.sectors >= 2 * max(each.ideal, 1):
        return (
            f"{where} moved {each.sectors} sectors, and {each.ideal} hold the elements: let neighbours read neighbours"
        )
    return ""


def _divergences(divergences: Iterable[Divergence], name: Callable[[int], str]) -> Iterator[str]:
    """A sentence for each place: the time when most threads came there, and how many came the other times."""
    places: dict[tuple[str, int, str], list[Divergence]] = {}
    for each in sorted(divergences, key=lambda found: (found.line, -found.waiting)):
        places.setdefault((each.intrinsic, each.line, each.function), []).append(each)
    for found, *others in places.values():
        yield _divergence(found, sorted({each.waiting for each in others} - {found.waiting}), name)


def _divergence(found: Divergence, other_times: Sequence[int], name: Callable[[int], str]) -> str:
    others = [(_stood(line, found.function, many), many, some) for line, many, some in found.elsewhere]
    elsewhere = ", ".join(f"{many} {stood} ({listed(some, name)})" for stood, many, some in others)
    rest = f", but {elsewhere}" if elsewhere else ", some of which the mask does not name"
    again = f"; other times by {', '.join(map(str, other_times))}" if other_times else ""
    rule = "; all must come to one barrier: guard the work, not the barrier"
    threads = "1 thread" if found.waiting == 1 else f"{found.waiting} threads"
    where = f"{found.intrinsic} in {place(found.line, found.function)}"
    return f"{where} was reached by {threads}{rest}{again}{rule if found.intrinsic.startswith('syncthreads') else ''}"


def _stood(line: int, function: str, many: int) -> str:
    if line:
        return f"stood at {place(line, function)}"
    return "was absent or had ended" if many == 1 else "were absent or had ended"
