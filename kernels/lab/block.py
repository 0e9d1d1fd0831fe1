"""One thread block: its threads as greenlets, switched where they wait for each other.

A thread runs until it waits: at a barrier, in a shuffle or vote, or after an atomic. The block then decides who may go
on. Blocks run one after the other, so a thread that waits for another block waits for ever; that is reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from greenlet import greenlet

from kernels.lab.source import LabError

WARP_SIZE = 32
FULL_MASK = (1 << WARP_SIZE) - 1
MOST_SPINS = 20_000
"""Rounds in which threads do nothing but atomics, until the lab takes it for waiting on somebody who never comes."""

Answer = Callable[[dict[int, Any]], dict[int, Any]]
"""From what each lane brought to what each lane gets; both by lane."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a thread waits for. ``kind`` is "block", "warp" or "turn"; ``name`` the intrinsic, ``line`` where it stands.

    ``mask`` names the lanes that must come (warp only), ``value`` is what the thread brings, and ``answer`` makes from
    all values what each gets back.
    """

    kind: str
    name: str
    line: int
    mask: int = FULL_MASK
    value: Any = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """A barrier, shuffle or vote that some of its threads did not reach together.

    ``waiting`` and ``elsewhere`` say how many threads stood at which line; threads that had ended stand at line 0.
    """

    intrinsic: str
    line: int
    waiting: int
    elsewhere: tuple[tuple[int, int], ...]


class Deadlock(LabError):
    """Threads that wait for each other, or for a block that never runs beside them."""


@dataclass
class Block:
    """The threads of one block, numbered x first, then y, then z. ``order`` puts the runnable ones in turn."""

    shape: tuple[int, int, int]
    order: Callable[[list[int]], Sequence[int]]
    enter: Callable[[int], None]
    """Called before a thread goes on: who is running is global state to the kernel's intrinsics."""
    at_barrier: Callable[[], None]
    """Called when a barrier of the whole block has been reached, before anyone leaves it."""
    at_warp_sync: Callable[[int, int], None]
    """Called for a ``syncwarp``: warp, and mask of the lanes that took part."""
    divergences: set[Divergence] = field(default_factory=set)
    _waits: dict[int, Wait] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _spins: int = 0

    @property
    def coordinates(self) -> list[tuple[int, int, int]]:
        """(x, y, z) of each thread."""
        return [(x, y, z) for z, y, x in product(*map(range, reversed(self.shape)))]

    def run(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run all threads to their ends. Raises what a thread raises, and Deadlock."""
        threads = [greenlet(kernel) for _ in self.coordinates]
        answers: dict[int, tuple[Any, ...]] = dict.fromkeys(range(len(threads)), tuple(arguments))
        while answers:
            for thread in self.order(sorted(answers)):
                self.enter(thread)
                wait = threads[thread].switch(*answers[thread])
                if threads[thread].dead:
                    self._ended.add(thread)
                else:
                    self._waits[thread] = wait
            answers = {thread: (answer,) for thread, answer in self._released().items()}

    def _released(self) -> dict[int, Any]:
        """Who may go on, and what each gets. Empty when all have ended."""
        turns = [thread for thread, wait in self._waits.items() if wait.kind == "turn"]
        released = self._released_warps() | dict.fromkeys(turns)
        self._spins = self._spins + 1 if turns and len(released) == len(turns) else 0
        if self._spins > MOST_SPINS:
            raise Deadlock(
                f"{len(turns)} threads went on with atomics alone for {MOST_SPINS} rounds, the first in line "
                f"{self._waits[turns[0]].line}: what they wait for does not come. Blocks may run one after the other; "
                "let none wait for another"
            )
        if not released and self._waits:
            released = self._released_block()
        for thread in released:
            self._waits.pop(thread, None)
        return released

    def _released_warps(self) -> dict[int, Any]:
        groups = defaultdict(set)
        for thread, wait in self._waits.items():
            if wait.kind == "warp":
                groups[thread // WARP_SIZE, wait.name, wait.line, wait.mask].add(thread)
        released: dict[int, Any] = {}
        for (warp, name, line, mask), here in groups.items():
            if here >= self._living(warp, mask):
                self._note_absent(warp, name, line, mask, here)
                released |= self._answered(here)
                if name == "syncwarp":
                    self.at_warp_sync(warp, mask)
        return released

    def _living(self, warp: int, mask: int) -> set[int]:
        return {thread for thread in self._lanes(warp, mask) if thread not in self._ended}

    def _lanes(self, warp: int, mask: int) -> list[int]:
        """Threads of the warp that the mask names and the block has."""
        size = self.shape[0] * self.shape[1] * self.shape[2]
        first = warp * WARP_SIZE
        return [first + lane for lane in range(WARP_SIZE) if mask >> lane & 1 and first + lane < size]

    def _note_absent(self, warp: int, name: str, line: int, mask: int, here: set[int]) -> None:
        asked = mask & FULL_MASK
        uninvited = [thread for thread in here if not asked >> thread % WARP_SIZE & 1]
        absent = [thread for thread in self._lanes(warp, mask) if thread not in here]
        missing = bin(asked).count("1") - len(self._lanes(warp, mask)) if mask != FULL_MASK else 0
        if absent or uninvited or missing:
            self.divergences.add(Divergence(name, line, len(here), ((0, len(absent) + missing),)))

    def _answered(self, threads: set[int]) -> dict[int, Any]:
        answer = self._waits[min(threads)].answer
        if answer is None:
            return dict.fromkeys(threads)
        first = min(threads) // WARP_SIZE * WARP_SIZE
        got = answer({thread - first: self._waits[thread].value for thread in threads})
        return {thread: got[thread - first] for thread in threads}

    def _released_block(self) -> dict[int, Any]:
        """All that are left wait, none for its turn: let the block's barrier open, or say why it never will."""
        at_barrier = {thread: wait for thread, wait in self._waits.items() if wait.kind == "block"}
        if len(at_barrier) < len(self._waits):
            raise Deadlock(f"threads wait for each other for ever: {self._who_waits_where()}")
        lines: dict[tuple[int, str], int] = defaultdict(int)
        for wait in at_barrier.values():
            lines[wait.line, wait.name] += 1
        if len(lines) > 1 or self._ended:
            (line, name), count = min(lines.items())
            elsewhere = [(other, many) for (other, _), many in sorted(lines.items()) if other != line]
            ended = [(0, len(self._ended))] if self._ended else []
            self.divergences.add(Divergence(name, line, count, (*ended, *elsewhere)))
        self.at_barrier()
        values = {thread: wait.value for thread, wait in at_barrier.items()}
        answer = next(iter(at_barrier.values())).answer
        return answer(values) if answer else dict.fromkeys(values)

    def _who_waits_where(self) -> str:
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for thread, wait in self._waits.items():
            places[wait.name, wait.line].append(thread)
        return "; ".join(f"{_numbers(threads)} at {name} in line {line}" for (name, line), threads in places.items())


def _numbers(threads: Iterable[int]) -> str:
    """``threads 0, 1, 2, ... (16 in all)``."""
    listed = sorted(threads)
    shown = ", ".join(map(str, listed[:3]))
    return f"threads {shown}, ... ({len(listed)} in all)" if len(listed) > 3 else f"threads {shown}"
