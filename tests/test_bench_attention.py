"""What the attention benchmark claims, and when it claims nothing."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from minillm.bench.attention import (
    HEAD_DIM,
    KV_HEADS,
    DecodeSpeed,
    last_level_cache,
    measure_decode,
    measure_prefill,
    paged_case,
    total,
    total_of_pages,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("kv_bytes", "cache", "shares"),
    [(600 * MIB, 300 * MIB, (0.8, 0.9)), (599 * MIB, 300 * MIB, (None, None)), (600 * MIB, None, (None, None))],
)
def test_a_share_of_memory_speed_needs_more_memory_than_caches_hold(kv_bytes, cache, shares):
    speed = DecodeSpeed(kv_bytes, 2, 0.5, 1.0, 0.4, 0.45, cache)
    assert (speed.share_of_sum, speed.share_of_page_sum) == shares
    assert speed.gigabytes_per_s == pytest.approx(kv_bytes / 0.5e9)
    assert speed.speed_against_torch == 2


def test_sums_read_everything():
    cache = np.arange(5 * 12, dtype=np.float32).reshape(5, 12)
    assert total(cache.reshape(-1)) == total_of_pages(cache, np.array([3, 0, 4, 1, 2])) == cache.sum()


def test_the_largest_cache_is_the_last_level(tmp_path):
    for index, size in enumerate(["48K", "32K", "2048K", "307200K"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert last_level_cache(tmp_path) == 300 * MIB
    assert last_level_cache(tmp_path / "nothing") is None


def test_both_sides_are_timed():
    decode = measure_decode(sequences=2, context=40, repeats=1)
    assert decode.kv_bytes == 2 * (2 * 3 * 3 * 16 * 64 * 4)  # 2 x 3 blocks of 16 tokens, 3 heads of 64 float32
    assert min(decode.attention_seconds, decode.torch_seconds, decode.sum_seconds, decode.page_sum_seconds) > 0
    prefill = measure_prefill(rows=3, context=20, repeats=1)
    assert min(prefill.attention_seconds, prefill.torch_seconds) > 0


def test_both_sides_compute_the_same():
    attend, k_cache, v_cache, block_tables = paged_case([20, 20], [1, 1])
    q, out = attend.args[0], attend.args[-1]
    attend()
    k, v = (
        torch.from_numpy(cache[block_tables].transpose(0, 2, 1, 3, 4).reshape(2, KV_HEADS, -1, HEAD_DIM)[:, :, :20])
        for cache in (k_cache, v_cache)
    )
    expected = F.scaled_dot_product_attention(torch.from_numpy(q)[:, :, None], k, v, enable_gqa=True)
    torch.testing.assert_close(torch.from_numpy(out)[:, :, None], expected, rtol=0, atol=1e-5)
