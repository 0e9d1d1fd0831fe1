"""From a launch's log to its report: rows put into words."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.lab.accesses import Accesses
from kernels.lab.memory import Segment
from kernels.lab.order import Dimensions, named, point
from kernels.lab.races import Found
from kernels.lab.report import KINDS, Access, Race, Traffic, Unwritten
from kernels.lab.traffic import Moved


@dataclass(frozen=True, slots=True)
class Reading:
    """The log of a launch of ``grid`` blocks of ``shape`` threads, and what its numbers mean.

    ``functions`` are the names of the kernel and its device functions.
    """

    log: Accesses
    functions: Sequence[str]
    segments: Sequence[Segment]
    grid: Dimensions
    shape: Dimensions

    def race(self, found: Found) -> Race:
        """Two rows that race."""
        one, other = found.rows
        lost_update = bool(self.log.place[one] == self.log.place[other] and self.log.kind[one] != self.log.kind[other])
        return Race(self._cell(one), self._access(one), self._access(other), found.cells, lost_update)

    def unwritten(self, found: Found) -> Unwritten:
        """A row that reads what nobody wrote."""
        return Unwritten(self._cell(found.rows[0]), self._access(found.rows[0]), found.cells)

    def traffic(self, moved: Moved) -> Traffic:
        """What one place moved."""
        row = moved.row
        segment = self.segments[self.log.segment[row]]
        name, kind = segment.name(int(self.log.cell[row])), KINDS[self.log.kind[row]]
        counts = (moved.accesses, moved.sectors, moved.ideal, moved.turns)
        return Traffic(name, kind, int(self.log.line[row]), self._function(row), moved.turns > 0, *counts)

    def _cell(self, row: int) -> str:
        segment: Segment = self.segments[self.log.segment[row]]
        return segment.describe(int(self.log.cell[row]))

    def _function(self, row: int) -> str:
        number = self.log.function[row]
        return self.functions[number] if number else ""

    def _access(self, row: int) -> Access:
        block, thread = int(self.log.block[row]), int(self.log.thread[row])
        kind, line = KINDS[self.log.kind[row]], int(self.log.line[row])
        at = point(block, self.grid), point(thread, self.shape)
        names = named(at[0], self.grid), named(at[1], self.shape)
        return Access(kind, line, self._function(row), *at, *names)
