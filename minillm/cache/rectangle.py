"""The contiguous cache of a padded batch: one row per sequence, one column per token, filled left to right together.

Prompts are padded on the left to the longest, as Hugging Face's ``generate`` pads them, so that all rows end in the
same column and each pass writes one rectangle. Padding and held rows are really computed: that is the price which
static batching pays, and which later policies avoid.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.checks import Ints
from minillm.batch import Batch, BlockMoves, Rectangle
from minillm.cache.flat import Pass
from minillm.cache.memory import RectangleMemory
from minillm.model.transformer import ModelConfig

PAD_TOKEN = 0
"""Fills a row of a pass up. It is a token like any other: only the mask keeps others from reading it."""


class RectangleCache:
    """Keys and values ``[layers, rows, kv_heads, columns, head_dim]``.

    ``fill`` is what a fresh row holds; every column that is read was written by its own batch before.
    """

    def __init__(self, config: ModelConfig, memory: RectangleMemory, dtype: torch.dtype, fill: float = 0.0) -> None:
        shape = (config.num_layers, memory.rows, config.kv_heads, memory.columns, config.head_dim)
        self.k, self.v = (torch.full(shape, fill, dtype=dtype) for _ in "kv")
        self.scale = config.head_dim**-0.5

    def apply(self, moves: BlockMoves) -> None:
        """A rectangle has no blocks to move. Raises ValueError for a batch that wants to."""
        if moves:
            raise ValueError("a padded batch asked for block moves; they need a paged cache")

    def lower(self, batch: Batch) -> Pass:
        """Lay a padded batch out as its rectangle, row by row. Raises ValueError for a batch without a rectangle.

        Each span stands at the right end of row ``span.sequence.memory.index``, whatever its place in the batch;
        PAD_TOKEN fills what is left, rows without a span included. Positions count from a sequence's first token, which
        stands in column ``memory.padding``; the padding before it has position 0. ``sample_rows`` names the last token
        of each span that samples, in the order of the spans; no span samples more than once, none has drafts. The
        arrays are int64.
        """
        if batch.rectangle is None:
            raise ValueError("a ragged batch was given to the rectangle cache; it needs a paged cache")
        shape = batch.rectangle
        padding = left_padding(batch, shape.rows)
        token_ids = np.full((shape.rows, shape.width), PAD_TOKEN, dtype=np.int64)
        for span in batch.spans:
            token_ids[span.sequence.memory.index, shape.width - span.length :] = span.token_ids
        columns = np.arange(shape.context - shape.width, shape.context)
        positions = np.maximum(columns - padding, 0)
        rows = np.array([span.sequence.memory.index for span in batch.spans if span.samples], dtype=np.int64)
        attend = partial(self.attend, shape, attention_mask(shape, torch.from_numpy(padding)))
        return Pass.from_arrays(token_ids.ravel(), positions.ravel(), (rows + 1) * shape.width - 1, attend)

    def attend(self, shape: Rectangle, mask: Tensor, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store this pass's keys and values, and look back on all that stand in the rows.

        q ``[rows * width, heads, head_dim]``; k, v ``[rows * width, kv_heads, head_dim]``; mask bool ``[rows, 1, width,
        context]``; result ``[rows * width, heads, head_dim]``.
        """
        keys, values = self.store(shape, layer, k, v)
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            by_row(q, shape), keys, values, attn_mask=mask, scale=self.scale, enable_gqa=grouped
        )
        return out.transpose(1, 2).flatten(0, 1)

    def store(self, shape: Rectangle, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values into the last ``width`` columns of the context; return the whole context.

        k, v ``[rows * width, kv_heads, head_dim]``; result ``[rows, kv_heads, context, head_dim]`` each.
        """
        new = slice(shape.context - shape.width, shape.context)
        self.k[layer, : shape.rows, :, new] = by_row(k, shape)
        self.v[layer, : shape.rows, :, new] = by_row(v, shape)
        return self.k[layer, : shape.rows, :, : shape.context], self.v[layer, : shape.rows, :, : shape.context]


def by_row(x: Tensor, shape: Rectangle) -> Tensor:
    """Flat tokens in rows, heads first: ``[rows * width, heads, head_dim]`` to ``[rows, heads, width, head_dim]``.

    The result shares the memory of ``x``.
    """
    return x.view(shape.rows, shape.width, -1, x.shape[-1]).transpose(1, 2)


def attention_mask(shape: Rectangle, padding: Tensor) -> Tensor:
    """Which columns each token of a pass looks at: real tokens at the real ones up to their own, padding at padding.

    The result of a padding token is thrown away. It looks at the padding up to its own column, itself included, for a
    softmax over nothing may be NaN.

    padding ``[rows, 1]``, the columns before each row's first token; result bool ``[rows, 1, width, context]``.
    """
    keys = torch.arange(shape.context)
    queries = keys[shape.context - shape.width :].unsqueeze(1)
    past = keys <= queries  # [width, context]
    first = padding.view(-1, 1, 1)
    visible = (keys >= first) | (queries < first)  # [rows, width, context]
    return (past & visible).unsqueeze(1)


def left_padding(batch: Batch, rows: int) -> Ints:
    """How many columns of each row lie before its sequence's first token: ``[rows, 1]``."""
    padding = np.zeros((rows, 1), dtype=np.int64)
    for sequence in (*(span.sequence for span in batch.spans), *batch.held):
        padding[sequence.memory.index] = sequence.memory.padding
    return padding
