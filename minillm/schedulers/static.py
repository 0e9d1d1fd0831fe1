"""Static batching: whoever waits when the last batch has left, up to the maximum batch size."""

from collections import deque

from minillm.request import Request
from minillm.schedulers.run_to_completion import RunToCompletion
from minillm.schedulers.shared import refuse_above, require_positive
from minillm.sequence import Sequence


class Static(RunToCompletion):
    """First come, first served; a request that does not fit beside those before it ends the batch."""

    def __init__(self, max_batch_size: int, columns: int) -> None:
        super().__init__(max_batch_size, columns)
        self.waiting: deque[list[Sequence]] = deque()

    def enqueue(self, samples: list[Sequence], now: float) -> None:
        """Queue the samples of one request at the end."""
        self.waiting.append(samples)

    def withdraw(self, request_id: str) -> None:
        """Take a request off the queue, if it is there."""
        self.waiting = deque(samples for samples in self.waiting if samples[0].request.id != request_id)

    def form(self, now: float) -> list[Sequence]:
        """As many waiting sequences as share a rectangle."""
        batch: list[Sequence] = []
        while self.waiting and self.fits([*batch, *self.waiting[0]]):
            batch += self.waiting.popleft()
        return batch


class NaiveStatic(Static):
    """The static baseline of published benchmarks: every batch runs for ``passes_per_batch`` passes.

    A server that does not watch for ends computes each batch up to the largest output length of the whole workload
    (Anyscale, "How continuous batching enables 23x throughput in LLM inference", 2023, naive static batching).
    Raises ValueError for a size below 1.
    """

    def __init__(self, max_batch_size: int, columns: int, passes_per_batch: int) -> None:
        super().__init__(max_batch_size, columns)
        require_positive(passes_per_batch=passes_per_batch)
        self.passes_per_batch = passes_per_batch

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises Refused also if the batch's passes do not fit behind its prompt."""
        length = len(request.prompt_token_ids) + self.passes_per_batch
        refuse_above(self.columns, length, "tokens of a row", "shorten the prompt or lower passes_per_batch")
        super().add(request, now)

    def fits(self, sequences: list[Sequence]) -> bool:
        """Whether these sequences can share one rectangle until its last pass."""
        columns = max(s.prompt_length for s in sequences) + self.passes_per_batch
        return super().fits(sequences) and columns <= self.columns

    @property
    def complete(self) -> bool:
        """Whether the running batch has had all its passes."""
        return super().complete and self.passes >= self.passes_per_batch
