"""Request-level batching: a batch is formed only when none runs, and runs until its longest sequence ends.

The baseline that Orca describes (Yu et al., OSDI 2022, section 2.2) and FasterTransformer implements. Sequences that
finish early hold their rows and are computed with the others, all leave together, and those that arrive wait.
"""

from collections import deque
from collections.abc import Iterable

from minillm.batch import Batch, Outcome, Rectangle, next_span
from minillm.cache.rectangle import Row
from minillm.request import Request
from minillm.scheduler import Load, Memory, RectangleMemory
from minillm.schedulers.shared import advance, filled_tokens, refuse_above
from minillm.sequence import Sequence, Status, independent_branches


class RunToCompletion:
    """Padded batches on a rectangle of ``max_batch_size`` rows and ``columns`` tokens; subclasses form them.

    A batch is padded to its longest prompt and needs ``longest prompt + largest max_tokens`` columns.
    """

    def __init__(self, max_batch_size: int, columns: int) -> None:
        self.max_batch_size = max_batch_size
        self.columns = columns
        self.waiting: deque[list[Sequence]] = deque()
        self.rows: list[Sequence] = []
        self.passes = 0
        self.pass_in_flight = False

    @property
    def memory(self) -> Memory:
        """One rectangle, used by one batch at a time."""
        return RectangleMemory(self.max_batch_size, self.columns)

    def add(self, request: Request, now: float) -> None:
        """Queue the request's n samples, which must share a batch. Raises Refused if they cannot."""
        refuse_above(self.max_batch_size, request.params.n, "rows of the batch", "lower n")
        length = len(request.prompt_token_ids) + request.params.max_tokens
        refuse_above(self.columns, length, "tokens of a row", "shorten the prompt or lower max_tokens")
        self.waiting.append(independent_branches(request))

    def form(self, now: float) -> list[Sequence]:
        """Take the next batch's sequences off the queue; none to wait."""
        raise NotImplementedError

    def fits(self, sequences: list[Sequence]) -> bool:
        """Whether these sequences can share one rectangle."""
        columns = max(s.prompt_length for s in sequences) + max(s.request.params.max_tokens for s in sequences)
        return len(sequences) <= self.max_batch_size and columns <= self.columns

    def schedule(self, now: float) -> Batch | None:
        """The next pass of the running batch, or the first of a new one; one pass at a time."""
        if self.pass_in_flight:
            return None
        if not self.rows:
            self.open(self.form(now))
        self.pass_in_flight = bool(self.rows)
        return self.plan() if self.rows else None

    def open(self, sequences: list[Sequence]) -> None:
        """Give each sequence of a new batch its row, padded on the left to the longest prompt."""
        width = max((sequence.prompt_length for sequence in sequences), default=0)
        for index, sequence in enumerate(sequences):
            sequence.memory = Row(index, width - sequence.prompt_length)
            sequence.status = Status.RUNNING
        self.rows, self.passes = sequences, 0

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

    def wake_at(self, now: float) -> float | None:
        """Only an arrival or a completion changes anything."""
        return None

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Deliver nothing until the batch is complete, then all of it."""
        for outcome in outcomes:
            advance(outcome)
        self.passes += 1
        self.pass_in_flight = False
        return self.close() if self.complete else []

    def close(self) -> list[Sequence]:
        """Empty the rectangle."""
        rows, self.rows = self.rows, []
        return rows

    def abort(self, request_id: str, now: float) -> None:
        """Drop waiting sequences; a running one holds its row to the end of the batch, as a finished one does."""
        self.waiting = deque(group for group in self.waiting if group[0].request.id != request_id)
        for row in self.rows:
            if row.request.id == request_id and not row.in_flight:
                row.finish_reason = row.finish_reason or "abort"

    def load(self) -> Load:
        """A running batch reserves its whole rectangle."""
        reserved = len(self.rows) * self.columns
        filled = filled_tokens(row for row in self.rows if not row.finished)
        return Load(len(self.waiting), len(self.rows), 0, reserved, filled)

    def check_integrity(self) -> None:
        """Raise AssertionError unless each row has a place of its own."""
        assert [row.memory.index for row in self.rows] == list(range(len(self.rows)))
        assert not any(group[0].memory for group in self.waiting)
