"""The paged cache read where it lies, by the kernels: prefill, chunks and decode of a ragged batch in one call."""

import torch
from torch import Tensor

from kernels import cpu
from minillm.cache.flat import PageLayout
from minillm.cache.paged import PagedCache
from minillm.model.transformer import Attend


class KernelPagedCache(PagedCache):
    """The paged cache on the CPU's kernels, which share the tensors' memory."""

    def attend(self, layout: PageLayout) -> Attend:
        """Attention for one ragged batch: store this pass's keys and values, then read each sequence's pages."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self.k[layer].numpy(), self.v[layer].numpy()
            cpu.reshape_and_cache(k.numpy(), v.numpy(), k_cache, v_cache, layout.slots)
            out = torch.empty(q.shape, dtype=q.dtype)
            cpu.paged_attention(
                q.contiguous().numpy(),
                k_cache,
                v_cache,
                layout.block_tables,
                layout.context_lens,
                layout.query_start,
                self.scale,
                out.numpy(),
            )
            return out

        return attend
