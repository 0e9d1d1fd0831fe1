"""Orca's iteration-level scheduling (Yu et al., OSDI 2022, section 4.2, Algorithm 1).

Each pass is composed anew: finished sequences leave after any pass and waiting ones enter at the next, in strict
arrival order. Cache places for a request's whole life are reserved when it enters, so nothing is ever evicted. The
``n_workers`` batches that a pipeline keeps in flight are the runner's ``depth``.
"""

from collections import deque
from collections.abc import Callable, Iterable

from minillm.batch import Batch, Event, Outcome, next_span
from minillm.cache.blocks import BlockManager
from minillm.cache.memory import PagedMemory
from minillm.request import Request
from minillm.scheduler import Load
from minillm.schedulers.shared import advance, filled_tokens, refuse_above, require_positive
from minillm.sequence import Sequence, Status, independent_branches

OVERRUN = "the output ran past the slots reserved for it; give the true length as expected_output, or reserve exactly"

Reservation = Callable[[Request], int]
"""Cache slots set aside for one sample of a request, in tokens."""


def reserve_exact(request: Request) -> int:
    """Prompt and ``max_tokens``: Algorithm 1's ``max_tokens``."""
    return len(request.prompt_token_ids) + request.params.max_tokens


def reserve_max(max_context: int) -> Reservation:
    """The model's whole context for everyone: Orca (Max) of Kwon et al., SOSP 2023, section 6.1."""
    return lambda request: max_context


def reserve_pow2(request: Request) -> int:
    """The true output rounded up to a power of two: Orca (Pow2) of Kwon et al., SOSP 2023, section 6.1."""
    return len(request.prompt_token_ids) + (1 << (_true_output(request) - 1).bit_length())


def reserve_oracle(request: Request) -> int:
    """The true output length, which no server can know: Orca (Oracle) of Kwon et al., SOSP 2023, section 6.1."""
    return len(request.prompt_token_ids) + _true_output(request)


def _true_output(request: Request) -> int:
    """Tokens that the answer will have: ``expected_output``, or ``max_tokens`` where that is not known."""
    return request.params.max_tokens if request.expected_output is None else request.expected_output


class Orca:
    """At most ``max_bs`` sequences a pass, on ``n_slots`` cache slots of one token each.

    Slots are cells of a paged cache with blocks of one token: a reservation is a count, not a place. A request that
    reserves more than ``n_slots`` is refused; Algorithm 1 would let it block everyone behind it for ever. Raises
    ValueError for a size below 1.
    """

    def __init__(self, max_bs: int, n_slots: int, reservation: Reservation = reserve_exact) -> None:
        require_positive(max_bs=max_bs, n_slots=n_slots)
        self.max_bs = max_bs
        self.reservation = reservation
        self.slots = BlockManager(n_slots, block_size=1)
        self.memory = PagedMemory(n_slots, block_size=1)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}

    def add(self, request: Request, now: float) -> None:
        """Queue the request's n samples, each on its own. Raises Refused if one can never be reserved."""
        needed = self.reservation(request)
        refuse_above(self.slots.device.num_blocks, needed, "slots", "shorten the prompt or lower max_tokens")
        self.waiting.extend(independent_branches(request))

    def schedule(self, now: float) -> Batch | None:
        """The next pass, one span for each sequence that is selected."""
        events = self._end_overruns()
        batch = self.select()
        return Batch(tuple(map(next_span, batch)), events=events) if batch or events else None

    def select(self) -> list[Sequence]:
        """Select of Algorithm 1: the oldest sequences not in flight, stopping at the first that cannot be reserved."""
        batch = [sequence for sequence in self.running if not sequence.in_flight][: self.max_bs]
        while self.waiting and len(batch) < self.max_bs and self.reserve(self.waiting[0]):
            batch.append(self.waiting.popleft())
        return batch

    def reserve(self, sequence: Sequence) -> bool:
        """Set slots aside for a sequence's whole life and let it run, or change nothing if too few are free.

        Who gets them has its slots in ``memory``, the status RUNNING, and its place in ``running``, behind those who
        came earlier. Taking it out of ``waiting`` is left to ``select``. Returns whether it runs.
        """
        needed = self.reservation(sequence.request)
        if needed > self.slots.num_free:
            return False
        sequence.memory = self.slots.allocate(needed)
        sequence.status = Status.RUNNING
        self.running[sequence] = None
        return True

    def _end_overruns(self) -> tuple[Event, ...]:
        """Fail who outgrew its slots: the output was longer than the oracle said."""
        overruns = [s for s in self.running if not s.in_flight and len(s.token_ids) > len(s.memory)]
        for sequence in overruns:
            sequence.finish_reason, sequence.status = "error", Status.FINISHED
            self.drop(sequence)
        return tuple(Event("failed", sequence, OVERRUN) for sequence in overruns)

    def wake_at(self, now: float) -> float | None:
        """Only an arrival or a completion changes anything."""
        return None

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Count what is cached of each sequence (``advance``), and drop those that finished.

        An outcome's ``finish_reason`` says that it did; it may be "abort". Returns the sequences of all outcomes,
        finished or not: every token is delivered at once.
        """
        sequences = []
        for outcome in outcomes:
            advance(outcome)
            sequences.append(outcome.sequence)
            if outcome.finish_reason:
                self.drop(outcome.sequence)
        return sequences

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out of ``running``, and give all of its slots back."""
        del self.running[sequence]
        self.slots.free(sequence.memory)

    def abort(self, request_id: str, now: float) -> None:
        """Take the request's sequences off the queue, and drop those that run and are not in flight.

        Who waits holds no slots yet. Who is in flight comes to ``settle`` with its finish reason set, and leaves then.
        """
        self.waiting = deque(sequence for sequence in self.waiting if sequence.request.id != request_id)
        for sequence in [s for s in self.running if s.request.id == request_id and not s.in_flight]:
            self.drop(sequence)

    def load(self) -> Load:
        """Reserved slots, and those that hold a token."""
        filled = filled_tokens(self.running)
        return Load(len(self.waiting), len(self.running), 0, self.slots.used_tokens, filled)

    def check_integrity(self) -> None:
        """Raise AssertionError if a slot is lost or owned twice."""
        self.slots.check_integrity(sequence.memory for sequence in self.running)
