"""The paged cache's tensors, and attention over them in plain torch.

PagedAttention (Kwon et al., SOSP 2023, section 4.1). Prefill, chunked prefill over cached context and decode are one
call over a ragged batch.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.checks import Ints
from minillm.batch import Batch, BlockMoves, BlockPairs
from minillm.cache.flat import PageLayout, Pass, page_layout, sample_rows
from minillm.cache.memory import PagedMemory
from minillm.model.transformer import Attend, ModelConfig, causal_attention


class PagedCache:
    """Keys and values ``[layers, num_blocks, kv_heads, block_size, head_dim]``, on the device and swapped out.

    ``fill`` is what a fresh block holds. Nothing ever reads it: tests fill with NaN to prove that. Raises ValueError
    for a dtype other than float32 and float64.
    """

    def __init__(self, config: ModelConfig, memory: PagedMemory, dtype: torch.dtype, fill: float = 0.0) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the CPU kernels keep keys and values in float32 or float64, not {dtype}")
        self.block_size = memory.block_size
        self.scale = config.head_dim**-0.5
        block = (config.kv_heads, memory.block_size, config.head_dim)
        self.k, self.v = (_pages((config.num_layers, memory.num_blocks, *block), fill, dtype) for _ in "kv")
        self.swapped_k, self.swapped_v = (
            _pages((config.num_layers, memory.swap_blocks, *block), fill, dtype) for _ in "kv"
        )

    def apply(self, moves: BlockMoves) -> None:
        """Carry out a batch's block moves: swap out, then swap in, then copies."""
        device, host = (self.k, self.v), (self.swapped_k, self.swapped_v)
        _copy(device, host, moves.swap_out)
        _copy(host, device, moves.swap_in)
        _copy(device, device, moves.copies)

    def lower(self, batch: Batch) -> Pass:
        """Flatten a ragged batch."""
        spans = batch.spans
        starts = np.array([span.start for span in spans], dtype=np.int64)
        lengths = np.array([span.length for span in spans], dtype=np.int64)
        positions, layout = page_layout(starts, lengths, [s.sequence.memory for s in spans], self.block_size)
        token_ids = np.concatenate([np.array(span.token_ids, dtype=np.int64) for span in spans])
        rows = sample_rows(layout.query_start, spans)
        return Pass.from_arrays(token_ids, positions, rows, self.attend(layout))

    def attend(self, layout: PageLayout) -> Attend:
        """Attention for one ragged batch: store this pass's keys and values, then gather each sequence's pages.

        What is returned is a function of (layer, q, k, v): q ``[tokens, heads, head_dim]`` and k, v ``[tokens,
        kv_heads, head_dim]`` of the pass give ``[tokens, heads, head_dim]``.

        The readable reference, one sequence after the other; ``KernelPagedCache`` reads the pages where they lie.
        """

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.store(layer, k, v, layout.slots)
            out = torch.empty_like(q)
            for row, length in enumerate(layout.context_lens):
                rows = slice(layout.query_start[row], layout.query_start[row + 1])
                keys, values = self.gather(layer, layout.block_tables[row], length)
                out[rows] = causal_attention(q[rows], keys, values, self.scale)
            return out

        return attend

    def store(self, layer: int, k: Tensor, v: Tensor, slots: Ints) -> None:
        """Write keys and values ``[tokens, kv_heads, head_dim]`` to their slots ``[tokens]``."""
        block, offset = np.divmod(slots, self.block_size)
        self.k[layer][block, :, offset] = k
        self.v[layer][block, :, offset] = v

    def gather(self, layer: int, table: Ints, length: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a sequence's first ``length`` tokens, ``[length, kv_heads, head_dim]`` each, in order.

        ``table`` ``[max_blocks]`` lists the sequence's blocks; entries beyond those that ``length`` needs are not read.
        """
        used = table[: -(-length // self.block_size)]
        keys, values = (pages[layer][used].transpose(1, 2).flatten(0, 1)[:length] for pages in (self.k, self.v))
        return keys, values


def _pages(shape: tuple[int, ...], fill: float, dtype: torch.dtype) -> Tensor:
    """A filled tensor in numpy's memory, which asks Linux for huge pages: scattered blocks are read a fifth faster."""
    return torch.from_numpy(np.full(shape, fill, torch.empty(0, dtype=dtype).numpy().dtype))


def _copy(source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], pairs: BlockPairs) -> None:
    if pairs:
        sources, targets = torch.tensor(pairs).T
        for source_blocks, target_blocks in zip(source, target, strict=True):
            target_blocks[:, targets] = source_blocks[:, sources]
