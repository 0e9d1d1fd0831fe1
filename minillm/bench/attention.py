"""How fast paged attention reads the cache: decode against a plain sum of the same memory, prefill against torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import get_num_threads, prange
from torch.nn import functional as F

from kernels.checks import Floats
from kernels.cpu import paged_attention
from kernels.cpu.compiled import compiled_parallel
from minillm.bench.stopwatch import alternating_medians

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64  # SmolLM2-135M
BLOCK_SIZE = 16
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """One decode step over ``kv_bytes`` of keys and values, and a sum over the same memory by as many threads."""

    kv_bytes: int
    threads: int
    attention_seconds: float
    sum_seconds: float
    last_level_cache: int | None
    """Bytes, where the system tells."""

    @property
    def gigabytes_per_s(self) -> float:
        """Keys and values read per second of attention, in 10^9 bytes."""
        return self.kv_bytes / self.attention_seconds / 1e9

    @property
    def share_of_sum(self) -> float | None:
        """Attention's speed as a share of the sum's, which no reader of that memory exceeds.

        None when half of the keys and values could come from the last-level cache, or its size is unknown: then the
        sum's speed is not the memory's.
        """
        if self.last_level_cache is None or self.kv_bytes < 2 * self.last_level_cache:
            return None
        return self.sum_seconds / self.attention_seconds


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """The last ``rows`` tokens of a context, by paged attention and by torch, in seconds on equally many threads.

    torch's scaled_dot_product_attention is given keys and values that are contiguous and repeated for each head.
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


def measure_decode(sequences: int = 64, context: int = 8192, repeats: int = 9) -> DecodeSpeed:
    """One row for each of ``sequences`` contexts of ``context`` tokens, in blocks that lie in random order."""
    attend, k_cache, v_cache = paged_case([context] * sequences, [1] * sequences)

    def read() -> None:
        total(k_cache.reshape(-1))
        total(v_cache.reshape(-1))

    attention_seconds, sum_seconds = alternating_medians([attend, read], repeats)
    kv_bytes = k_cache.nbytes + v_cache.nbytes
    return DecodeSpeed(kv_bytes, get_num_threads(), attention_seconds, sum_seconds, last_level_cache())


def measure_prefill(rows: int, context: int, repeats: int = 15) -> PrefillSpeed:
    """The last ``rows`` of ``context`` tokens; both sides take turns within the run."""
    attend, _, _ = paged_case([context], [rows])
    q, k, v = torch.randn(1, HEADS, rows, HEAD_DIM), *torch.randn(2, 1, HEADS, context, HEAD_DIM)
    mask = torch.ones(rows, context, dtype=torch.bool).tril(context - rows)
    whole = rows == context
    sdpa = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=None if whole else mask, is_causal=whole)
    threads = torch.get_num_threads()
    torch.set_num_threads(get_num_threads())
    attention_seconds, torch_seconds = alternating_medians([attend, sdpa], repeats)
    torch.set_num_threads(threads)
    return PrefillSpeed(rows, context, get_num_threads(), attention_seconds, torch_seconds)


def paged_case(context_lens: list[int], rows: list[int]) -> tuple[Callable[[], None], Floats, Floats]:
    """A call of paged attention in float32 on random data, and the caches that it reads."""
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
    return partial(paged_attention, q, k_cache, v_cache, *layout, HEAD_DIM**-0.5, np.empty_like(q)), k_cache, v_cache


@compiled_parallel
def total(values: Floats) -> Any:
    """Sum of ``values [n]``, read once."""
    result = values.dtype.type(0)
    for i in prange(len(values)):
        result += values[i]
    return result


def last_level_cache(caches: Path = CPU_CACHES) -> int | None:
    """Bytes of the CPU's largest cache, where the system tells (Linux)."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=None)
