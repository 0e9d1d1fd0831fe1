"""One thread block: its threads as greenlets, switched where they wait for each other.

A thread runs until it waits: at a barrier, in a shuffle or vote, or after an atomic. The block then decides who may go
on. Blocks run one after the other, so a thread that waits for another block waits for ever; that is reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import FrameType
from typing import Any

from greenlet import greenlet

from kernels.lab.source import LabError

WARP_SIZE = 32
FULL_MASK = (1 << WARP_SIZE) - 1
MOST_SPINS = 20_000
"""Rounds in which threads do nothing but atomics, until the lab takes it for waiting on somebody who never comes."""

Answer = Callable[[dict[int, Any]], dict[int, Any]]
"""From what each lane brought to what each lane gets; both by lane, or by thread where a block votes."""


class Kind(Enum):
    """For whom a thread waits: all threads of its block, lanes of its warp, or only its next turn."""

    BLOCK = "block"
    WARP = "warp"
    TURN = "turn"


@dataclass(slots=True, eq=False)
class Wait:
    """What a thread waits for: ``name`` is the intrinsic that ``frame`` calls.

    ``mask`` names the lanes that must come (warp only), ``value`` is what the thread brings, and ``answer`` makes from
    all values each thread's ``result``.
    """

    kind: Kind
    name: str
    frame: FrameType
    mask: int = FULL_MASK
    value: Any = None
    answer: Answer | None = None
    result: Any = None

    @property
    def line(self) -> int:
        """Where the intrinsic is called. It is right while the thread waits."""
        return self.frame.f_lineno

    @property
    def site(self) -> tuple[str, int, int]:
        """The intrinsic and the call: threads that wait together agree in it."""
        return self.name, id(self.frame.f_code), self.frame.f_lasti


@dataclass(frozen=True, slots=True)
class Divergence:
    """A barrier, shuffle or vote that some of its threads did not reach together.

    ``waiting`` threads stood there, such as those in ``examples``; ``elsewhere`` says how many stood at which line,
    and which some of them are. Threads that had ended, or that the block does not have, are at line 0.
    """

    intrinsic: str
    line: int
    waiting: int
    examples: tuple[int, ...]
    elsewhere: tuple[tuple[int, int, tuple[int, ...]], ...]


class Deadlock(LabError):
    """Threads that wait for each other, or for a block that never runs beside them."""


@dataclass(slots=True)
class Block:
    """A block of ``size`` threads, numbered x first, then y, then z. ``in_turn`` puts the runnable ones in order."""

    size: int
    in_turn: Callable[[list[int]], Sequence[int]]
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

    def run(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run all threads to their ends. Raises what a thread raises, and Deadlock; the others are ended then."""
        threads = [greenlet(partial(kernel, *arguments)) for _ in range(self.size)]
        context = copy_context()  # numpy's handling of overflow is kept in it
        for thread in threads:
            thread.gr_context = context
        try:
            self._run(threads)
        finally:
            for thread in threads:
                if not thread.dead:
                    thread.throw()

    def _run(self, threads: Sequence[greenlet]) -> None:
        enter, waits = self.enter, self._waits
        resume = [thread.switch for thread in threads]
        runnable = list(range(self.size))
        while runnable:
            for thread in self.in_turn(runnable):
                enter(thread)
                wait = resume[thread]()
                if wait.__class__ is Wait:
                    waits[thread] = wait
                else:
                    self._ended.add(thread)
            runnable = self._released()

    def _released(self) -> list[int]:
        """Who may go on, in ascending order. Empty when all have ended."""
        kinds = {wait.kind for wait in self._waits.values()}
        released = self._released_warps() if Kind.WARP in kinds else []
        if Kind.TURN in kinds:
            turns = [thread for thread, wait in self._waits.items() if wait.kind is Kind.TURN]
            self._count_spins(turns, bool(released))
            released += turns
        if not released and self._waits:
            released = self._released_block()
            self._waits.clear()
        for thread in released:
            self._waits.pop(thread, None)
        return sorted(released)

    def _count_spins(self, turns: Sequence[int], others_go_on: bool) -> None:
        self._spins = 0 if others_go_on else self._spins + 1
        if self._spins > MOST_SPINS:
            first = self._waits[turns[0]]
            raise Deadlock(
                f"{listed(turns)} went on with {first.name} alone for {MOST_SPINS} rounds, the first in line "
                f"{first.line}: what they wait for does not come. Blocks may run one after the other; let none wait "
                "for another"
            )

    # Warps.

    def _released_warps(self) -> list[int]:
        groups: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        for thread, wait in self._waits.items():
            if wait.kind is Kind.WARP:
                groups[thread // WARP_SIZE, wait.site, wait.mask].add(thread)
        released: list[int] = []
        for (warp, _, mask), here in groups.items():
            if here >= self._living(warp, mask):
                self._release_lanes(warp, mask, here)
                released += here
        return released

    def _release_lanes(self, warp: int, mask: int, here: set[int]) -> None:
        wait = self._waits[min(here)]
        self._note_absent(warp, mask, here, wait)
        if wait.answer is not None:
            self._answer(here, wait.answer, first=warp * WARP_SIZE)
        if wait.name == "syncwarp":
            self.at_warp_sync(warp, mask)

    def _living(self, warp: int, mask: int) -> set[int]:
        return {thread for thread in self._lanes(warp, mask) if thread not in self._ended}

    def _lanes(self, warp: int, mask: int) -> list[int]:
        """Threads of the warp that the mask names and the block has."""
        first = warp * WARP_SIZE
        return [first + lane for lane in range(WARP_SIZE) if mask >> lane & 1 and first + lane < self.size]

    def _note_absent(self, warp: int, mask: int, here: set[int], wait: Wait) -> None:
        """Lanes that the mask names and that are not here, or the other way round. A full mask names whom there is."""
        named = {warp * WARP_SIZE + lane for lane in range(WARP_SIZE) if mask >> lane & 1}
        wanted = named if mask & FULL_MASK != FULL_MASK else set(self._lanes(warp, mask))
        absent, uninvited = sorted(wanted - here), here - wanted
        if absent or uninvited:
            elsewhere = ((0, len(absent), tuple(absent[:3])),) if absent else ()
            name = f"{wait.name} with mask {mask & FULL_MASK:#x}"
            self.divergences.add(Divergence(name, wait.line, len(here), tuple(sorted(here)[:3]), elsewhere))

    def _answer(self, threads: Iterable[int], answer: Answer, first: int) -> None:
        results = answer({thread - first: self._waits[thread].value for thread in threads})
        for thread in threads:
            self._waits[thread].result = results[thread - first]

    # The whole block.

    def _released_block(self) -> list[int]:
        """All that are left wait, none for its turn: let the block's barrier open, or say why it never will."""
        released = list(self._waits)
        if any(wait.kind is not Kind.BLOCK for wait in self._waits.values()):
            raise Deadlock(f"threads wait for each other for ever: {self._who_waits_where()}")
        if self._ended or len({wait.frame.f_lasti for wait in self._waits.values()}) > 1:
            self._note_divergence()
        self.at_barrier()
        answer = self._waits[released[0]].answer
        if answer is not None:
            self._answer(released, answer, first=0)
        return released

    def _note_divergence(self) -> None:
        places = self._places()
        (name, line), here = min(places.items(), key=lambda place: place[0][1])
        others = [(at, len(threads), tuple(threads[:3])) for (_, at), threads in places.items() if at != line]
        ended = [(0, len(self._ended), tuple(sorted(self._ended)[:3]))] if self._ended else []
        if ended or others:
            self.divergences.add(Divergence(name, line, len(here), tuple(here[:3]), (*ended, *sorted(others))))

    def _who_waits_where(self) -> str:
        standing = [f"{listed(threads)} at {name} in line {line}" for (name, line), threads in self._places().items()]
        return "; ".join([*standing, *([f"{listed(self._ended)} had ended"] if self._ended else [])])

    def _places(self) -> dict[tuple[str, int], list[int]]:
        """Who waits at which intrinsic, in which line."""
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for thread, wait in sorted(self._waits.items()):
            places[wait.name, wait.line].append(thread)
        return places


def listed(threads: Iterable[int]) -> str:
    """``threads 0, 1, 2, ... (16 in all)``."""
    ordered = sorted(threads)
    shown = ", ".join(map(str, ordered[:3]))
    if len(ordered) == 1:
        return f"thread {shown}"
    return f"threads {shown}, ... ({len(ordered)} in all)" if len(ordered) > 3 else f"threads {shown}"
