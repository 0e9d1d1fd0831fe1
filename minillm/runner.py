"""Running batches: an executor computes one, a runner keeps up to ``depth`` of them in flight."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from minillm.batch import Batch, Result
from minillm.clock import Clock

Execute = Callable[[Batch], list[Result]]
"""Computes a batch: one result per span, in order."""


class Runner(Protocol):
    """Computes batches in the order in which they were submitted."""

    depth: int

    def submit(self, batch: Batch, now: float) -> None:
        """Start a batch. At most ``depth`` may be in flight."""
        ...

    def ready_at(self) -> float:
        """When the oldest batch in flight will be done, in seconds on the engine's clock."""
        ...

    def collect(self) -> list[Result]:
        """The oldest batch's results, one per span."""
        ...


class WallRunner:
    """Computes each batch when it is submitted and keeps its results until collected.

    With ``depth`` above 1 the engine schedules on before it sees results, as a pipeline would make it.
    """

    def __init__(self, execute: Execute, clock: Clock, depth: int = 1) -> None:
        self.depth = depth
        self._execute = execute
        self._clock = clock
        self._done: deque[tuple[list[Result], float]] = deque()

    def submit(self, batch: Batch, now: float) -> None:
        """Compute the batch now."""
        self._done.append((self._execute(batch), self._clock.now()))

    def ready_at(self) -> float:
        """When the oldest batch was done."""
        return self._done[0][1]

    def collect(self) -> list[Result]:
        """The oldest batch's results."""
        return self._done.popleft()[0]
