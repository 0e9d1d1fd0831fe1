"""What one pass does: the spans it computes, on which memory, and what came of them. Plain data."""

from dataclasses import dataclass
from typing import Literal

from minillm.sequence import FinishReason, Sequence

BlockPairs = tuple[tuple[int, int], ...]
"""(source block, target block) pairs."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``[start, start + length)`` of a sequence, computed in one pass.

    Prefill, decode, a prompt's chunk, recomputation after a preemption and the verification of drafts are all spans.
    ``samples`` tokens are drawn from the last position: 0 while a prompt is unfinished, else 1, or n where a prompt's
    end forks into n branches.
    """

    sequence: Sequence
    start: int
    length: int
    samples: int = 0
    draft_token_ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The context length after this pass, in tokens."""
        return self.start + self.length

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute, drafts last."""
        return [*self.sequence.token_ids[self.start : self.end - len(self.draft_token_ids)], *self.draft_token_ids]


def next_span(sequence: Sequence, limit: int | None = None) -> Span:
    """All that the cache lacks of a sequence, or at most ``limit`` tokens of it.

    Only a span that reaches the sequence's last token samples: once for each of ``sequence.branches``, mostly 1.
    Drafts (lesson 16; none before) are guesses of what follows that token. They are uncomputed too: the span computes
    as many of the first as the limit leaves room for, and draws no more samples for them.
    """
    length = sequence.uncomputed if limit is None else min(limit, sequence.uncomputed)
    beyond = sequence.computed + length - len(sequence.token_ids)
    drafts = sequence.draft_token_ids[: max(0, beyond)]
    return Span(sequence, sequence.computed, length, sequence.branches if beyond >= 0 else 0, drafts)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The shape of a padded pass: every row computes ``width`` tokens and reads ``context`` tokens of cache."""

    rows: int
    width: int
    context: int


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Copies of cache blocks before a pass, in this order: swap out, swap in, copies on write."""

    swap_out: BlockPairs = ()
    swap_in: BlockPairs = ()
    copies: BlockPairs = ()

    def __bool__(self) -> bool:
        return bool(self.swap_out or self.swap_in or self.copies)


EventKind = Literal["preempted", "swapped out", "swapped in", "reset", "expired", "failed", "completed"]


@dataclass(frozen=True, slots=True)
class Event:
    """What a scheduler did to a sequence besides running it. An event whose sequence is finished ends it."""

    kind: EventKind
    sequence: Sequence
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass. ``held`` are finished rows that a padded batch goes on computing.

    A batch without spans and moves is a tick that is recorded and runs nothing.
    """

    spans: tuple[Span, ...] = ()
    held: tuple[Sequence, ...] = ()
    rectangle: Rectangle | None = None
    moves: BlockMoves = BlockMoves()
    events: tuple[Event, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether there is anything to compute or to copy: held rows are computed too."""
        return bool(self.spans or self.held or self.moves)

    @property
    def useful_tokens(self) -> int:
        """Tokens that some request needs."""
        return sum(span.length for span in self.spans)

    @property
    def computed_tokens(self) -> int:
        """Tokens that the model computes, padding and held rows included."""
        return self.rectangle.rows * self.rectangle.width if self.rectangle else self.useful_tokens

    @property
    def context_tokens(self) -> int:
        """Cached tokens that attention reads, padding included."""
        return self.rectangle.rows * self.rectangle.context if self.rectangle else sum(s.end for s in self.spans)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token's log-probability under the raw logits, and the likeliest tokens beside it."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What the runner made of a span: the sampled tokens (with drafts: those accepted and one more), or an error."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine kept of a result, one per sequence whose cache or answer grew.

    Where a span sampled n branches, the new branches' outcomes come first and the span's own sequence last, so a
    policy can share memory with each new branch before it frees or keeps the parent's.
    """

    sequence: Sequence
    span: Span
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None

    @property
    def forked(self) -> bool:
        """Whether the sequence is a new branch of its span's sequence."""
        return self.sequence is not self.span.sequence
