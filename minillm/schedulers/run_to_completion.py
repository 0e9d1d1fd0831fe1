"""Request-level batching: a batch is formed only when none runs, and runs until its longest sequence ends.

The baseline that Orca describes (Yu et al., OSDI 2022, section 2.2) and FasterTransformer implements. Sequences that
finish early hold their rows and are computed with the others, all leave together, and those that arrive wait.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Any

from minillm.batch import Batch, Event, Outcome, Rectangle, next_span
from minillm.cache.memory import Memory, RectangleMemory, Row
from minillm.request import Request
from minillm.scheduler import Load
from minillm.schedulers.shared import advance, filled_tokens, move_to, refuse_above, require_positive
from minillm.sequence import Sequence, Status, independent_branches


class RunToCompletion(ABC):
    """Padded batches on a rectangle of ``max_batch_size`` rows and ``columns`` tokens.

    A batch is padded to its longest prompt and needs ``longest prompt + largest max_tokens`` columns. Subclasses own
    the queue (``waiting``, ``enqueue``, ``withdraw``) and say who goes next (``form``). Raises ValueError for a size
    below 1.
    """

    waiting: Sized

    def __init__(self, max_batch_size: int, columns: int) -> None:
        require_positive(max_batch_size=max_batch_size, columns=columns)
        self.max_batch_size = max_batch_size
        self.columns = columns
        self.rows: list[Sequence] = []
        self.passes = 0
        self.pass_in_flight = False

    @abstractmethod
    def enqueue(self, samples: list[Sequence], now: float) -> None:
        """Queue the samples of one request, which must share a batch."""

    @abstractmethod
    def withdraw(self, request_id: str) -> None:
        """Take a request off the queue, if it is there."""

    @abstractmethod
    def form(self, now: float) -> list[Sequence]:
        """Take the next batch's sequences off the queue; none to wait."""

    @property
    def memory(self) -> Memory:
        """One rectangle, used by one batch at a time."""
        return RectangleMemory(self.max_batch_size, self.columns)

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises Refused if its n samples can never share a batch."""
        refuse_above(self.max_batch_size, request.params.n, "rows of the batch", "lower n")
        length = len(request.prompt_token_ids) + request.params.max_tokens
        refuse_above(self.columns, length, "tokens of a row", "shorten the prompt or lower max_tokens")
        self.enqueue(independent_branches(request), now)

    def fits(self, sequences: list[Sequence]) -> bool:
        """Whether these sequences can share one rectangle."""
        columns = max(s.prompt_length for s in sequences) + max(s.request.params.max_tokens for s in sequences)
        return len(sequences) <= self.max_batch_size and columns <= self.columns

    def schedule(self, now: float) -> Batch | None:
        """The next pass of the running batch, or the first of a new one; one pass at a time.

        With it go the events of ``left_behind``, which may empty the rows; without a pass they go alone.
        """
        if self.pass_in_flight:
            return None
        events = self.left_behind()
        if not self.rows:
            self.open(self.form(now))
        if not self.rows:
            return Batch(events=events) if events else None
        self.pass_in_flight = True
        return replace(self.plan(), events=events)

    def left_behind(self) -> tuple[Event, ...]:
        """Deliver what a batch leaves whose last live row was aborted between two passes: no pass will do it."""
        rows = self.close() if self.complete else []
        return tuple(Event("completed", row) for row in rows if row.finish_reason != "abort")

    def open(self, sequences: list[Sequence]) -> None:
        """Give each sequence of a new batch its place."""
        for sequence, place in zip(sequences, self.places(sequences), strict=True):
            sequence.memory = place
        move_to(Status.RUNNING, sequences)
        self.rows, self.passes = sequences, 0

    def places(self, sequences: list[Sequence]) -> list[Any]:
        """The memory of each sequence of a batch: a row, padded on the left to the longest prompt.

        ``sequences`` may be empty.
        """
        width = max((sequence.prompt_length for sequence in sequences), default=0)
        return [Row(index, width - sequence.prompt_length) for index, sequence in enumerate(sequences)]

    def plan(self) -> Batch:
        """One rectangular pass over all rows, live and finished."""
        prompt = max(row.prompt_length for row in self.rows)
        width = 1 if self.passes else prompt
        return Batch(
            spans=tuple(next_span(row) for row in self.rows if not row.finished),
            held=tuple(row for row in self.rows if row.finished),
            rectangle=Rectangle(len(self.rows), width, prompt + self.passes),
        )

    @property
    def complete(self) -> bool:
        """Whether the running batch may leave."""
        return all(row.finished for row in self.rows)

    @property
    def abandoned(self) -> bool:
        """Whether every row of the running batch was aborted, so that nobody waits for it."""
        return all(row.finish_reason == "abort" for row in self.rows)

    def wake_at(self, now: float) -> float | None:
        """Only an arrival or a completion changes anything."""
        return None

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Account for a pass that is no longer in flight, and return the sequences to deliver.

        None until the batch is complete, then all of it, and its rows are empty; an abandoned batch leaves at once.
        """
        for outcome in outcomes:
            advance(outcome)
        self.passes += 1
        self.pass_in_flight = False
        return self.close() if self.complete or self.abandoned else []

    def close(self) -> list[Sequence]:
        """Empty the rows, and return the sequences that had them."""
        rows, self.rows = self.rows, []
        return rows

    def abort(self, request_id: str, now: float) -> None:
        """Drop a waiting request; a running one holds its rows to the end of the batch, as a finished one does."""
        self.withdraw(request_id)
        for row in self.rows:
            if row.request.id == request_id:
                row.finish_reason = "abort"
        if self.abandoned and not self.pass_in_flight:
            self.close()

    def load(self) -> Load:
        """A running batch reserves its rows at full length."""
        reserved = len(self.rows) * self.columns
        filled = filled_tokens(row for row in self.rows if not row.finished)
        return Load(len(self.waiting), len(self.rows), 0, reserved, filled)

    def check_integrity(self) -> None:
        """Raise AssertionError unless each row has the place that its batch gave it."""
        assert [row.memory for row in self.rows] == self.places(self.rows)
