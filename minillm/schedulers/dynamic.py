"""Triton's dynamic batcher: requests wait a little so that batches come out in sizes the model likes.

Triton Inference Server, ``DynamicBatchScheduler::GetDynamicBatch`` in ``dynamic_batch_scheduler.cc`` (core repository).
Triton batches whole requests, so here a batch runs to its end on the padded rectangle, and its size counts samples.

One instance of the model serves, and a batch is formed when the instance is free, as Triton does where levels or
timeouts are in use. So a batch starts as soon as it is formed, and Triton's payloads, which are filled ahead and grow
until an instance takes them, have nothing to grow: whoever came in time is in the batch. ``preserve_ordering`` has no
counterpart either: first come, first served on one instance ends in the order of arrival, and where priorities or
delayed requests overtake, holding their answers back would take away what they gained.

Triton looks for expired requests when it forms a batch and, since core#333, while it waits for a free instance; here
they end between any two passes.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from minillm.batch import Batch, Event
from minillm.schedulers.priority_queue import PriorityQueue, QueuePolicy, Waiting
from minillm.schedulers.run_to_completion import RunToCompletion
from minillm.sequence import Sequence, Status


@dataclass(frozen=True, slots=True)
class Candidates:
    """Those at the head of the queue that could share a batch.

    ``preferred`` counts the first of them that make the best size. ``closed``: the next in the queue cannot join, so
    waiting would gain nothing.
    """

    requests: list[Waiting]
    preferred: int
    closed: bool

    @property
    def size(self) -> int:
        """Samples of all of them."""
        return sum(len(request.samples) for request in self.requests)

    @property
    def oldest(self) -> float:
        """When the first of them came; infinite where there are none."""
        return min((request.since for request in self.requests), default=math.inf)


class Dynamic(RunToCompletion):
    """Batches of a preferred size at once, others when the oldest has waited ``max_queue_delay`` seconds.

    ``preferred_batch_sizes`` is empty for ``max_batch_size`` alone. ``queue_policies`` has one entry per priority
    level, the most urgent first; a level that is full refuses with the code "queue_full". Raises ValueError for a
    preferred size above ``max_batch_size``, and for a delay that is negative or infinite.
    """

    def __init__(
        self,
        max_batch_size: int,
        columns: int,
        *,
        preferred_batch_sizes: Collection[int] = (),
        max_queue_delay: float = 0.0,
        queue_policies: Collection[QueuePolicy] = (QueuePolicy(),),
        default_level: int = 1,
    ) -> None:
        super().__init__(max_batch_size, columns)
        for size in preferred_batch_sizes:
            if not 1 <= size <= max_batch_size:
                raise ValueError(f"preferred batch size {size} must lie in 1 .. max_batch_size ({max_batch_size})")
        if not 0 <= max_queue_delay < math.inf:
            raise ValueError(f"max_queue_delay is {max_queue_delay}; it must be finite and at least 0 seconds")
        self.preferred_batch_sizes = frozenset(preferred_batch_sizes or [max_batch_size])
        self.max_queue_delay = max_queue_delay
        self.waiting: PriorityQueue = PriorityQueue(queue_policies, default_level)

    def enqueue(self, samples: list[Sequence], now: float) -> None:
        """Queue the samples of one request in its level."""
        self.waiting.push(samples, now)

    def withdraw(self, request_id: str) -> None:
        """Take a request off the queue, if it is there."""
        self.waiting.remove(request_id)

    def schedule(self, now: float) -> Batch | None:
        """End who expired, then go on with the running batch or form the next."""
        events = self.expire(now)
        batch = super().schedule(now)
        if not events:
            return batch
        batch = batch or Batch()
        return replace(batch, events=(*events, *batch.events))

    def expire(self, now: float) -> list[Event]:
        """Reject the requests that waited past their deadline."""
        expired = [sample for request in self.waiting.expire(now) for sample in request.samples]
        for sample in expired:
            sample.finish_reason, sample.status = "expired", Status.FINISHED
        return [Event("expired", sample, "the request waited in the queue past its deadline") for sample in expired]

    def form(self, now: float) -> list[Sequence]:
        """Take the chosen requests off the queue."""
        batch = self.choose(self.candidates(), now)
        for request in batch:
            self.waiting.remove(request.id)
        return [sample for request in batch for sample in request.samples]

    def choose(self, candidates: Candidates, now: float) -> list[Waiting]:
        """The best preferred size, unless someone is late; everyone, if nothing is gained by waiting; else nobody.

        Without a delay nobody waits and nobody is late, so preferred sizes still go first.
        """
        waited = now >= candidates.oldest + self.max_queue_delay
        late = waited and self.max_queue_delay > 0
        if candidates.preferred and not late:
            return candidates.requests[: candidates.preferred]
        full = candidates.closed or candidates.size >= max(self.preferred_batch_sizes)
        return candidates.requests if full or waited else []

    def candidates(self) -> Candidates:
        """Look at the queue in order, no further than the first request that does not fit beside those before it.

        The best cut is at the largest preferred size that is met exactly, else before the largest one is passed, by
        whichever request, joined or not. ``preferred`` is the number of requests before it, 0 where there is no cut;
        ``closed`` is whether the walk ended at one that does not fit.
        """
        requests: list[Waiting] = []
        samples: list[Sequence] = []
        preferred = 0
        for request in self.waiting:
            joined = [*samples, *request.samples]
            if len(joined) > max(self.preferred_batch_sizes) and not preferred:
                preferred = len(requests)
            if not self.fits(joined):
                return Candidates(requests, preferred, closed=True)
            requests.append(request)
            samples = joined
            if len(samples) in self.preferred_batch_sizes:
                preferred = len(requests)
        return Candidates(requests, preferred, closed=False)

    def wake_at(self, now: float) -> float | None:
        """When to ask again though nothing arrives or completes, or None for never: the earlier of two moments.

        One is when the oldest candidate has waited for the whole delay; while a batch runs (``rows`` holds it) that
        does not count. The other is the first moment after the next deadline.
        """
        late = math.inf if self.rows else self.candidates().oldest + self.max_queue_delay
        moment = min(late, math.nextafter(self.waiting.next_deadline(), math.inf))
        return moment if moment < math.inf else None
