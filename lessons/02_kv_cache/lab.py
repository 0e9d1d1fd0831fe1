"""Lesson 2, KV cache: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-2              all tasks; T=2 for one of them
    make hint L=2 T=2       the next hint for a task
    make peek L=2 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 2 --task 2`, `minillm lab hint 2 2` and `minillm lab peek 2 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minillm.batch import Batch, Rectangle
from minillm.cache.flat import Pass
from minillm.cache.rectangle import PAD_TOKEN, left_padding

# Given in minillm/batch.py:
#
# @dataclass(frozen=True, slots=True)
# class Rectangle:
#     """The shape of a padded pass: every row computes ``width`` tokens and reads ``context`` tokens of cache."""
#     rows: int
#     width: int
#     context: int


# Task 1: 25 points, about 15 minutes, section 2.3 Store: append to the rows, for 2 functions together. The first:
def by_row(x: Tensor, shape: Rectangle) -> Tensor:
    """Flat tokens in rows, heads first: ``[rows * width, heads, head_dim]`` to ``[rows, heads, width, head_dim]``.

    The result shares the memory of ``x``.
    """
    raise NotImplementedError(
        "lesson 2, task 1: append a pass's keys and values to their rows, and return all that stands there"
    )


# Given in minillm/cache/rectangle.py:
#
# PAD_TOKEN = 0
#
# def left_padding(batch: Batch, rows: int) -> Ints:
#     """How many columns of each row lie before its sequence's first token: ``[rows, 1]``."""

# Given in minillm/cache/flat.py:
#
# @dataclass(frozen=True, slots=True)
# class Pass:
#     """What the model computes in one pass."""
#     token_ids: Tensor
#     positions: Tensor
#     sample_rows: Tensor
#     attend: Attend
#
#     @classmethod
#     def from_arrays(cls, token_ids: Ints, positions: Ints, sample_rows: Ints, attend: Attend) -> "Pass":
#         """The same, from numpy arrays, whose memory the tensors share."""

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
# class Span:
#     """Tokens ``[start, start + length)`` of a sequence, computed in one pass."""
#     sequence: Sequence
#     start: int
#     length: int
#     samples: int = 0
#     draft_token_ids: tuple[int, ...] = ()
#
#     @property
#     def end(self) -> int:
#         """The context length after this pass, in tokens."""
#
#     @property
#     def token_ids(self) -> list[int]:
#         """The tokens to compute, drafts last."""

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

# Given in minillm/cache/memory.py:
#
# @dataclass(frozen=True, slots=True)
# class Row:
#     """A sequence's row of the rectangle, and how many columns before its first token are padding."""
#     index: int
#     padding: int


class RectangleCache:
    """Keys and values ``[layers, rows, kv_heads, columns, head_dim]``.

    ``fill`` is what a fresh row holds; every column that is read was written by its own batch before.
    """

    # Given in minillm/cache/rectangle.py:
    #
    # class RectangleCache:
    #     def __init__(self, config: ModelConfig, memory: RectangleMemory, dtype: torch.dtype, fill: float = 0.0) ->
    #             None:
    #         shape = (config.num_layers, memory.rows, config.kv_heads, memory.columns, config.head_dim)
    #         self.k, self.v = (torch.full(shape, fill, dtype=dtype) for _ in "kv")
    #         self.scale = config.head_dim**-0.5

    # Task 1, function 2 of 2
    def store(self, shape: Rectangle, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values into the last ``width`` columns of the context; return the whole context.

        k, v ``[rows * width, kv_heads, head_dim]``; result ``[rows, kv_heads, context, head_dim]`` each.
        """
        raise NotImplementedError(
            "lesson 2, task 1: append a pass's keys and values to their rows, and return all that stands there"
        )

    # Task 3: 20 points, about 10 minutes, section 2.6 Attend: read everything back
    def attend(self, shape: Rectangle, mask: Tensor, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store this pass's keys and values, and look back on all that stand in the rows.

        q ``[rows * width, heads, head_dim]``; k, v ``[rows * width, kv_heads, head_dim]``; mask bool ``[rows, 1, width,
        context]``; result ``[rows * width, heads, head_dim]``.
        """
        raise NotImplementedError(
            "lesson 2, task 3: store this pass's keys and values, and attend to everything in the rows"
        )

    # Task 4: 30 points, about 20 minutes, section 2.7 Lower: from a batch to flat arrays
    def lower(self, batch: Batch) -> Pass:
        """Lay a padded batch out as its rectangle, row by row. Raises ValueError for a batch without a rectangle.

        Each span stands at the right end of row ``span.sequence.memory.index``, whatever its place in the batch;
        PAD_TOKEN fills what is left, rows without a span included. Positions count from a sequence's first token, which
        stands in column ``memory.padding``; the padding before it has position 0. ``sample_rows`` names the last token
        of each span that samples, in the order of the spans; no span samples more than once, none has drafts. The
        arrays are int64.
        """
        raise NotImplementedError(
            "lesson 2, task 4: lay a batch out as flat arrays: token ids, positions, rows to sample from, and its "
            "attend"
        )


# Task 2: 25 points, about 15 minutes, section 2.5 Mask: who looks at whom
def attention_mask(shape: Rectangle, padding: Tensor) -> Tensor:
    """Which columns each token of a pass looks at: real tokens at the real ones up to their own, padding at padding.

    The result of a padding token is thrown away. It looks at the padding up to its own column, itself included, for a
    softmax over nothing may be NaN.

    padding ``[rows, 1]``, the columns before each row's first token; result bool ``[rows, 1, width, context]``.
    """
    raise NotImplementedError(
        "lesson 2, task 2: say which columns each token of a pass looks at: real tokens at the real ones up to their "
        "own, padding at padding"
    )
