"""Lesson 7, Continuous batching: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-7              all tasks; T=2 for one of them
    make hint L=7 T=2       the next hint for a task
    make peek L=7 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 7 --task 2`, `minillm lab hint 7 2` and `minillm lab peek 7 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from collections import deque
from collections.abc import Iterable

from minillm.batch import Batch, Outcome
from minillm.request import Request
from minillm.schedulers.orca import Reservation, _true_output
from minillm.schedulers.shared import advance
from minillm.sequence import Sequence, Status

# Given in minillm/schedulers/orca.py:
#
# def _true_output(request: Request) -> int:
#     """Tokens that the answer will have: ``expected_output``, or ``max_tokens`` where that is not known."""
#
# Reservation = Callable[[Request], int]

# Given in minillm/request.py:
#
# @dataclass(frozen=True, slots=True)
# class Request:
#     """One request as the scheduler and the engine see it."""
#     id: str
#     prompt_token_ids: tuple[int, ...]
#     params: SamplingParams = field(default_factory=SamplingParams)
#     arrival: float = 0.0
#     priority: int = 0
#     deadline: float | None = None
#     session: str | None = None
#     cache_salt: str | None = None
#     expected_output: int | None = None
#
# @dataclass(frozen=True, slots=True)
# class SamplingParams:
#     """How to sample; names and meanings follow vLLM's ``SamplingParams``."""
#     n: int = 1
#     max_tokens: int = 16
#     min_tokens: int = 0
#     temperature: float = 1.0
#     top_k: int = 0
#     top_p: float = 1.0
#     min_p: float = 0.0
#     repetition_penalty: float = 1.0
#     seed: int = 0
#     stop: tuple[str, ...] = ()
#     stop_token_ids: tuple[int, ...] = ()
#     ignore_eos: bool = False
#     logprobs: int | None = None


# Task 1: 10 points, about 15 minutes, section 7.4 How much to reserve, for 4 functions together. The first:
def reserve_exact(request: Request) -> int:
    """Prompt and ``max_tokens``: Algorithm 1's ``max_tokens``."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, function 2 of 4
def reserve_max(max_context: int) -> Reservation:
    """The model's whole context for everyone: Orca (Max) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, function 3 of 4
def reserve_pow2(request: Request) -> int:
    """The true output rounded up to a power of two: Orca (Pow2) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, function 4 of 4
def reserve_oracle(request: Request) -> int:
    """The true output length, which no server can know: Orca (Oracle) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Given in minillm/cache/blocks.py:
#
# class BlockManager:
#     """Block tables over a pool on the device, and a second pool on the host to swap out to."""
#
#     @property
#     def num_free(self) -> int:
#         """Free blocks on the device."""
#
#     def allocate(self, num_tokens: int) -> BlockTable:
#         """A new table with room for ``num_tokens`` tokens, of which it takes all or, raising OutOfBlocks, none."""
#
#     def free(self, table: BlockTable) -> None:
#         """Give a table's blocks up, and empty it."""
#
# BlockTable = list[int]

# Given in minillm/sequence.py:
#
# @dataclass(slots=True, eq=False)
# class Sequence:
#     """A request's tokens, or one of its ``n`` branches."""
#     request: Request
#     branch: int = 0
#     branches: int = 1
#     token_ids: list[int] = field(default_factory=list)
#     computed: int = 0
#     draft_token_ids: tuple[int, ...] = ()
#     in_flight: bool = False
#     status: Status = Status.WAITING
#     memory: Any = None
#     finish_reason: FinishReason | None = None
#
#     @property
#     def finished(self) -> bool:
#         """Whether no token will follow."""
#
# class Status(Enum):
#     """Where a sequence stands. A preempted sequence waits again."""
#     WAITING = "waiting"
#     RUNNING = "running"
#     SWAPPED = "swapped"
#     FINISHED = "finished"

# Given in minillm/schedulers/shared.py:
#
# def advance(outcome: Outcome) -> None:
#     """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""

# Given in minillm/batch.py:
#
# @dataclass(frozen=True, slots=True)
# class Outcome:
#     """What the engine kept of a result, one per sequence whose cache or answer grew."""
#     sequence: Sequence
#     span: Span
#     token_ids: tuple[int, ...] = ()
#     finish_reason: FinishReason | None = None


class Orca:
    """At most ``max_bs`` sequences a pass, on ``n_slots`` cache slots of one token each.

    Slots are cells of a paged cache with blocks of one token: a reservation is a count, not a place. A request that
    reserves more than ``n_slots`` is refused; Algorithm 1 would let it block everyone behind it for ever. Raises
    ValueError for a size below 1.
    """

    # Given in minillm/schedulers/orca.py:
    #
    # class Orca:
    #     def __init__(self, max_bs: int, n_slots: int, reservation: Reservation = reserve_exact) -> None:
    #         require_positive(max_bs=max_bs, n_slots=n_slots)
    #         self.max_bs = max_bs
    #         self.reservation = reservation
    #         self.slots = BlockManager(n_slots, block_size=1)
    #         self.memory = PagedMemory(n_slots, block_size=1)
    #         self.waiting: deque[Sequence] = deque()
    #         self.running: dict[Sequence, None] = {}

    # Task 2: 15 points, about 15 minutes, section 7.4 How much to reserve
    def reserve(self, sequence: Sequence) -> bool:
        """Set slots aside for a sequence's whole life and let it run, or change nothing if too few are free.

        Who gets them has its slots in ``memory``, the status RUNNING, and its place in ``running``, behind those who
        came earlier. Taking it out of ``waiting`` is left to ``select``. Returns whether it runs.
        """
        raise NotImplementedError(
            "lesson 7, task 2: reserve slots for a sequence's whole life, or leave everything as it was"
        )

    # Task 3: 30 points, about 25 minutes, section 7.5 Who runs in the next pass
    def select(self) -> list[Sequence]:
        """Select of Algorithm 1: the oldest sequences not in flight, stopping at the first that cannot be reserved."""
        raise NotImplementedError("lesson 7, task 3: select the sequences of the next pass: Algorithm 1's Select")

    # Task 4: 25 points, about 20 minutes, section 7.6 Who leaves, and when, for 3 functions together. The first:
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Count what is cached of each sequence (``advance``), and drop those that finished.

        An outcome's ``finish_reason`` says that it did; it may be "abort". Returns the sequences of all outcomes,
        finished or not: every token is delivered at once.
        """
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")

    # Task 4, function 2 of 3
    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out of ``running``, and give all of its slots back."""
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")

    # Task 4, function 3 of 3
    def abort(self, request_id: str, now: float) -> None:
        """Take the request's sequences off the queue, and drop those that run and are not in flight.

        Who waits holds no slots yet. Who is in flight comes to ``settle`` with its finish reason set, and leaves then.
        """
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")


# Given in minillm/simulator/runner.py:
#
# Cost = Callable[[Batch], float]

# Given in minillm/runner.py:
#
# Execute = Callable[[Batch], list[Result]]


class SimulatedRunner:
    """A pipeline of ``depth`` equal stages that a batch passes in ``cost(batch)`` seconds.

    What a batch computes is ``execute``'s business: the real model under simulated time leaves the same records as
    ``ScriptedModel`` does, wherever both sample the same lengths.
    """

    # Given in minillm/simulator/runner.py:
    #
    # class SimulatedRunner:
    #     def __init__(self, execute: Execute, cost: Cost, depth: int = 1) -> None:
    #         self.depth = depth
    #         self._execute = execute
    #         self._cost = cost
    #         self._stage_free = [0.0] * depth
    #         self._in_flight: deque[tuple[list[Result], float]] = deque()
    #
    #     def ready_at(self) -> float:
    #         """When the oldest batch leaves the last stage."""
    #
    #     def collect(self) -> list[Result]:
    #         """The oldest batch's results."""

    # Task 5: 20 points, about 20 minutes, section 7.7 Several batches in flight
    def submit(self, batch: Batch, now: float) -> None:
        """Enter the first stage as soon as it is free, and each next one likewise.

        ``_stage_free`` holds when each stage is free again. What the batch computes and when it leaves the last stage
        are appended to ``_in_flight``, for ``collect`` and ``ready_at``.
        """
        raise NotImplementedError("lesson 7, task 5: let batches follow each other through the stages of a pipeline")
