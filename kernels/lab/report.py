"""What the lab tells about one launch: as an object, as sentences and as a table."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from kernels.lab.analysis import SECTOR_BYTES
from kernels.lab.block import Divergence
from kernels.lab.inference import Float64
from kernels.lab.lint import Refused

KINDS = ("read", "write", "atomic")
Dimensions = tuple[int, int, int]


class Fault(AssertionError):
    """A launch that breaks a rule or a budget: the sentences name each place."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thread's access: ``kind`` is "read", "write" or "atomic"; ``block`` and ``thread`` are (x, y, z)."""

    kind: str
    line: int
    block: Dimensions
    thread: Dimensions

    def __str__(self) -> str:
        return f"{self.kind} by thread {_short(self.thread)} of block {_short(self.block)} in line {self.line}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to ``cell`` that nothing orders; the same two instructions race on so many ``cells``."""

    cell: str
    first: Access
    second: Access
    cells: int

    def __str__(self) -> str:
        more = f" (and {self.cells - 1} more cells)" if self.cells > 1 else ""
        return f"race on {self.cell}{more}: {self.first}, {self.second}, and no barrier between them"


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A read of ``cell``, which nobody had written; the same instruction did so ``times`` times."""

    cell: str
    access: Access
    times: int

    def __str__(self) -> str:
        return f"{self.cell} was read before anyone wrote it: {self.access}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one instruction moved. ``accesses`` counts warps; ``sectors`` of 32 bytes against the ``ideal``.

    ``turns`` is the most that one access took at shared memory's banks: 1 is free of conflicts.
    """

    array: str
    kind: str
    line: int
    shared: bool
    accesses: int
    sectors: int
    ideal: int
    turns: int


@dataclass(frozen=True, slots=True)
class SplitBranch:
    """A test at which lanes of one warp disagreed, ``times`` times: the warp then runs both ways."""

    line: int
    times: int


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

    @property
    def sectors(self) -> int:
        """Sectors of global memory that all warps' accesses moved."""
        return sum(each.sectors for each in self.traffic if not each.shared)

    @property
    def arithmetic_intensity(self) -> float:
        """Operations on floats per byte of global memory moved (Williams, Waterman and Patterson 2009)."""
        return self.float_operations / (self.sectors * SECTOR_BYTES) if self.sectors else float("inf")

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong on a GPU, a sentence each."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from (f"line {each.line} has {each.what}, which no kernel can hold" for each in self.refused)
        yield from map(str, self.races)
        yield from map(_divergence, self.divergences)
        yield from map(str, self.unwritten)
        for birth in self.float64:
            yield f"line {birth.line}: {birth.expression} makes a float64 in a kernel that is given none"

    def check(self, **budgets: int) -> None:
        """Raise Fault unless the launch is free of faults and within budgets such as ``global_reads_per_thread=2``."""
        over = [
            f"{name.replace('_', ' ')}: {getattr(self, name)}, and the budget is {most}"
            for name, most in budgets.items()
            if getattr(self, name) > most
        ]
        if self.faults or over:
            raise Fault("\n".join([f"{self.kernel}:", *self.faults, *over]))

    def __str__(self) -> str:
        head = f"{self.kernel}[{_short(self.grid)}, {_short(self.block)}]"
        return "\n".join([head, *(self.faults or ["no fault on this input"])])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield str(self)
        table = Table("line", "array", "what", "warps", "sectors", "ideal", "turns")
        for each in self.traffic:
            moved = ("", "", str(each.turns)) if each.shared else (str(each.sectors), str(each.ideal), "")
            table.add_row(str(each.line), each.array, each.kind, str(each.accesses), *moved)
        yield table
        for branch in self.split_branches:
            yield f"line {branch.line}: lanes of a warp went both ways {branch.times} times"
        yield f"{self.float_operations} float operations, {self.arithmetic_intensity:.2f} per byte moved"


def _divergence(found: Divergence) -> str:
    elsewhere = ", ".join(
        f"{count} {'had ended' if not line else f'at line {line}'}" for line, count in found.elsewhere
    )
    return f"{found.intrinsic} in line {found.line} was reached by {found.waiting} threads, but {elsewhere}"


def _short(point: Dimensions) -> str:
    """``3``, or ``(3, 1)``: without trailing dimensions of one or zero that say nothing."""
    x, y, z = point
    if z not in (0, 1):
        return f"({x}, {y}, {z})"
    return f"({x}, {y})" if y not in (0, 1) else str(x)
