"""From a launch's log to its report: rows put into words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        """Two rows that race, in the order in which a thread comes to their places, or else in that of the lines."""
        one, other = sorted(found.rows, key=lambda row: (self.log.function[row], self.log.line[row]))
        lost_update = bool(self.log.place[one] == self.log.place[other] and self.log.kind[one] != self.log.kind[other])
        turned = self._comes_first(other, one)
        first, second = (other, one) if turned else (one, other)
        same_function, same_line = (column[one] == column[other] for column in (self.log.function, self.log.line))
        next_turn = turned and bool(same_function and not same_line)
        cells = len(np.unique(self.log.cell[list(found.every)]))
        return Race(self._cell(one), self._access(first), self._access(second), cells, lost_update, next_turn)

    def _comes_first(self, row: int, other: int) -> bool:
        """Whether a thread comes to a row's place before it comes to the other row's, between two barriers."""
        log = self.log
        if log.block[row] != log.block[other] or log.place[row] == log.place[other]:
            return False
        here = (log.block == log.block[row]) & (log.epoch == log.epoch[row])
        for thread in (log.thread[row], log.thread[other]):
            own = here & (log.thread == thread)
            first, second = (np.flatnonzero(own & (log.place == log.place[at])) for at in (row, other))
            if len(first) and len(second):
                return bool(first[0] < second[0])
        return False

    def unwritten(self, found: Found) -> Unwritten:
        """A row that reads what nobody wrote."""
        return Unwritten(self._cell(found.rows[0]), self._access(found.rows[0]), len(found.every))

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
