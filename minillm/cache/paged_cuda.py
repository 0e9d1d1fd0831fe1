"""The paged cache on a CUDA device: numba's kernels read and write torch's memory where it lies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.cuda import as_cuda_array
from torch import Tensor

from kernels import cuda
from kernels.checks import Ints, check_range
from kernels.cpu.attention import check_pages
from kernels.cuda.paged_flash_decoding import parts_for
from minillm.batch import Batch, BlockMoves, BlockPairs
from minillm.cache.flat import PageLayout, Pass
from minillm.cache.memory import PagedMemory
from minillm.cache.paged import PagedCache
from minillm.model.transformer import Attend, ModelConfig

DTYPES = (torch.float16, torch.float32)
HOST = torch.device("cpu")
Pools = tuple[Tensor, Tensor]
"""Keys and values ``[layers, num_blocks, kv_heads, block_size, head_dim]``."""
Pages = list[tuple[Any, Any]]
"""For each layer keys and values ``[num_blocks, kv_heads, block_size, head_dim]``, as kernels take them."""


class CudaPagedCache(PagedCache):
    """Keys and values in a device's memory, swapped-out ones in the host's.

    ``array`` makes of a tensor what a kernel takes, sharing its memory: ``as_cuda_array`` on a device. In the kernel
    lab the device is the CPU, and ``array`` is ``Tensor.numpy``. Raises ValueError for a dtype other than float16 and
    float32.
    """

    def __init__(
        self,
        config: ModelConfig,
        memory: PagedMemory,
        dtype: torch.dtype,
        device: torch.device,
        array: Callable[[Tensor], Any] = as_cuda_array,
        fill: float = 0.0,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"the CUDA kernels keep keys and values in float16 or float32, not {dtype}")
        self.block_size, self.scale = memory.block_size, config.head_dim**-0.5
        self.device, self.array = device, array
        block = (config.kv_heads, memory.block_size, config.head_dim)
        self.k, self.v = (
            torch.full((config.num_layers, memory.num_blocks, *block), fill, dtype=dtype, device=device) for _ in "kv"
        )
        self.swapped_k, self.swapped_v = (
            torch.full((config.num_layers, memory.swap_blocks, *block), fill, dtype=dtype) for _ in "kv"
        )
        self.pages = self._arrays((self.k, self.v))

    def apply(self, moves: BlockMoves) -> None:
        """Carry out a batch's block moves: swap out, then swap in, then copies."""
        require_default_stream(self.device)
        if moves.swap_out:
            self._swap_out(moves.swap_out)
        if moves.swap_in:
            self._swap_in(moves.swap_in)
        if moves.copies:
            pairs = self._ints(np.array(moves.copies, np.int64))
            for k_cache, v_cache in self.pages:
                cuda.copy_blocks(k_cache, v_cache, pairs)

    def lower(self, batch: Batch) -> Pass:
        """Flatten a ragged batch, and bring it to the device."""
        inputs = super().lower(batch)
        token_ids, positions = inputs.token_ids.to(self.device), inputs.positions.to(self.device)
        return Pass(token_ids, positions, inputs.sample_rows.to(self.device), inputs.attend)

    def attend(self, layout: PageLayout) -> Attend:
        """Attention for one ragged batch: store this pass's keys and values, then read each sequence's pages.

        A pass of nothing but single tokens goes to ``paged_flash_decoding``, any other to ``paged_prefill_attention``.
        Raises ValueError for blocks and slots that the cache does not have: a GPU would write them somewhere.
        """
        require_default_stream(self.device)
        pages: Any = self.k[0]
        check_pages(layout.block_tables, layout.context_lens, layout.query_start, len(layout.slots), pages)
        check_range("slots", layout.slots, self.k.shape[1] * self.block_size)
        lengths = np.diff(layout.query_start)
        tables = Tables(
            slots=self._ints(layout.slots),
            query_start=self._ints(layout.query_start),
            context_lens=self._ints(layout.context_lens),
            block_tables=self._ints(layout.block_tables),
            longest=int(layout.context_lens.max(initial=0)),
            max_rows=int(lengths.max(initial=0)),
        )
        attention = self._decode if (lengths == 1).all() else self._prefill

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cuda.reshape_and_cache(self.array(k), self.array(v), *self.pages[layer], tables.slots)
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            attention(q.contiguous(), *self.pages[layer], tables, out)
            return out

        return attend

    def _prefill(self, q: Tensor, k_cache: Any, v_cache: Any, tables: "Tables", out: Tensor) -> None:
        cuda.paged_prefill_attention(
            self.array(q),
            k_cache,
            v_cache,
            tables.block_tables,
            tables.context_lens,
            tables.query_start,
            self.scale,
            self.array(out),
            tables.max_rows,
        )

    def _decode(self, q: Tensor, k_cache: Any, v_cache: Any, tables: "Tables", out: Tensor) -> None:
        parts = parts_for(tables.longest)
        partial, log_sums = (
            torch.empty((parts, *shape), dtype=torch.float32, device=q.device) for shape in (q.shape, q.shape[:2])
        )
        cuda.paged_flash_decoding(
            self.array(q),
            k_cache,
            v_cache,
            tables.block_tables,
            tables.context_lens,
            self.scale,
            self.array(out),
            self.array(partial),
            self.array(log_sums),
        )

    def _swap_out(self, pairs: BlockPairs) -> None:
        """Gather blocks on the device, so that the bus carries one copy for all, and spread them on the host."""
        device_blocks, host_blocks = np.array(pairs, np.int64).T
        gathered = self._room(len(pairs), self.device)
        self._move(self.pages, self._arrays(gathered), device_blocks, np.arange(len(pairs)))
        staged = self._room(len(pairs), HOST)
        for pool, source, target in zip((self.swapped_k, self.swapped_v), gathered, staged, strict=True):
            pool[:, host_blocks] = target.copy_(source)

    def _swap_in(self, pairs: BlockPairs) -> None:
        """The same the other way round."""
        host_blocks, device_blocks = np.array(pairs, np.int64).T
        staged, gathered = self._room(len(pairs), HOST), self._room(len(pairs), self.device)
        for pool, source, target in zip((self.swapped_k, self.swapped_v), staged, gathered, strict=True):
            target.copy_(torch.index_select(pool, 1, torch.from_numpy(host_blocks), out=source))
        self._move(self._arrays(gathered), self.pages, np.arange(len(pairs)), device_blocks)

    def _room(self, blocks: int, where: torch.device) -> Pools:
        """Tensors for so many blocks; the host's are pinned, so that the bus takes them without another copy."""
        layers, _, *block = self.k.shape
        pinned = where == HOST and self.device != HOST
        k, v = (
            torch.empty((layers, blocks, *block), dtype=self.k.dtype, device=where, pin_memory=pinned) for _ in "kv"
        )
        return k, v

    def _move(self, source: Pages, target: Pages, sources: Any, targets: Any) -> None:
        """Copy blocks between pools of the device, layer by layer."""
        pairs = self._ints(np.stack((sources, targets), axis=1))
        for source_pages, target_pages in zip(source, target, strict=True):
            cuda.swap_blocks(*source_pages, *target_pages, pairs)

    def _arrays(self, pools: Pools) -> Pages:
        """Each layer's keys and values as kernels take them."""
        return [(self.array(k), self.array(v)) for k, v in zip(*pools, strict=True)]

    def _ints(self, values: Ints) -> Any:
        """A kernel's argument, brought to the device."""
        return self.array(torch.from_numpy(values).to(self.device))


def require_default_stream(device: torch.device) -> None:
    """numba launches on the default stream, and only there do torch's operations wait for it. RuntimeError if not."""
    if device.type == "cuda" and torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        raise RuntimeError("the kernels run on CUDA's default stream, and nothing orders them with torch's current one")


@dataclass(frozen=True, slots=True)
class Tables:
    """A ``PageLayout`` as the kernels take it, with the longest context and the most rows, which choose the grid."""

    slots: Any
    query_start: Any
    context_lens: Any
    block_tables: Any
    longest: int
    max_rows: int
