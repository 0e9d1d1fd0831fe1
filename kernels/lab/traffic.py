"""What a launch moved: sectors of global memory, turns at shared memory's banks, warps that split at branches.

A warp's access moves whole sectors of 32 bytes (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"),
and takes as many turns in shared memory as its busiest bank is asked for different words (CUDA C++ Programming Guide,
"Shared Memory" of compute capability 5.x and later: 32 banks, 4 bytes wide). Caches are not modelled.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.lab.accesses import Accesses, Column, distinct, first_rows, group_numbers, occurrence
from kernels.lab.block import WARP_SIZE
from kernels.lab.memory import Space

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4


@dataclass(frozen=True, slots=True)
class Moved:
    """Accesses to one array at one place, warp by warp: ``row`` is one of them.

    ``sectors`` were moved where ``ideal`` would have held what was asked for, in ``accesses`` of whole warps.
    ``turns`` is the most that one access took at shared memory's banks. Of sectors and turns one is 0.
    """

    row: int
    accesses: int
    sectors: int
    ideal: int
    turns: int


def traffic(log: Accesses) -> list[Moved]:
    """Sectors of global memory, and turns at shared memory's banks, for each place, array and kind of access."""
    moved = []
    for space in (Space.GLOBAL, Space.SHARED):
        rows = np.flatnonzero(log.space == space)
        if len(rows):
            moved += _by_place(log, rows, shared=space is Space.SHARED)
    return moved


def _by_place(log: Accesses, rows: Column, shared: bool) -> list[Moved]:
    access = log.warp_accesses(rows)
    first = rows[first_rows(access)]
    place = group_numbers(log.place[first], log.segment[first], log.kind[first])
    accesses = np.bincount(place)
    nothing: Column = np.zeros(len(accesses), np.int64)
    if shared:
        turns = nothing.copy()
        np.maximum.at(turns, place, _turns_at_banks(log, rows, access))
        sums = [nothing, nothing, turns]
    else:
        sums = [*(_summed(place, each) for each in _sectors(log, rows, access, first)), nothing]
    columns = zip(first[first_rows(place)], accesses, *sums, strict=True)
    return [Moved(*map(int, each)) for each in columns]


def _sectors(log: Accesses, rows: Column, access: Column, first: Column) -> tuple[Column, Column]:
    """For each warp access the sectors moved, and those that would have held as many elements."""
    sectors = distinct(access, log.address[rows] // SECTOR_BYTES)
    elements = distinct(access, log.cell[rows])
    return sectors, -(-elements * log.itemsize[first] // SECTOR_BYTES)


def _turns_at_banks(log: Accesses, rows: Column, access: Column) -> Column:
    """For each warp access, the most different words that one bank is asked for; elements of 8 bytes by half warps."""
    lane = log.thread[rows] % WARP_SIZE
    half = np.where(log.itemsize[rows] > BANK_BYTES, lane // (WARP_SIZE // 2), 0)
    word = log.address[rows] // BANK_BYTES
    at_bank = distinct((access * 2 + half) * BANKS + word % BANKS, word // BANKS)
    padded = np.zeros((int(access.max()) + 1) * 2 * BANKS, np.int64)
    padded[: len(at_bank)] = at_bank
    return np.asarray(padded.reshape(-1, 2 * BANKS).max(axis=1))


def _summed(group: Column, values: Column) -> Column:
    return np.bincount(group, weights=values).astype(np.int64)


def split_warps(block: Column, thread: Column, branch: Column, outcome: Column) -> Counter[int]:
    """How often lanes of a warp that came to a branch together had different outcomes, by the branch's number."""
    if not len(branch):
        return Counter()
    together = group_numbers(branch, block, thread // WARP_SIZE, occurrence(block, thread, branch))
    first = first_rows(together)
    split = np.zeros(len(first), bool)
    split[together[outcome != outcome[first[together]]]] = True
    return Counter(branch[first[split]].tolist())


def accesses_per_thread(log: Accesses, kinds: Sequence[int]) -> int:
    """The most accesses to global memory of these kinds that one thread makes."""
    chosen = np.flatnonzero(np.isin(log.kind, kinds) & (log.space == Space.GLOBAL))
    return int(np.bincount(group_numbers(log.block[chosen], log.thread[chosen])).max()) if len(chosen) else 0
