"""What the attention benchmark claims, and when it claims nothing."""

import pytest

from minillm.bench.attention import DecodeSpeed, last_level_cache, measure_decode, measure_prefill

MIB = 2**20


@pytest.mark.parametrize(
    ("kv_bytes", "cache", "share"),
    [(600 * MIB, 300 * MIB, 0.8), (599 * MIB, 300 * MIB, None), (600 * MIB, None, None)],
)
def test_a_share_of_memory_speed_needs_more_memory_than_caches_hold(kv_bytes, cache, share):
    speed = DecodeSpeed(kv_bytes, threads=2, attention_seconds=0.5, sum_seconds=0.4, last_level_cache=cache)
    assert speed.share_of_sum == share
    assert speed.gigabytes_per_s == pytest.approx(kv_bytes / 0.5e9)


def test_the_largest_cache_is_the_last_level(tmp_path):
    for index, size in enumerate(["48K", "32K", "2048K", "307200K"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert last_level_cache(tmp_path) == 300 * MIB
    assert last_level_cache(tmp_path / "nothing") is None


def test_both_sides_are_timed():
    decode = measure_decode(sequences=2, context=40, repeats=1)
    assert decode.kv_bytes == 2 * (2 * 3 * 3 * 16 * 64 * 4)  # 2 x 3 blocks of 16 tokens, 3 heads of 64 float32
    assert min(decode.attention_seconds, decode.sum_seconds) > 0
    prefill = measure_prefill(rows=3, context=20, repeats=1)
    assert min(prefill.attention_seconds, prefill.torch_seconds) > 0
