"""Lesson 5, Static batching: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-5              all tasks; T=2 for one of them
    make hint L=5 T=2       the next hint for a task
    make peek L=5 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 5 --task 2`, `minillm lab hint 5 2` and `minillm lab peek 5 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minillm.batch import Batch, Outcome, Rectangle, next_span
from minillm.cache.memory import Row
from minillm.metrics import Waste
from minillm.records import StepRecord
from minillm.schedulers.shared import advance
from minillm.sequence import Sequence

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

# Given in minillm/batch.py:
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
# class Outcome:
#     """What the engine kept of a result, one per sequence whose cache or answer grew."""
#     sequence: Sequence
#     span: Span
#     token_ids: tuple[int, ...] = ()
#     finish_reason: FinishReason | None = None


class Single:
    """A batch of one request, whose tokens are delivered as they come."""

    # Given in minillm/schedulers/single.py:
    #
    # class Single(Static):
    #     def __init__(self, columns: int, max_samples: int = 1) -> None:
    #         super().__init__(max_samples, columns)

    # Task 1: 10 points, about 10 minutes, section 5.2 One request at a time, for 2 functions together. The first:
    def form(self, now: float) -> list[Sequence]:
        """The oldest request's samples; none to wait."""
        raise NotImplementedError("lesson 5, task 1: one request at a time, whose tokens are delivered as they come")

    # Task 1, function 2 of 2
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Account for a pass as any batch does, but deliver each token at once."""
        raise NotImplementedError("lesson 5, task 1: one request at a time, whose tokens are delivered as they come")


# Given in minillm/sequence.py:
#
# @dataclass(slots=True, eq=False)
# class Sequence:
#     """A request's tokens, or one of its ``n`` branches."""
#
#     @property
#     def prompt_length(self) -> int:
#         """Tokens of the client's prompt."""
#
#     @property
#     def finished(self) -> bool:
#         """Whether no token will follow."""

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
# class Span:
#     """Tokens ``[start, start + length)`` of a sequence, computed in one pass."""
#     sequence: Sequence
#     start: int
#     length: int
#     samples: int = 0
#     draft_token_ids: tuple[int, ...] = ()
#
# @dataclass(frozen=True, slots=True)
# class Rectangle:
#     """The shape of a padded pass: every row computes ``width`` tokens and reads ``context`` tokens of cache."""
#     rows: int
#     width: int
#     context: int
#
# @dataclass(frozen=True, slots=True)
# class Event:
#     """What a scheduler did to a sequence besides running it. An event whose sequence is finished ends it."""
#     kind: EventKind
#     sequence: Sequence
#     reason: str = ""

# Given in minillm/cache/memory.py:
#
# @dataclass(frozen=True, slots=True)
# class Row:
#     """A sequence's row of the rectangle, and how many columns before its first token are padding."""
#     index: int
#     padding: int

# Given in minillm/schedulers/shared.py:
#
# def advance(outcome: Outcome) -> None:
#     """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""


class RunToCompletion:
    """Padded batches on a rectangle of ``max_batch_size`` rows and ``columns`` tokens.

    A batch is padded to its longest prompt and needs ``longest prompt + largest max_tokens`` columns. Subclasses own
    the queue (``waiting``, ``enqueue``, ``withdraw``) and say who goes next (``form``). Raises ValueError for a size
    below 1.
    """

    # Given in minillm/schedulers/run_to_completion.py:
    #
    # class RunToCompletion(ABC):
    #     waiting: Sized
    #
    #     def __init__(self, max_batch_size: int, columns: int) -> None:
    #         require_positive(max_batch_size=max_batch_size, columns=columns)
    #         self.max_batch_size = max_batch_size
    #         self.columns = columns
    #         self.rows: list[Sequence] = []
    #         self.passes = 0
    #         self.pass_in_flight = False
    #
    #     @abstractmethod
    #     def form(self, now: float) -> list[Sequence]:
    #         """Take the next batch's sequences off the queue; none to wait."""
    #
    #     def left_behind(self) -> tuple[Event, ...]:
    #         """Deliver what a batch leaves whose last live row was aborted between two passes: no pass will do it."""
    #
    #     def open(self, sequences: list[Sequence]) -> None:
    #         """Give each sequence of a new batch its place."""
    #
    #     @property
    #     def abandoned(self) -> bool:
    #         """Whether every row of the running batch was aborted, so that nobody waits for it."""
    #
    #     def close(self) -> list[Sequence]:
    #         """Empty the rows, and return the sequences that had them."""

    # Task 2: 15 points, about 15 minutes, section 5.3 Forming a batch, for 2 functions together. The first:
    def fits(self, sequences: list[Sequence]) -> bool:
        """Whether these sequences can share one rectangle."""
        raise NotImplementedError(
            "lesson 5, task 2: form a batch: as many waiting requests as share a rectangle, in the order of arrival"
        )

    # Task 3: 20 points, about 20 minutes, section 5.4 The rectangle, for 2 functions together. The first:
    def places(self, sequences: list[Sequence]) -> list[Any]:
        """The memory of each sequence of a batch: a row, padded on the left to the longest prompt.

        ``sequences`` may be empty.
        """
        raise NotImplementedError(
            "lesson 5, task 3: lay the batch out: rows padded on the left, and one rectangular pass over live and "
            "finished rows"
        )

    # Task 3, function 2 of 2
    def plan(self) -> Batch:
        """One rectangular pass over all rows, live and finished."""
        raise NotImplementedError(
            "lesson 5, task 3: lay the batch out: rows padded on the left, and one rectangular pass over live and "
            "finished rows"
        )

    # Task 4: 20 points, about 20 minutes, section 5.5 Nobody joins a running batch
    def schedule(self, now: float) -> Batch | None:
        """The next pass of the running batch, or the first of a new one; one pass at a time.

        With it go the events of ``left_behind``, which may empty the rows; without a pass they go alone.
        """
        raise NotImplementedError(
            "lesson 5, task 4: the next pass of the running batch, or the first of a new one; nobody joins in between"
        )

    # Task 5: 15 points, about 15 minutes, section 5.6 When a batch ends, for 2 functions together. The first:
    @property
    def complete(self) -> bool:
        """Whether the running batch may leave."""
        raise NotImplementedError(
            "lesson 5, task 5: account for a pass; when the longest answer has ended, deliver everything and leave"
        )

    # Task 5, function 2 of 2
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Account for a pass that is no longer in flight, and return the sequences to deliver.

        None until the batch is complete, then all of it, and its rows are empty; an abandoned batch leaves at once.
        """
        raise NotImplementedError(
            "lesson 5, task 5: account for a pass; when the longest answer has ended, deliver everything and leave"
        )


class Static:
    """First come, first served; a request that does not fit beside those before it ends the batch."""

    # Given in minillm/schedulers/static.py:
    #
    # class Static(RunToCompletion):
    #     def __init__(self, max_batch_size: int, columns: int) -> None:
    #         super().__init__(max_batch_size, columns)
    #         self.waiting: deque[list[Sequence]] = deque()

    # Task 2, function 2 of 2
    def form(self, now: float) -> list[Sequence]:
        """As many waiting sequences as share a rectangle."""
        raise NotImplementedError(
            "lesson 5, task 2: form a batch: as many waiting requests as share a rectangle, in the order of arrival"
        )


# Given in minillm/records.py:
#
# @dataclass(frozen=True, slots=True)
# class StepRecord:
#     """One pass, from its scheduling (``start``) to its settling (``end``), in seconds on the engine's clock."""
#     index: int
#     start: float
#     end: float
#     layout: str
#     spans: tuple[SpanRecord, ...]
#     held: tuple[str, ...]
#     events: tuple[EventRecord, ...]
#     computed_tokens: int
#     useful_tokens: int
#     context_tokens: int
#     swapped_out: int
#     swapped_in: int
#     copied: int
#     waiting: int
#     running: int
#     swapped: int
#     reserved_tokens: int
#     filled_tokens: int
#     sampled: tuple[tuple[str, int], ...] = ()
#     delivered: tuple[tuple[str, int], ...] = ()
#     finished: tuple[tuple[str, str], ...] = ()
#
# @dataclass(frozen=True, slots=True)
# class SpanRecord:
#     """A span that ran: whose, from which token, how many, and how many tokens it was to sample."""
#     sequence: str
#     start: int
#     length: int
#     samples: int
#     prompt: int

# Given in minillm/metrics.py:
#
# @dataclass(frozen=True, slots=True)
# class Waste:
#     """What became of the tokens that the model computed."""
#     useful: int
#     padding: int
#     held: int


# Task 6: 20 points, about 15 minutes, section 5.7 The waste, counted
def waste(steps: Iterable[StepRecord]) -> Waste:
    """Count useful, padding and held tokens; together they are all that was computed."""
    raise NotImplementedError("lesson 5, task 6: count useful, padding and held tokens")
