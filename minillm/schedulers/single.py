"""One request at a time, in arrival order: what a program without batching does."""

from collections.abc import Iterable

from minillm.batch import Batch, Outcome
from minillm.schedulers.static import Static
from minillm.sequence import Sequence


class Single(Static):
    """A batch of one request, whose tokens are delivered as they come."""

    def __init__(self, columns: int, max_samples: int = 1) -> None:
        super().__init__(max_samples, columns)

    def form(self, now: float) -> list[Sequence]:
        """The oldest request's samples; none to wait."""
        return self.waiting.popleft() if self.waiting else []

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Account for a pass as any batch does, but deliver each token at once."""
        outcomes = list(outcomes)
        super().settle(batch, outcomes, now)
        return [outcome.sequence for outcome in outcomes]
