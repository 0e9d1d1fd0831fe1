"""The contiguous cache of a padded batch: one row per sequence, one column per token, filled left to right together.

Prompts are padded on the left to the longest, as Hugging Face's ``generate`` pads them, so that all rows end in the
same column and each pass writes one rectangle. Padding and held rows are really computed: that is the price which
static batching pays, and which later policies avoid.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minillm.batch import Batch, BlockMoves, Rectangle
from minillm.cache.flat import Pass
from minillm.cache.memory import RectangleMemory
from minillm.model.transformer import Attend, ModelConfig

PAD_TOKEN = 0


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
        """Lay a padded batch out as its rectangle, row by row. Raises ValueError for a ragged batch."""
        if batch.rectangle is None:
            raise ValueError("a ragged batch was given to the rectangle cache; it needs a paged cache")
        shape = batch.rectangle
        token_ids = np.full((shape.rows, shape.width), PAD_TOKEN, dtype=np.int64)
        padding = np.zeros((shape.rows, 1), dtype=np.int64)
        for span in batch.spans:
            token_ids[span.sequence.memory.index, shape.width - span.length :] = span.token_ids
        for sequence in (*(span.sequence for span in batch.spans), *batch.held):
            padding[sequence.memory.index] = sequence.memory.padding
        columns = np.arange(shape.context - shape.width, shape.context)
        positions = np.maximum(columns - padding, 0)
        rows = np.array([s.sequence.memory.index for s in batch.spans if s.samples], dtype=np.int64)
        attend = self._attend(shape, torch.from_numpy(padding))
        return Pass.from_arrays(token_ids.ravel(), positions.ravel(), (rows + 1) * shape.width - 1, attend)

    def _attend(self, shape: Rectangle, padding: Tensor) -> Attend:
        rows, width, context = shape.rows, shape.width, shape.context
        keys = torch.arange(context)
        queries = keys[context - width :].unsqueeze(1)
        past = keys <= queries  # [width, context]
        real = keys >= padding.view(rows, 1, 1)  # [rows, 1, context]
        # A padding query sees the padding before it, for a row of nothing but masked keys has no softmax.
        mask = (past & (real | (queries < padding.view(rows, 1, 1)))).unsqueeze(1)  # [rows, 1, width, context]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.view(rows, width, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))
            self.k[layer, :rows, :, context - width : context] = k
            self.v[layer, :rows, :, context - width : context] = v
            keys, values = self.k[layer, :rows, :, :context], self.v[layer, :rows, :, :context]
            out = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            return out.transpose(1, 2).flatten(0, 1)

        return attend
