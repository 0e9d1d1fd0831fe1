"""Accesses to one cell that nothing orders, and reads of cells that nobody wrote."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.lab.accesses import Accesses, Column, by_group, group_numbers
from kernels.lab.block import WARP_SIZE
from kernels.lab.memory import ATOMIC, READ, WRITE, Space

_CONFLICTS = {READ: (WRITE, ATOMIC), WRITE: (WRITE, READ, ATOMIC), ATOMIC: (WRITE, READ)}
"""For each kind of access those that may race with it."""

Mask = NDArray[np.bool_]
Unordered = Callable[[int, int], bool]
WarpSyncs = Mapping[tuple[int, int], Sequence[int]]
"""(block, warp) to the lane masks of its ``syncwarp`` calls, in order."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the log that show one fault, and one of each time that the same places in the source show it."""

    rows: tuple[int, ...]
    every: tuple[int, ...]

    def whole(self, origin: Column) -> "Found":
        """The same in the log of whose rows ``origin`` this log's are pieces."""
        return Found(*(tuple(map(int, origin[list(rows)])) for rows in (self.rows, self.every)))


def races(log: Accesses, warp_syncs: WarpSyncs) -> list[Found]:
    """Pairs of accesses to a cell by two threads, at least one a plain store, that no barrier orders.

    A barrier orders a block's threads, a ``syncwarp`` the lanes of its mask; between blocks nothing does. Two atomics
    never race with each other. One pair is given for each pair of places.
    """
    pairs = [*_within_blocks(log, warp_syncs), *_across_blocks(log)]
    found: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for pair in pairs:
        places = tuple(sorted((int(log.place[row]), int(log.kind[row])) for row in pair))
        found.setdefault(places, []).append(pair)
    return [Found(alike[0], tuple(row for row, _ in alike)) for alike in found.values()]


def _within_blocks(log: Accesses, warp_syncs: WarpSyncs) -> Iterator[tuple[int, int]]:
    together = group_numbers(log.cell, log.block, log.epoch)
    for cell in _suspects(log, together, log.thread, log.space <= Space.SHARED):
        pair = _first_pair(log, cell, log.thread, lambda one, other: _unordered(log, one, other, warp_syncs))
        if pair is not None:
            yield pair


def _across_blocks(log: Accesses) -> Iterator[tuple[int, int]]:
    for cell in _suspects(log, group_numbers(log.cell), log.block, log.space == Space.GLOBAL):
        pair = _first_pair(log, cell, log.block, lambda one, other: True)
        if pair is not None:
            yield pair


def _suspects(log: Accesses, cells: Column, who: Column, among: Mask) -> Iterator[Column]:
    """Rows of each cell that more than one touches, with a store among them that is no atomic or has a plain partner.

    ``cells`` numbers what counts as one cell, ``who`` those that touch it.
    """
    if not len(log):
        return
    stored, plain, several = (np.zeros(int(cells.max()) + 1, bool) for _ in range(3))
    stored[cells[log.kind != READ]] = True
    plain[cells[log.kind != ATOMIC]] = True
    someone = np.zeros(len(stored), np.int64)
    someone[cells] = who
    several[cells[who != someone[cells]]] = True
    chosen = np.flatnonzero((stored & plain & several)[cells] & among)
    for group in by_group(group_numbers(cells[chosen])):
        yield chosen[group]


def _first_pair(log: Accesses, cell: Column, who: Column, unordered: Unordered) -> tuple[int, int] | None:
    """The first two conflicting accesses among a cell's rows, by two of ``who``, that are unordered.

    Each is compared with the others' latest ones alone: what comes after those comes after their earlier ones too.
    """
    latest: tuple[dict[int, int], ...] = ({}, {}, {})
    for row, one, kind in zip(cell.tolist(), who[cell].tolist(), log.kind[cell].tolist(), strict=True):
        for conflicting in _CONFLICTS[kind]:
            for other, before in latest[conflicting].items():
                if other != one and unordered(before, row):
                    return before, row
        latest[kind][one] = row
    return None


def _unordered(log: Accesses, before: int, row: int, warp_syncs: WarpSyncs) -> bool:
    """Whether no ``syncwarp`` orders accesses of two threads between the same barriers of a block.

    The lanes that know of the first one are followed from mask to mask: who syncs with one of them knows it too.
    """
    first, second = int(log.thread[before]), int(log.thread[row])
    warp = first // WARP_SIZE
    if warp != second // WARP_SIZE:
        return True
    between = slice(int(log.warp_sync[before]), int(log.warp_sync[row]))
    knowing = 1 << first % WARP_SIZE
    for mask in warp_syncs.get((int(log.block[row]), warp), ())[between]:
        knowing |= mask if mask & knowing else 0
        if knowing >> second % WARP_SIZE & 1:
            return False
    return True


def unwritten(log: Accesses, warp_syncs: WarpSyncs) -> list[Found]:
    """Reads of shared and local cells that nobody had written: no write before them, and none that races with them.

    One read is given for each place.
    """
    rows = np.flatnonzero((log.space == Space.SHARED) | (log.space == Space.LOCAL))
    if not len(rows):
        return []
    cells, kind = group_numbers(log.cell[rows], log.block[rows]), log.kind[rows]
    first_write = np.full(int(cells.max()) + 1, len(log), np.int64)
    writes = np.flatnonzero(kind == WRITE)[::-1]
    first_write[cells[writes]] = rows[writes]  # of several values for a cell numpy keeps the last, here the first write
    early = rows[(kind != WRITE) & (rows < first_write[cells])]
    found: dict[int, list[int]] = {}
    racing = _write_in_its_epoch(log, early)
    for row in early[racing] if warp_syncs else ():
        racing[early == row] = _races_with_a_write(log, int(row), warp_syncs)
    for row in map(int, early[~racing]):
        found.setdefault(int(log.place[row]), []).append(row)
    return [Found((alike[0],), tuple(alike)) for alike in found.values()]


def _races_with_a_write(log: Accesses, row: int, warp_syncs: WarpSyncs) -> bool:
    """Whether a later write of another thread before the next barrier is unordered with a read."""
    later = slice(row + 1, None)
    alike = (log.cell[later] == log.cell[row]) & (log.block[later] == log.block[row])
    alike &= (log.epoch[later] == log.epoch[row]) & (log.thread[later] != log.thread[row]) & (log.kind[later] == WRITE)
    return any(_unordered(log, row, row + 1 + int(write), warp_syncs) for write in np.flatnonzero(alike))


def _write_in_its_epoch(log: Accesses, early: Column) -> Mask:
    """For each early row, whether another thread of the block writes its cell before the next barrier."""
    if not len(early):
        return np.zeros(0, bool)
    rows = np.flatnonzero(np.isin(log.cell, log.cell[early]))
    together = np.empty(len(log), np.int64)
    together[rows] = group_numbers(log.cell[rows], log.block[rows], log.epoch[rows])
    least = np.full(int(together[rows].max()) + 1, len(log), np.int64)
    most = np.full(len(least), -1, np.int64)
    writes = rows[log.kind[rows] == WRITE]
    np.minimum.at(least, together[writes], log.thread[writes])
    np.maximum.at(most, together[writes], log.thread[writes])
    mine, thread = together[early], log.thread[early]
    return np.asarray((most[mine] >= 0) & ((least[mine] != thread) | (most[mine] != thread)))
