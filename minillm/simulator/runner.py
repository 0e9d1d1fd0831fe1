"""A runner whose batches take simulated time, and a model of which only the output lengths are known."""

from collections import deque
from collections.abc import Callable

from minillm.batch import Batch, Result, Span
from minillm.runner import Execute

Cost = Callable[[Batch], float]
"""Seconds that a batch takes."""


class SimulatedRunner:
    """A pipeline of ``depth`` equal stages that a batch passes in ``cost(batch)`` seconds.

    What a batch computes is ``execute``'s business: the real model under simulated time leaves the same records as
    ``ScriptedModel`` does, wherever both sample the same lengths.
    """

    def __init__(self, execute: Execute, cost: Cost, depth: int = 1) -> None:
        self.depth = depth
        self._execute = execute
        self._cost = cost
        self._stage_free = [0.0] * depth
        self._in_flight: deque[tuple[list[Result], float]] = deque()

    def submit(self, batch: Batch, now: float) -> None:
        """Enter the first stage as soon as it is free, and each next one likewise.

        ``_stage_free`` holds when each stage is free again. What the batch computes and when it leaves the last stage
        are appended to ``_in_flight``, for ``collect`` and ``ready_at``.
        """
        moment, stage_seconds = now, self._cost(batch) / self.depth
        for stage, free in enumerate(self._stage_free):
            moment = max(moment, free) + stage_seconds
            self._stage_free[stage] = moment
        self._in_flight.append((self._execute(batch), moment))

    def ready_at(self) -> float:
        """When the oldest batch leaves the last stage."""
        return self._in_flight[0][1]

    def collect(self) -> list[Result]:
        """The oldest batch's results."""
        return self._in_flight.popleft()[0]


class ScriptedModel:
    """Executes batches without a model.

    It emits ``filler`` tokens and, where a request's ``expected_output`` ends, the end-of-text token.
    """

    def __init__(self, filler: int, end_of_text: int) -> None:
        self.filler = filler
        self.end_of_text = end_of_text

    def __call__(self, batch: Batch) -> list[Result]:
        """One result per span."""
        return [Result((self._token(span),) * span.samples) for span in batch.spans]

    def _token(self, span: Span) -> int:
        last = span.sequence.output_length + 1 == span.sequence.request.expected_output
        return self.end_of_text if last else self.filler
