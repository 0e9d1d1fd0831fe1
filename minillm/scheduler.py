"""The interface that every batching policy implements, and nothing about any of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from minillm.batch import Batch, Outcome
from minillm.cache.memory import Memory
from minillm.request import Request
from minillm.sequence import Sequence


class Refused(Exception):
    """A request that a policy will never run: ``code`` for programs, ``reason`` for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Load:
    """How full a scheduler is.

    ``waiting`` counts what its queue holds, which may be requests of several samples; ``running`` and ``swapped`` count
    sequences. ``reserved`` and ``filled`` are cache tokens set aside, and those of them that hold a token.
    """

    waiting: int = 0
    running: int = 0
    swapped: int = 0
    reserved: int = 0
    filled: int = 0

    @property
    def queued(self) -> int:
        """All that the scheduler has, in whatever state."""
        return self.waiting + self.running + self.swapped


class Scheduler(Protocol):
    """Decides which sequences run next, and on which memory. It never touches a tensor.

    The engine calls ``schedule`` when the runner has room, and ``settle`` in the same order when results are in.
    ``now`` is in seconds on the engine's clock. One object serves one engine.
    """

    @property
    def memory(self) -> Memory:
        """The cache whose places this scheduler hands out."""
        ...

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises ``Refused`` for one that can never run."""
        ...

    def schedule(self, now: float) -> Batch | None:
        """The next pass, or None when there is nothing to do. It holds no sequence that is in flight."""
        ...

    def wake_at(self, now: float) -> float | None:
        """When to ask again although nothing arrives or completes; None for never."""
        ...

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Account for a finished pass, free what ended, and return the sequences whose tokens clients get now."""
        ...

    def abort(self, request_id: str, now: float) -> None:
        """Drop a request's sequences that are not in flight; those in flight come to ``settle`` as aborted."""
        ...

    def load(self) -> Load:
        """Queue lengths and cache use, at a cost that does not grow with the waiting queue."""
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError if memory is lost, owned twice or counted wrongly."""
        ...
