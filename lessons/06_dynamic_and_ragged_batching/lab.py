"""Lesson 6, Dynamic and ragged batching: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-6              all tasks; T=2 for one of them
    make hint L=6 T=2       the next hint for a task
    make peek L=6 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 6 --task 2`, `minillm lab hint 6 2` and `minillm lab peek 6 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

import heapq
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from minillm.batch import Batch, next_span
from minillm.request import Request
from minillm.schedulers.dynamic import Candidates
from minillm.schedulers.priority_queue import Waiting
from minillm.schedulers.ragged_inputs import Counts, Shapes, _fill
from minillm.sequence import Sequence

# Given in minillm/schedulers/priority_queue.py:
#
# @dataclass(slots=True)
# class Level:
#     """One level's requests by id, oldest first; those that expired and may still run wait in ``delayed``."""
#     policy: QueuePolicy
#     main: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
#     delayed: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
#
# @dataclass(slots=True, eq=False)
# class Waiting:
#     """A request in the queue: its samples, when it came, and the last moment at which it has not expired."""
#     samples: list[Sequence]
#     since: float
#     deadline: float
#
#     @property
#     def id(self) -> str:
#         """The request's id."""
#
# class PriorityQueue:
#     """Levels 1, 2, ... of falling urgency, one per policy; first come, first served within a level."""
#
#     def push(self, samples: list[Sequence], now: float) -> None:
#         """Queue a request's samples. Raises Refused when its level is full."""
#
#     def next_deadline(self) -> float:
#         """The earliest deadline of those that have not expired, or infinity; drops entries of who left the queue."""

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


class QueuePolicy:
    """The bounds of one level. Names and defaults are Triton's, times are in seconds.

    max_queue_size           most requests in the level; 0 is no bound
    default_timeout          longest time that a request may wait; 0 is no bound
    timeout_action           what an expired request gets: "reject" ends it, "delay" lets it wait behind all others
    allow_timeout_override   whether a request's own deadline counts where it is earlier; it never adds a timeout

    Raises ValueError for a bound that is negative or infinite, and for an unknown action.
    """

    # Given in minillm/schedulers/priority_queue.py:
    #
    # @dataclass(frozen=True, slots=True)
    # class QueuePolicy:
    #     max_queue_size: int = 0
    #     default_timeout: float = 0.0
    #     timeout_action: Literal["reject", "delay"] = "reject"
    #     allow_timeout_override: bool = False

    # Task 1: 15 points, about 20 minutes, section 6.3 The queue, for 3 functions together. The first:
    def deadline(self, request: Request, now: float) -> float:
        """The last moment at which a request that is queued now has not expired; infinite for none.

        The request's own deadline is a moment on the same clock as ``now``, and None for none.
        """
        raise NotImplementedError("lesson 6, task 1: serve the queue by urgency, and let requests expire")


class PriorityQueue:
    """Levels 1, 2, ... of falling urgency, one per policy; first come, first served within a level.

    A request of priority 0, or of one that does not exist, goes to the ``default_level``. Iterating yields requests
    in the order in which they are served: level by level, in each the delayed ones last. Raises ValueError for a
    default level that does not exist.
    """

    # Given in minillm/schedulers/priority_queue.py:
    #
    # class PriorityQueue:
    #     def __init__(self, policies: Collection[QueuePolicy] = (QueuePolicy(),), default_level: int = 1) -> None:
    #         if not 1 <= default_level <= len(policies):
    #             raise ValueError(
    #                 f"default_level is {default_level} and there are {len(policies)} priority levels; name one from 1
    #                         on"
    #             )
    #         self.levels = {number: Level(policy) for number, policy in enumerate(policies, start=1)}
    #         self.default_level = default_level
    #         # A heap of (deadline, number of the push, level, request); one that left the queue may still be in it.
    #         self._deadlines: list[tuple[float, int, Level, Waiting]] = []
    #         self._pushed = 0

    # Task 1, function 2 of 3
    def __iter__(self) -> Iterator[Waiting]:
        raise NotImplementedError("lesson 6, task 1: serve the queue by urgency, and let requests expire")

    # Task 1, function 3 of 3
    def expire(self, now: float) -> list[Waiting]:
        """Delay or take out every request whose deadline has passed, as its level's ``timeout_action`` says.

        The earliest deadline goes first, across all levels: in this order those that were taken out are returned, and
        those that are delayed line up behind the ones that were delayed before.
        """
        raise NotImplementedError("lesson 6, task 1: serve the queue by urgency, and let requests expire")


# Given in minillm/schedulers/dynamic.py:
#
# @dataclass(frozen=True, slots=True)
# class Candidates:
#     """Those at the head of the queue that could share a batch."""
#     requests: list[Waiting]
#     preferred: int
#     closed: bool
#
#     @property
#     def size(self) -> int:
#         """Samples of all of them."""
#
#     @property
#     def oldest(self) -> float:
#         """When the first of them came; infinite where there are none."""

# Given in minillm/schedulers/run_to_completion.py:
#
# class RunToCompletion(ABC):
#     """Padded batches on a rectangle of ``max_batch_size`` rows and ``columns`` tokens."""
#
#     def fits(self, sequences: list[Sequence]) -> bool:
#         """Whether these sequences can share one rectangle."""


class Dynamic:
    """Batches of a preferred size at once, others when the oldest has waited ``max_queue_delay`` seconds.

    ``preferred_batch_sizes`` is empty for ``max_batch_size`` alone. ``queue_policies`` has one entry per priority
    level, the most urgent first; a level that is full refuses with the code "queue_full". Raises ValueError for a
    preferred size above ``max_batch_size``, and for a delay that is negative or infinite.
    """

    # Given in minillm/schedulers/dynamic.py:
    #
    # class Dynamic(RunToCompletion):
    #     def __init__(
    #         self,
    #         max_batch_size: int,
    #         columns: int,
    #         *,
    #         preferred_batch_sizes: Collection[int] = (),
    #         max_queue_delay: float = 0.0,
    #         queue_policies: Collection[QueuePolicy] = (QueuePolicy(),),
    #         default_level: int = 1,
    #     ) -> None:
    #         super().__init__(max_batch_size, columns)
    #         for size in preferred_batch_sizes:
    #             if not 1 <= size <= max_batch_size:
    #                 raise ValueError(f"preferred batch size {size} must lie in 1 .. max_batch_size
    #                         ({max_batch_size})")
    #         if not 0 <= max_queue_delay < math.inf:
    #             raise ValueError(f"max_queue_delay is {max_queue_delay}; it must be finite and at least 0 seconds")
    #         self.preferred_batch_sizes = frozenset(preferred_batch_sizes or [max_batch_size])
    #         self.max_queue_delay = max_queue_delay
    #         self.waiting: PriorityQueue = PriorityQueue(queue_policies, default_level)

    # Task 2: 25 points, about 25 minutes, section 6.4 Who could share a batch
    def candidates(self) -> Candidates:
        """Look at the queue in order, no further than the first request that does not fit beside those before it.

        The best cut is at the largest preferred size that is met exactly, else before the largest one is passed, by
        whichever request, joined or not. ``preferred`` is the number of requests before it, 0 where there is no cut;
        ``closed`` is whether the walk ended at one that does not fit.
        """
        raise NotImplementedError("lesson 6, task 2: find who could share the next batch, and the best size among them")

    # Task 3: 25 points, about 25 minutes, section 6.5 When a batch starts, for 2 functions together. The first:
    def choose(self, candidates: Candidates, now: float) -> list[Waiting]:
        """The best preferred size, unless someone is late; everyone, if nothing is gained by waiting; else nobody.

        Without a delay nobody waits and nobody is late, so preferred sizes still go first.
        """
        raise NotImplementedError(
            "lesson 6, task 3: decide whether a batch starts now, with whom, and when to ask again"
        )

    # Task 3, function 2 of 2
    def wake_at(self, now: float) -> float | None:
        """When to ask again though nothing arrives or completes, or None for never: the earlier of two moments.

        One is when the oldest candidate has waited for the whole delay; while a batch runs (``rows`` holds it) that
        does not count. The other is the first moment after the next deadline.
        """
        raise NotImplementedError(
            "lesson 6, task 3: decide whether a batch starts now, with whom, and when to ask again"
        )


# Given in minillm/schedulers/ragged_inputs.py:
#
# def _fill(values: list[int], entries: int | None, tail: int) -> Counts:
#     """The values in a buffer of so many entries, or just as many as there are values."""


# Task 4: 20 points, about 20 minutes, section 6.7 Ragged inputs and their offsets, for 6 functions together. The first:
def element_count(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ELEMENT_COUNT ``[requests]``, int32: how many elements each request has.

    A buffer of more ``entries`` ends in zeros. Raises ValueError for one of too few, as the next two do.
    """
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Task 4, function 2 of 6
def accumulated_element_count(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ACCUMULATED_ELEMENT_COUNT ``[requests]``, int32: where each request's elements end in the flat buffer.

    A buffer of more ``entries`` repeats the last end, so that what is beyond owns nothing.
    """
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Task 4, function 3 of 6
def accumulated_element_count_with_zero(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO ``[requests + 1]``: request i owns ``[result[i], result[i + 1])``.

    An int32 array. A buffer of more ``entries``, which count the leading zero too, repeats the last end.
    """
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Task 4, function 4 of 6
def max_element_count_as_shape(shapes: Shapes) -> Counts:
    """BATCH_MAX_ELEMENT_COUNT_AS_SHAPE ``[largest count]``, int32: the shape is the message, the contents undefined."""
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Task 4, function 5 of 6
def item_shape(shapes: Shapes) -> Counts:
    """BATCH_ITEM_SHAPE ``[items, rank - 1]``: the shape of each item of each request, without the batch dimension.

    An int32 array. Raises ValueError for inputs of unequal ranks.
    """
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Task 4, function 6 of 6
def item_shape_flatten(shapes: Shapes) -> Counts:
    """BATCH_ITEM_SHAPE_FLATTEN ``[items * (rank - 1)]``: the same in one row."""
    raise NotImplementedError("lesson 6, task 4: describe a ragged batch by the six kinds of batch_input")


# Given in minillm/batch.py:
#
# def next_span(sequence: Sequence, limit: int | None = None) -> Span:
#     """All that the cache lacks of a sequence, or at most ``limit`` tokens of it.
#
#     Only a span that reaches the sequence's last token samples: once for each of ``sequence.branches``, mostly 1.
#     Drafts (lesson 16; none before) are guesses of what follows that token. They are uncomputed too: the span computes
#     as many of the first as the limit leaves room for, and draws no more samples for them.
#     """
#
# @dataclass(frozen=True, slots=True)
# class Batch:
#     """One pass. ``held`` are finished rows that a padded batch goes on computing."""
#     spans: tuple[Span, ...] = ()
#     held: tuple[Sequence, ...] = ()
#     rectangle: Rectangle | None = None
#     moves: BlockMoves = BlockMoves()
#     events: tuple[Event, ...] = ()
#
# @dataclass(frozen=True, slots=True)
# class Span:
#     """Tokens ``[start, start + length)`` of a sequence, computed in one pass."""
#     sequence: Sequence
#     start: int
#     length: int
#     samples: int = 0
#     draft_token_ids: tuple[int, ...] = ()

# Given in minillm/cache/blocks.py:
#
# BlockTable = list[int]

# Given in minillm/schedulers/run_to_completion.py:
#
# class RunToCompletion(ABC):
#     """Padded batches on a rectangle of ``max_batch_size`` rows and ``columns`` tokens."""
#
#     def plan(self) -> Batch:
#         """One rectangular pass over all rows, live and finished."""

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


class Ragged:
    """The dynamic batcher on a paged cache of one block of ``columns`` tokens for each of ``max_batch_size`` rows."""

    # Given in minillm/schedulers/ragged.py:
    #
    # class Ragged(Dynamic):
    #     ...

    # Task 5: 15 points, about 15 minutes, section 6.8 A batch without padding, for 3 functions together. The first:
    def fits(self, sequences: list[Sequence]) -> bool:
        """Rows do not share their columns: only their number counts."""
        raise NotImplementedError("lesson 6, task 5: make the dynamic batch ragged")

    # Task 5, function 2 of 3
    def places(self, sequences: list[Sequence]) -> list[Any]:
        """A block table for each sequence, a list of the one block that it has: 0, 1, ... in their order."""
        raise NotImplementedError("lesson 6, task 5: make the dynamic batch ragged")

    # Task 5, function 3 of 3
    def plan(self) -> Batch:
        """One pass over the tokens that the cache lacks of those in ``rows`` that have not finished."""
        raise NotImplementedError("lesson 6, task 5: make the dynamic batch ragged")
