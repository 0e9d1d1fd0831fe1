"""How fast paged attention reads the cache: against plain sums of the same memory, and against torch's attention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import get_num_threads, prange
from torch.nn import functional as F

from kernels.checks import Floats, Ints
from kernels.cpu import paged_attention
from kernels.cpu.compiled import compiled_parallel
from minillm.bench.stopwatch import alternating_medians

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64  # SmolLM2-135M
BLOCK_SIZE = 16
DECODES = ((1, 128), (1, 4096), (8, 1024), (64, 128), (64, 1024), (64, 4096))
"""Sequences that decode, and cached tokens of each."""
CHUNKS = ((64, 64), (64, 1024), (256, 256), (512, 512), (512, 4096))
"""Rows of a prompt's chunk, and the context up to its end."""
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """One decode step over ``kv_bytes`` of keys and values, in seconds on equally many threads.

    torch_seconds     torch's scaled_dot_product_attention on keys and values that were gathered beforehand
    sum_seconds       a sum over the same memory as it lies: no reader of that memory is faster
    page_sum_seconds  a sum over it block by block in the order of the block tables, as paged attention must go
    """

    kv_bytes: int
    threads: int
    attention_seconds: float
    torch_seconds: float
    sum_seconds: float
    page_sum_seconds: float
    last_level_cache: int | None
    """Bytes, where the system tells."""

    @property
    def gigabytes_per_s(self) -> float:
        """Keys and values per second of attention, in 10^9 bytes; a last block that is not full counts whole."""
        return self.kv_bytes / self.attention_seconds / 1e9

    @property
    def speed_against_torch(self) -> float:
        """Above 1 where paged attention is faster."""
        return self.torch_seconds / self.attention_seconds

    @property
    def share_of_sum(self) -> float | None:
        """Attention's speed as a share of the sum's. None where that is not the memory's speed."""
        return self.sum_seconds / self.attention_seconds if self.comes_from_memory else None

    @property
    def share_of_page_sum(self) -> float | None:
        """Attention's speed as a share of the sum's over blocks. None where that is not the memory's speed."""
        return self.page_sum_seconds / self.attention_seconds if self.comes_from_memory else None

    @property
    def comes_from_memory(self) -> bool:
        """Whether at least half of the keys and values cannot come from the last-level cache."""
        return self.last_level_cache is not None and self.kv_bytes >= 2 * self.last_level_cache


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """The last ``rows`` tokens of a context, by paged attention and by torch, in seconds on equally many threads.

    torch's scaled_dot_product_attention is given keys and values that are contiguous.
    """

    rows: int
    context: int
    threads: int
    attention_seconds: float
    torch_seconds: float

    @property
    def speed_against_torch(self) -> float:
        """Above 1 where paged attention is faster."""
        return self.torch_seconds / self.attention_seconds


def measure_decode(sequences: int, context: int, repeats: int = 9) -> DecodeSpeed:
    """One row for each of ``sequences`` contexts of ``context`` tokens, in blocks that lie in random order."""
    attend, k_cache, v_cache, block_tables = paged_case([context] * sequences, [1] * sequences)
    caches, pages = (k_cache.reshape(len(k_cache), -1), v_cache.reshape(len(v_cache), -1)), block_tables.reshape(-1)
    q, k, v = gathered(sequences, 1, context)
    with threads_as_numba():
        attention_seconds, torch_seconds, sum_seconds, page_sum_seconds = alternating_medians(
            [
                attend,
                partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=True),
                lambda: [total(cache.reshape(-1)) for cache in caches],
                lambda: [total_of_pages(cache, pages) for cache in caches],
            ],
            repeats,
        )
    return DecodeSpeed(
        kv_bytes=k_cache.nbytes + v_cache.nbytes,
        threads=get_num_threads(),
        attention_seconds=attention_seconds,
        torch_seconds=torch_seconds,
        sum_seconds=sum_seconds,
        page_sum_seconds=page_sum_seconds,
        last_level_cache=last_level_cache(),
    )


def measure_prefill(rows: int, context: int, repeats: int = 15) -> PrefillSpeed:
    """The last ``rows`` of ``context`` tokens; both sides take turns within the run."""
    attend, *_ = paged_case([context], [rows])
    q, k, v = gathered(1, rows, context)
    mask = torch.ones(rows, context, dtype=torch.bool).tril(context - rows)
    causal = {"is_causal": True} if rows == context else {"attn_mask": mask}
    with threads_as_numba():
        sdpa = partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=True, **causal)
        attention_seconds, torch_seconds = alternating_medians([attend, sdpa], repeats)
    return PrefillSpeed(rows, context, get_num_threads(), attention_seconds, torch_seconds)


@contextmanager
def threads_as_numba() -> Iterator[None]:
    """Let torch have as many threads as numba's kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def gathered(sequences: int, rows: int, context: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values as torch's attention takes them, ``[sequences, heads, tokens, head_dim]``."""
    q = torch.randn(sequences, HEADS, rows, HEAD_DIM)
    return q, *torch.randn(2, sequences, KV_HEADS, context, HEAD_DIM)


def paged_case(context_lens: list[int], rows: list[int]) -> tuple[Callable[[], None], Floats, Floats, Ints]:
    """A call of paged attention in float32 on random data, the caches that it reads, and its block tables."""
    rng = np.random.default_rng(0)
    blocks = -(-np.array(context_lens) // BLOCK_SIZE)
    block_tables = np.zeros((len(blocks), blocks.max()), dtype=np.int64)
    block_tables[np.arange(blocks.max()) < blocks[:, None]] = rng.permutation(blocks.sum())
    k_cache, v_cache = (
        torch.from_numpy(np.empty((blocks.sum(), KV_HEADS, BLOCK_SIZE, HEAD_DIM), np.float32)).normal_().numpy()
        for _ in "kv"
    )
    q = rng.standard_normal((sum(rows), HEADS, HEAD_DIM), dtype=np.float32)
    layout = (block_tables, np.array(context_lens), np.concatenate(([0], np.cumsum(rows))))
    attend = partial(paged_attention, q, k_cache, v_cache, *layout, HEAD_DIM**-0.5, np.empty_like(q))
    return attend, k_cache, v_cache, block_tables


@compiled_parallel
def total(values: Floats) -> Any:
    """Sum of ``values [n]``, read once."""
    result = values.dtype.type(0)
    for i in prange(len(values)):
        result += values[i]
    return result


@compiled_parallel
def total_of_pages(cache: Floats, pages: Ints) -> Any:
    """Sum of cache ``[num_blocks, n]``, a block after the other in the order of ``pages``."""
    result = cache.dtype.type(0)
    for i in prange(len(pages)):
        page = pages[i]
        for j in range(cache.shape[1]):
            result += cache[page, j]
    return result


def last_level_cache(caches: Path = CPU_CACHES) -> int | None:
    """Bytes of the CPU's largest cache, where the system tells (Linux)."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=None)
