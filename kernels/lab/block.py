"""One thread block: its threads as greenlets, switched where they wait for each other.

A thread runs until it waits: at a barrier, in a shuffle or vote, or after an atomic. The block then decides who may go
on. Blocks run one after the other, so a thread that waits for another block waits for ever; that is reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal

from kernels.lab.source import LabError, function_name, place

try:
    from greenlet import getcurrent as current_thread
    from greenlet import greenlet
except ModuleNotFoundError:
    raise LabError("the kernel lab needs greenlet; install it: pip install 'minillm[lab]'") from None

__all__ = ["Block", "Deadlock", "Divergence", "Wait", "current_thread", "listed"]

WARP_SIZE = 32
FULL_MASK = (1 << WARP_SIZE) - 1
MOST_SPINS = 20_000
"""Rounds in which threads do nothing but atomics, until the lab takes it for waiting on somebody who never comes."""

Answer = Callable[[dict[int, Any]], dict[int, Any]]
"""From what each lane brought to what each lane gets; both by lane, or by thread where a block votes."""


Kind = Literal["block", "warp", "turn"]
"""For whom a thread waits: all threads of its block, lanes of its warp, or only its next turn."""


@dataclass(slots=True, eq=False)
class Wait:
    """What a thread waits for: ``name`` is the intrinsic, called in ``frame``; None stands for the thread's own.

    ``mask`` names the lanes that must come (warp only), ``value`` is what the thread brings, and ``answer`` makes from
    all values each thread's ``result``.
    """

    kind: Kind
    name: str
    frame: FrameType | None
    mask: int = FULL_MASK
    value: Any = None
    answer: Answer | None = None
    result: Any = None


BARRIER = Wait("block", "syncthreads", None)
"""What all threads wait for at the commonest of waits."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A barrier, shuffle or vote that some of its threads did not reach together.

    The lines are those of ``function``, a device function, or of the kernel where it is empty. ``waiting`` threads
    stood there, such as those in ``examples``; ``elsewhere`` says how many stood at which line, and which some are.
    Threads that had ended, or that the block does not have, are at line 0.
    """

    intrinsic: str
    line: int
    function: str
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
    at_barrier: Callable[["Block"], None]
    """Called when a barrier of the whole block has been reached, before anyone leaves it."""
    at_warp_sync: Callable[[int, int], None]
    """Called for a ``syncwarp``: warp, and mask of the lanes that took part."""
    name: Callable[[int], str] = str
    """Of a thread, by its number."""
    divergences: set[Divergence] = field(default_factory=set)
    _threads: list[greenlet] = field(default_factory=list)
    _waits: dict[int, Wait] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _spins: int = 0
    _kernel: CodeType | None = None

    def run(self, kernel: FunctionType, arguments: Sequence[Any]) -> None:
        """Run all threads to their ends. Raises what a thread raises, and Deadlock; the others are ended then."""

        def thread_body() -> None:
            kernel(*arguments)  # what it returns goes nowhere

        threads = self._threads = [greenlet(thread_body) for _ in range(self.size)]
        self._kernel = kernel.__code__
        context = copy_context()  # numpy's handling of overflow is kept in it
        for thread in threads:
            thread.gr_context = context
        try:
            self._run()
        finally:
            for thread in threads:
                if not thread.dead:
                    thread.throw()

    def _run(self) -> None:
        enter, waits = self.enter, self._waits
        resume = [thread.switch for thread in self._threads]
        runnable = list(range(self.size))
        while runnable:
            for thread in self.in_turn(runnable):
                enter(thread)
                waits[thread] = resume[thread]()
            different = set(waits.values())
            if None in different:  # what a kernel returns at its end
                self._note_ended()
            runnable = self._released({wait.kind for wait in different if wait is not None})

    def _note_ended(self) -> None:
        ended = [thread for thread, wait in self._waits.items() if wait is None]
        self._ended.update(ended)
        for thread in ended:
            del self._waits[thread]

    def _released(self, kinds: set[Kind]) -> list[int]:
        """Who may go on, in ascending order. Empty when all have ended."""
        if kinds == {"block"}:
            return self._released_block()
        released = self._released_warps() if "warp" in kinds else []
        if "turn" in kinds:
            turns = [thread for thread, wait in self._waits.items() if wait.kind == "turn"]
            self._count_spins(turns, bool(released))
            released += turns
        if self._waits and not released:
            raise Deadlock(f"threads wait for each other for ever: {self._who_waits_where()}")
        for thread in released:
            del self._waits[thread]
        return sorted(released)

    def _count_spins(self, turns: Sequence[int], others_go_on: bool) -> None:
        self._spins = 0 if others_go_on else self._spins + 1
        if self._spins > MOST_SPINS:
            first, frame = self._waits[turns[0]], self._frame(turns[0])
            raise Deadlock(
                f"{listed(turns, self.name)} went on with {first.name} alone for {MOST_SPINS} rounds, "
                f"the first in {self._place(frame)}: what they wait for does not come. "
                "Blocks may run one after the other; let none wait for another"
            )

    # Warps.

    def _released_warps(self) -> list[int]:
        groups: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        for thread, wait in self._waits.items():
            if wait.kind == "warp":
                groups[thread // WARP_SIZE, wait.name, self._site(thread), wait.mask].add(thread)
        released: list[int] = []
        for (warp, _, _, mask), here in groups.items():
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

    def _living(self, warp: int, mask: int) -> frozenset[int]:
        return _lanes(warp, mask, self.size) - self._ended

    def _note_absent(self, warp: int, mask: int, here: set[int], wait: Wait) -> None:
        """Lanes that the mask names and that are not here, or the other way round. A full mask names whom there is."""
        wanted = _lanes(warp, mask, self.size if mask & FULL_MASK == FULL_MASK else (warp + 1) * WARP_SIZE)
        if here != wanted:
            absent, name = sorted(wanted - here), f"{wait.name} with mask {mask & FULL_MASK:#x}"
            elsewhere = ((0, len(absent), tuple(absent[:3])),) if absent else ()
            frame, examples = self._frame(min(here)), tuple(sorted(here)[:3])
            at = frame.f_lineno, self._function(frame)
            self.divergences.add(Divergence(name, *at, len(here), examples, elsewhere))

    def _answer(self, threads: Iterable[int], answer: Answer, first: int) -> None:
        results = answer({thread - first: self._waits[thread].value for thread in threads})
        for thread in threads:
            self._waits[thread].result = results[thread - first]

    # The whole block.

    def _released_block(self) -> list[int]:
        """All that are left wait for the block: its barrier opens."""
        released = sorted(self._waits)
        self.at_barrier(self)
        answer = self._waits[released[0]].answer
        if answer is not None:
            self._answer(released, answer, first=0)
        self._waits.clear()
        return released

    def note_divergence(self) -> None:
        """At a barrier of the whole block: note if threads wait at several places, or have ended."""
        if not self._ended and len({self._site(thread) for thread in self._waits}) == 1:
            return
        (name, frame, here), *elsewhere = sorted(self._places(), key=lambda place: (place[1].f_lineno, place[2]))
        others = [(at.f_lineno, len(threads), tuple(threads[:3])) for _, at, threads in elsewhere]
        ended = [(0, len(self._ended), tuple(sorted(self._ended)[:3]))] if self._ended else []
        if ended or others:
            at = frame.f_lineno, self._function(frame)
            self.divergences.add(Divergence(name, *at, len(here), tuple(here[:3]), (*ended, *sorted(others))))

    def _who_waits_where(self) -> str:
        standing = [
            f"{listed(threads, self.name)} at {name} in {self._place(frame)}" for name, frame, threads in self._places()
        ]
        return "; ".join([*standing, *([f"{listed(self._ended, self.name)} had ended"] if self._ended else [])])

    def _places(self) -> list[tuple[str, FrameType, list[int]]]:
        """Intrinsics at which threads wait, with frame and threads: the frame in whose line their ways thither part."""
        places: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for thread, wait in sorted(self._waits.items()):
            places[wait.name, self._site(thread)].append(thread)
        ways = [self._way(threads[0]) for threads in places.values()]
        parting = next((each for each in zip(*ways, strict=False) if len({at.f_lasti for at in each}) > 1), None)
        frames = parting or [way[-1] for way in ways]
        return [(name, frame, threads) for ((name, _), threads), frame in zip(places.items(), frames, strict=True)]

    def _place(self, frame: FrameType) -> str:
        return place(frame.f_lineno, self._function(frame))

    def _function(self, frame: FrameType) -> str:
        return function_name(frame.f_code, self._kernel) if self._kernel else ""

    def _site(self, thread: int) -> tuple[int, ...]:
        """The call at which a thread waits, and those that led there, by their offsets up to the kernel's."""
        frame: FrameType | None = self._frame(thread)
        site: tuple[int, ...] = ()
        while frame is not None:
            site += (frame.f_lasti,)
            if frame.f_code is self._kernel:
                break
            frame = frame.f_back
        return site

    def _way(self, thread: int) -> list[FrameType]:
        """The kernel's frame, those of the device functions in which a thread waits, and none of the lab's."""
        frame: FrameType | None = self._frame(thread)
        way = []
        while frame is not None:
            way.append(frame)
            if frame.f_code is self._kernel:
                break
            frame = frame.f_back
        return way[::-1]

    def _frame(self, thread: int) -> FrameType:
        """The frame that calls the intrinsic for which a thread waits."""
        frame: FrameType = self._waits[thread].frame or self._threads[thread].gr_frame
        return frame


@lru_cache
def _lanes(warp: int, mask: int, size: int) -> frozenset[int]:
    """Threads of a warp that a mask names and a block of this size has."""
    first = warp * WARP_SIZE
    return frozenset(first + lane for lane in range(WARP_SIZE) if mask >> lane & 1 and first + lane < size)


def listed(threads: Iterable[int], name: Callable[[int], str]) -> str:
    """``threads 0, 1, 2, ... (16 in all)``."""
    ordered = sorted(threads)
    shown = ", ".join(map(name, ordered[:3]))
    if len(ordered) == 1:
        return f"thread {shown}"
    return f"threads {shown}, ... ({len(ordered)} in all)" if len(ordered) > 3 else f"threads {shown}"
