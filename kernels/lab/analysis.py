"""What a launch's log tells: races, sectors moved, bank conflicts, warps that split at branches.

All functions take rows ``[accesses, 8]`` in the columns of ``COLUMNS``, in the order in which the accesses happened.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.lab import memory
from kernels.lab.block import WARP_SIZE
from kernels.lab.memory import ATOMIC, READ, SHARED

Rows = NDArray[np.int64]

COLUMNS = (*memory.COLUMNS, "block", "epoch")
CODE, INSTRUCTION, THREAD, ADDRESS, KIND, WARP_SYNC, BLOCK, EPOCH = range(len(COLUMNS))

SECTOR_BYTES = 32
"""The least that moves between memory and the GPU's caches (CUDA C++ Best Practices Guide, coalesced access)."""
BANKS, BANK_BYTES = 32, 4
"""Shared memory's banks, and their width (CUDA C++ Programming Guide, compute capability 5.x and later)."""
_MOST_PARTNERS = 64
"""A cell's accesses are compared with this many that write; one race of a cell is enough to report."""

WarpSyncs = Mapping[tuple[int, int], Sequence[int]]
"""(block, warp) to the lane masks of its ``syncwarp`` calls, in order."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two rows that touch one cell without order, and on how many cells the same two instructions do so."""

    first: int
    second: int
    cells: int


def races(rows: Rows, warp_syncs: WarpSyncs) -> list[Conflict]:
    """Pairs of accesses to a cell by two threads, at least one a plain store, that no barrier orders.

    A barrier orders a block's threads, a ``syncwarp`` the lanes of its mask; between blocks nothing does. Two atomics
    never race with each other. One pair is given for each pair of instructions.
    """
    found: dict[tuple[int, ...], Conflict] = {}
    within = (ADDRESS, BLOCK, EPOCH)
    across = (ADDRESS,)
    for keys, select in ((within, slice(None)), (across, rows[:, ADDRESS] < SHARED)):
        numbers = np.arange(len(rows))[select]
        for cell in _suspects(rows, numbers, keys):
            pair = _unordered(rows, cell, warp_syncs, other_blocks=keys is across)
            if pair is not None:
                sites = tuple(int(x) for row in pair for x in rows[row, [CODE, INSTRUCTION]])
                before = found.get(sites, Conflict(*pair, cells=0))
                found[sites] = Conflict(before.first, before.second, before.cells + 1)
    return list(found.values())


def _suspects(rows: Rows, numbers: NDArray[np.intp], keys: Sequence[int]) -> Iterator[NDArray[np.intp]]:
    """Groups of rows alike in ``keys`` that hold more than one thread or block, a store, and not atomics alone."""
    order, starts = _grouped(rows[numbers], keys)
    if not len(starts):
        return
    ordered = rows[numbers[order]]
    who = ordered[:, BLOCK] * (ordered[:, THREAD].max() + 1) + ordered[:, THREAD]
    several = np.minimum.reduceat(who, starts) != np.maximum.reduceat(who, starts)
    stores = np.maximum.reduceat(ordered[:, KIND], starts) != READ
    plain = np.minimum.reduceat(ordered[:, KIND], starts) != ATOMIC
    ends = np.append(starts[1:], len(order))
    for group in np.flatnonzero(several & stores & plain):
        yield numbers[np.sort(order[starts[group] : ends[group]])]


def _unordered(rows: Rows, cell: NDArray[np.intp], warp_syncs: WarpSyncs, other_blocks: bool) -> tuple[int, int] | None:
    """The first two conflicting accesses among ``cell``'s rows."""
    writers = [row for row in cell if rows[row, KIND] != READ][:_MOST_PARTNERS]
    for one in cell:
        for other in writers:
            if _conflict(rows[one], rows[other], warp_syncs, other_blocks):
                return (int(min(one, other)), int(max(one, other)))
    return None


def _conflict(one: Rows, other: Rows, warp_syncs: WarpSyncs, other_blocks: bool) -> bool:
    if one[KIND] == other[KIND] and one[KIND] in (READ, ATOMIC):
        return False
    if other_blocks:
        return bool(one[BLOCK] != other[BLOCK])
    if one[THREAD] == other[THREAD]:
        return False
    warp = one[THREAD] // WARP_SIZE
    if warp != other[THREAD] // WARP_SIZE:
        return True
    earlier, later = sorted((int(one[WARP_SYNC]), int(other[WARP_SYNC])))
    lanes = 1 << int(one[THREAD]) % WARP_SIZE | 1 << int(other[THREAD]) % WARP_SIZE
    between = warp_syncs.get((int(one[BLOCK]), int(warp)), ())[earlier:later]
    return not any(mask & lanes == lanes for mask in between)


@dataclass(frozen=True, slots=True)
class Moved:
    """An instruction's accesses to memory, warp by warp: ``row`` is one of them.

    ``sectors`` were moved where ``ideal`` would have held what was asked for, in ``accesses`` of whole warps. In
    shared memory, where ``degree`` counts, a warp's access takes as many turns as its busiest bank has words.
    """

    row: int
    accesses: int
    sectors: int
    ideal: int
    degree: int


def traffic(rows: Rows, itemsizes: NDArray[np.int64]) -> list[Moved]:
    """Per instruction: sectors of global memory moved, and turns at shared memory's banks.

    itemsizes ``[accesses]``: bytes of each row's element. The k-th time that a thread comes to an instruction is put
    together with the k-th time of its warp's other lanes.
    """
    if not len(rows):
        return []
    access = np.column_stack((rows[:, [CODE, INSTRUCTION, BLOCK]], rows[:, THREAD] // WARP_SIZE, _turn(rows)))
    order, starts = _grouped(access, range(access.shape[1]))
    warp_access = np.empty(len(rows), np.int64)
    warp_access[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))
    sectors = _distinct(warp_access, rows[:, ADDRESS] // SECTOR_BYTES, len(starts))
    cells = _distinct(warp_access, rows[:, ADDRESS], len(starts))
    size = itemsizes[order[starts]]
    ideal = -(-cells * size // SECTOR_BYTES)
    degree = _turns_at_banks(rows, itemsizes, warp_access, len(starts))
    site_order, site_starts = _grouped(rows, (CODE, INSTRUCTION, KIND))
    site_of = np.empty(len(rows), np.int64)
    site_of[site_order] = np.repeat(np.arange(len(site_starts)), np.diff(np.append(site_starts, len(rows))))
    first_rows = order[starts]
    result = []
    for site, start in enumerate(site_starts):
        mine = site_of[first_rows] == site
        totals = (int(mine.sum()), int(sectors[mine].sum()), int(ideal[mine].sum()), int(degree[mine].max()))
        result.append(Moved(int(site_order[start]), *totals))
    return result


def _turns_at_banks(rows: Rows, itemsizes: NDArray[np.int64], warp_access: NDArray[np.int64], count: int) -> Rows:
    """For each warp access, the most different words that one bank is asked for; elements of 8 bytes by half warps."""
    half = np.where(itemsizes > BANK_BYTES, rows[:, THREAD] % WARP_SIZE // (WARP_SIZE // 2), 0)
    words, word = np.unique(rows[:, ADDRESS] // BANK_BYTES, return_inverse=True)
    asked = np.unique((warp_access * 2 + half) * len(words) + word)  # each word of each half warp's access once
    bank = asked // len(words) * BANKS + words[asked % len(words)] % BANKS
    banks, at_bank = np.unique(bank, return_counts=True)
    degree = np.zeros(count, np.int64)
    np.maximum.at(degree, banks // (2 * BANKS), at_bank)
    return degree


def split_warps(branches: Rows) -> Counter[int]:
    """How often lanes of a warp took both ways at a branch, by the branch's number.

    branches ``[tests, 4]``: block, thread, branch, outcome.
    """
    if not len(branches):
        return Counter()
    block, thread, branch, outcome = branches.T
    turn = _occurrence(np.column_stack((block, thread, branch)))
    keys = np.column_stack((branch, block, thread // WARP_SIZE, turn))
    order, starts = _grouped(keys, range(4))
    ordered = outcome[order]
    split = np.minimum.reduceat(ordered, starts) != np.maximum.reduceat(ordered, starts)
    return Counter(int(each) for each in branch[order[starts]][split])


def accesses_per_thread(rows: Rows, kinds: Sequence[int]) -> int:
    """The most accesses of these kinds that one thread makes."""
    chosen = rows[np.isin(rows[:, KIND], kinds)]
    if not len(chosen):
        return 0
    _, starts = _grouped(chosen, (BLOCK, THREAD))
    return int(np.diff(np.append(starts, len(chosen))).max())


def _turn(rows: Rows) -> NDArray[np.int64]:
    """How often the same thread had come to the same instruction before, for each row."""
    return _occurrence(rows[:, [BLOCK, THREAD, CODE, INSTRUCTION]])


def _occurrence(keys: Rows) -> NDArray[np.int64]:
    order, starts = _grouped(keys, range(keys.shape[1]))
    lengths = np.diff(np.append(starts, len(order)))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return turn


def _grouped(rows: Rows, keys: Sequence[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """An order of the rows that puts those alike in ``keys`` together, oldest first, and where each group starts."""
    order = np.lexsort(tuple(rows[:, key] for key in reversed(keys)))
    ordered = rows[order][:, list(keys)]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return order, np.flatnonzero(new)


def _distinct(group: NDArray[np.int64], value: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Number of different values in each of ``count`` groups."""
    values, number = np.unique(value, return_inverse=True)
    pairs = np.unique(group * len(values) + number)
    return np.bincount(pairs // len(values), minlength=count)
