"""A launch's log as columns: one row for each access, in the order in which they happened."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import gcd
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.lab.block import WARP_SIZE
from kernels.lab.memory import KIND_SHIFT, Log, Memory, Segment
from kernels.lab.source import line_of

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Columns ``[accesses]``. ``place`` numbers the places in the source, ``function`` the kernel (0) and its device
    functions, ``segment`` the memory's segments.

    ``cell`` numbers all cells of memory, shared ones alike in each block; ``address`` is in bytes within ``space``;
    ``kind`` is READ, WRITE or ATOMIC; ``epoch`` counts the block's barriers, ``warp_sync`` the warp's.
    """

    place: Column
    line: Column
    function: Column
    kind: Column
    cell: Column
    segment: Column
    space: Column
    address: Column
    itemsize: Column
    block: Column
    epoch: Column
    thread: Column
    warp_sync: Column

    def __len__(self) -> int:
        return len(self.cell)

    def take(self, rows: Any) -> "Accesses":
        """The chosen rows: a mask, a slice or numbers."""
        return Accesses(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def warp(self) -> Column:
        """The warp's number in its block."""
        return self.thread // WARP_SIZE

    def warp_accesses(self, rows: Column) -> Column:
        """Numbers the accesses of whole warps among these rows.

        A thread's k-th visit to a place goes with the k-th visits of its warp's other lanes.
        """
        place, block, thread = self.place[rows], self.block[rows], self.thread[rows]
        visit = occurrence(block, thread, place)
        return group_numbers(place, block, thread // WARP_SIZE, visit)


def read_log(log: Log, memory: Memory, codes: Mapping[int, CodeType]) -> Accesses:
    """All accesses of a launch. ``codes`` are the kernel's code objects by id."""
    sites, entries = np.array(log.sites, np.int64), np.array(log.entries, np.int64)
    kind, cell = entries >> KIND_SHIFT, entries & ((1 << KIND_SHIFT) - 1)
    turns = np.array(log.turns, np.int64).reshape(-1, 6)
    block, epoch, thread, warp_sync = _expanded(turns[:, :4], turns[:, 4], len(entries))
    first = np.array([each.first_cell for each in memory.segments], np.int64)
    segment = np.searchsorted(first, cell, side="right") - 1
    space, address, itemsize = (
        np.array(each, np.int64)[segment]
        for each in (
            [each.space for each in memory.segments],
            [each.first_address for each in memory.segments],
            [each.values.itemsize for each in memory.segments],
        )
    )
    place, line, function = _places(sites, codes)
    address = address + (cell - first[segment]) * itemsize
    columns = (place, line, function, kind, cell, segment, space, address, itemsize, block, epoch, thread, warp_sync)
    return Accesses(*columns)


def in_pieces(log: Accesses, segments: Sequence[Segment]) -> tuple[Accesses, Column]:
    """A log in which accesses to the same memory are to the same cells, and for each of its rows the log's own.

    Where segments of several types are one memory, an access to an element becomes one to each of its pieces.
    """
    number = Counter((each.space, each.first_address) for each in segments if each.values.size)
    overlaid = [at for at, each in enumerate(segments) if number[each.space, each.first_address] > 1]
    if not overlaid or not len(log):
        return log, np.arange(len(log))
    size = gcd(*(segments[at].values.itemsize for at in overlaid))
    here = np.isin(log.segment, overlaid)
    pieces = np.where(here, log.itemsize // size, 1)
    rows = np.repeat(np.arange(len(log)), pieces)
    piece = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    split = log.take(rows)
    numbered = int(log.cell.max()) + 1 + (split.address - segments[overlaid[0]].first_address) // size + piece
    return replace(split, cell=np.where(here[rows], numbered, split.cell)), rows


def read_tests(log: Log) -> tuple[Column, Column, Column, Column]:
    """Columns ``[tests]``: block, thread, branch, outcome."""
    turns = np.array(log.turns, np.int64).reshape(-1, 6)
    block, thread = _expanded(turns[:, [0, 2]], turns[:, 5], len(log.tests))
    return block, thread, np.array(log.tests, np.int64), np.array(log.outcomes, np.int64)


def _expanded(values: Column, starts: Column, count: int) -> Column:
    """Columns ``[values, count]``, each row of values repeated from its start up to the next one's."""
    return np.repeat(values, np.diff(np.append(starts, count)), axis=0).T


def _places(sites: Column, codes: Mapping[int, CodeType]) -> tuple[Column, Column, Column]:
    """Each site's place in the source, numbered, its line, and its function, numbered in the order of ``codes``.

    One place may have several sites: CPython compiles the test of a loop twice, and reports a specialised instruction
    under another offset.
    """
    different, number = np.unique(sites, return_inverse=True)
    ids = np.array(sorted(codes), np.int64)
    owner = ids[np.searchsorted(ids, different, side="right") - 1] if len(different) else different
    positions = {id(code): list(code.co_positions()) for code in codes.values()}
    functions = {code: function for function, code in enumerate(codes)}
    places: dict[Any, int] = {}
    rows = np.empty((len(different), 3), np.int64)
    for row, code, site in zip(rows, owner.tolist(), different.tolist(), strict=True):
        at = (code, positions[code][(site - code) // 2])
        row[:] = places.setdefault(at, len(places)), line_of(codes[code], site - code), functions[code]
    place, line, function = rows[number].T
    return place, line, function


def group_numbers(*keys: Column) -> Column:
    """Numbers from 0, alike for rows that are alike in all keys, in the order of the keys."""
    number, span = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        size = int(key.max()) + 1 if len(key) else 1
        if span * size > _SPREAD * len(key):
            number = _dense(number, span)
            span = int(number.max()) + 1 if len(number) else 1
        if size > 1:
            number = number * size + key
        span *= size
    return _dense(number, span)


_SPREAD = 8
"""Values up to so many times their count are ranked by a table, others by sorting."""


def _dense(values: Column, span: int) -> Column:
    """Values below ``span`` replaced by their ranks among the different ones."""
    if span > _SPREAD * len(values):
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    here = np.zeros(span, np.int64)
    here[values] = 1
    return (np.cumsum(here) - 1)[values]


def occurrence(*keys: Column) -> Column:
    """How many rows before are alike in all keys, for each row."""
    group = group_numbers(*keys)
    order = _stable_order(group)
    ordered = group[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    turn = np.empty(len(group), np.int64)
    turn[order] = np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))
    return turn


def _stable_order(group: Column) -> Column:
    """numpy sorts small types several times as fast."""
    most = int(group.max()) if len(group) else 0
    return np.argsort(group.astype(np.min_scalar_type(most)), kind="stable")


def distinct(group: Column, value: Column) -> Column:
    """Number of different values in each group. Groups are numbered from 0."""
    if not len(group):
        return np.zeros(0, np.int64)
    low, span = int(value.min()), int(value.max() - value.min()) + 1
    pairs = np.sort(group * span + (value - low))
    first = np.diff(pairs, prepend=-1) != 0
    return np.bincount(pairs[first] // span, minlength=int(group.max()) + 1)


def first_rows(group: Column) -> Column:
    """For each group, numbered from 0, its first row."""
    first = np.zeros(int(group.max()) + 1 if len(group) else 0, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]  # of several values for a place numpy keeps the last
    return first


def by_group(group: Column) -> Sequence[Column]:
    """For each group, numbered from 0, its rows in order."""
    order = _stable_order(group)
    return np.split(order, np.cumsum(np.bincount(group))[:-1]) if len(group) else []
