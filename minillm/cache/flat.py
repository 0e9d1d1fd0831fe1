"""A batch lowered to flat arrays: all that a model, a kernel or another rank needs to compute it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.checks import Ints
from minillm.batch import Span
from minillm.model.transformer import Attend


@dataclass(frozen=True, slots=True)
class Pass:
    """What the model computes in one pass.

    ``token_ids``, ``positions`` ``[tokens]``; ``sample_rows`` ``[rows]`` indexes the tokens whose logits are wanted.
    ``attend`` stores and reads the cache for exactly these tokens.
    """

    token_ids: Tensor
    positions: Tensor
    sample_rows: Tensor
    attend: Attend

    @classmethod
    def from_arrays(cls, token_ids: Ints, positions: Ints, sample_rows: Ints, attend: Attend) -> "Pass":
        """The same, from numpy arrays, whose memory the tensors share."""
        return cls(torch.from_numpy(token_ids), torch.from_numpy(positions), torch.from_numpy(sample_rows), attend)


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where a ragged batch's tokens lie in the paged cache.

    slots         ``[tokens]``: block * block_size + offset of each token of this pass
    query_start   ``[sequences + 1]``: offsets of each sequence's tokens in the flat batch
    context_lens  ``[sequences]``: cached tokens including this pass's
    block_tables  ``[sequences, max_blocks]``: blocks of each sequence, padded with -1
    """

    slots: Ints
    query_start: Ints
    context_lens: Ints
    block_tables: Ints


def page_layout(starts: Ints, lengths: Ints, tables: list[list[int]], block_size: int) -> tuple[Ints, PageLayout]:
    """Positions ``[tokens]`` and layout of spans ``[start, start + length)`` of sequences with these block tables."""
    query_start = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], lengths)
    context_lens = starts + lengths
    used = -(-context_lens // block_size)
    block_tables = np.full((len(tables), used.max(initial=0)), -1, dtype=np.int64)
    for row, table in enumerate(tables):
        block_tables[row, : used[row]] = table[: used[row]]
    rows = np.repeat(np.arange(len(tables)), lengths)
    slots = slots_of(rows, positions, block_tables, block_size)
    return positions, PageLayout(slots, query_start, context_lens, block_tables)


def slots_of(rows: Ints, positions: Ints, block_tables: Ints, block_size: int) -> Ints:
    """Where tokens lie in the paged cache, ``[tokens]`` (int64): block * block_size + offset.

    rows, positions  ``[tokens]``: the row of ``block_tables`` of each token's sequence, and its place in that sequence
    block_tables     ``[sequences, max_blocks]``: the blocks of each sequence, in order
    """
    blocks = block_tables[rows, positions // block_size]
    return blocks * block_size + positions % block_size


def sample_rows(query_start: Ints, spans: tuple[Span, ...]) -> Ints:
    """Rows of the flat batch whose logits are wanted, one per draw, span after span.

    A span's last row, n times where it samples n branches; with drafts, the row before each draft as well.
    """
    rows: list[Ints] = [np.arange(0)]
    for end, span in zip(query_start[1:], spans, strict=True):
        if span.samples > 1:
            rows.append(np.repeat(end - 1, span.samples))
        elif span.samples:
            rows.append(np.arange(end - 1 - len(span.draft_token_ids), end))
    return np.concatenate(rows)
