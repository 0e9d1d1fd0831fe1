"""The engine's CUDA kernels in the lab, and their CPU twins on the same cases, equal attention written out in float64.

Slots that no sequence owns hold NaN, blocks lie in a random order, and table entries beyond need are -1.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gpu_lab import TOLERANCE, Launch, few, in_every_way
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_cpu_attention import attend_in_numpy, make_case

from kernels import cpu, cuda, lab
from kernels.cuda.paged_flash_decoding import PART, combine, parts_for
from kernels.cuda.tiles import TILE


def decode(launch, case):
    return decoded(launch, cuda.paged_decode_attention, case)


def decoded(launch, function, case, *workspace):
    out = np.full_like(case.q, np.nan)
    launch(
        function, case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, case.scale, out, *workspace
    )
    return out


def flash_decode(launch, case):
    parts = parts_for(case.context_lens.max(initial=0))
    workspace = (
        np.full((parts, *case.q.shape), np.nan, np.float32),
        np.full((parts, *case.q.shape[:2]), np.nan, np.float32),
    )
    return decoded(launch, cuda.paged_flash_decoding, case, *workspace)


def prefill(launch, case):
    out = np.full_like(case.q, np.nan)
    tables = case.block_tables, case.context_lens, case.query_start
    max_rows = int(np.diff(case.query_start).max(initial=0))
    launch(cuda.paged_prefill_attention, case.q, case.k_cache, case.v_cache, *tables, case.scale, out, max_rows)
    return out


def by_tokens(launch, case):
    """The same cache as one of single tokens, ``[slots, kv_heads, head_dim]``, with a table of slots."""
    _, kv_heads, block_size, head_dim = case.k_cache.shape
    caches = [
        np.ascontiguousarray(cache.transpose(0, 2, 1, 3)).reshape(-1, kv_heads, head_dim)
        for cache in (case.k_cache, case.v_cache)
    ]
    tables = np.full((len(case.context_lens), case.context_lens.max(initial=0)), -1)
    for sequence, length in enumerate(case.context_lens):
        block, offset = case.slots(sequence)
        tables[sequence, :length] = block * block_size + offset
    out = np.full_like(case.q, np.nan)
    launch(cuda.token_attention, case.q, *caches, tables, case.context_lens, case.scale, out)
    return out


def check_equal(out, case):
    assert_allclose(out, attend_in_numpy(case), rtol=0, atol=TOLERANCE[case.q.dtype.type])


def check_twin(case):
    """The CPU's kernels on the same numbers, which they keep in float32 at least."""
    twin = replace(case, **{name: getattr(case, name).astype(np.float32) for name in ("q", "k_cache", "v_cache")})
    assert_allclose(twin.attend(), attend_in_numpy(case), rtol=0, atol=TOLERANCE[np.float32])


@st.composite
def shapes(draw):
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 1)]))
    return {
        "dtype": draw(st.sampled_from([np.float16, np.float32])),
        "kv_heads": kv_heads,
        "group": group,
        "head_dim": draw(st.sampled_from([8, 16, 40])),
        "block_size": draw(st.integers(1, 9)),
        "seed": draw(st.integers(0, 9)),
    }


LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=2)


@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens])
@in_every_way
@few
@given(LENGTHS, shapes())
def test_decode(attend, launch, context_lens, shape):
    case = make_case(context_lens, [1] * len(context_lens), **shape)
    check_equal(attend(launch, case), case)
    check_twin(case)


@in_every_way
@few
@given(LENGTHS, st.data(), shapes())
def test_prefill_chunks_and_single_tokens_in_one_batch(launch, context_lens, data, shape):
    rows = [data.draw(st.integers(0, 7)) for _ in context_lens]
    case = make_case(context_lens, rows, **shape)
    check_equal(prefill(launch, case), case)
    check_twin(case)


@pytest.mark.parametrize("attend", [flash_decode, prefill])
@in_every_way
def test_a_tile_is_not_overwritten_while_others_read_it(attend, launch):
    case = make_case([TILE + 3], [1], np.float32, kv_heads=1, group=2, head_dim=8)
    check_equal(attend(launch, case), case)


def quick(function, *arguments):
    """A launch for numbers alone: the checks have had their say on smaller ones."""
    with lab.run():
        function(*arguments)


@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens, prefill])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_longest_head_dim_many_heads_of_a_group_and_more_keys_than_a_tile(attend, dtype):
    check_equal_to(attend, make_case([70], [1], dtype, kv_heads=1, group=9, head_dim=256, block_size=16))


def check_equal_to(attend, case):
    check_equal(attend(quick, case), case)


@pytest.mark.parametrize("context", [PART - 1, PART, PART + 1, 2 * PART + 5])
def test_a_context_of_several_parts(context):
    check_equal_to(flash_decode, make_case([context, 3], [1, 1], np.float32, kv_heads=1, group=1))


@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens, prefill])
def test_lanes_read_neighbours_so_that_no_sector_moves_for_nothing(attend):
    case = make_case([7], [1], np.float32, kv_heads=1, group=2, head_dim=64, block_size=4)
    attend(partial(Launch("ascending", late_stores=True), excess_sectors=0), case)


def test_more_parts_than_needed_change_nothing():
    case = make_case([PART + 3], [1], np.float32, kv_heads=1, group=1)
    workspace = np.full((5, *case.q.shape), np.nan, np.float32), np.full((5, *case.q.shape[:2]), np.nan, np.float32)
    assert_array_equal(decoded(quick, cuda.paged_flash_decoding, case, *workspace), flash_decode(quick, case))


@pytest.mark.parametrize("poisoned", ["k_cache", "v_cache"])
def test_a_row_reads_every_position_up_to_its_own_and_no_other(poisoned):
    case = make_case([40], [40], np.float32, kv_heads=1, group=1)
    clean = prefill(quick, case)
    block, offset = case.slots(0)
    for position in (0, 33, 39):
        cache = getattr(case, poisoned).copy()
        cache[block[position], :, offset[position]] = np.nan
        out = prefill(quick, replace(case, **{poisoned: cache}))
        assert_array_equal(out[:position], clean[:position])
        assert np.isnan(out[position:]).all()


@pytest.mark.parametrize("poisoned", ["k_cache", "v_cache"])
@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens])
def test_a_decode_reads_every_position_and_hides_no_nan(attend, poisoned):
    case = make_case([40], [1], np.float32, kv_heads=1, group=1)
    block, offset = case.slots(0)
    for position in (0, 33, 39):
        cache = getattr(case, poisoned).copy()
        cache[block[position], :, offset[position]] = np.nan
        assert np.isnan(attend(quick, replace(case, **{poisoned: cache}))).all()


@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens, prefill])
@pytest.mark.parametrize("positions", [slice(1), slice(3, 9), slice(5)], ids=str)
def test_a_key_whose_score_is_minus_infinity_has_no_weight(attend, positions):
    case = make_case([9], [1], np.float32, kv_heads=1, group=1)
    block, offset = case.slots(0)
    case.q[:] = 1
    case.k_cache[block[positions], :, offset[positions]] = -np.inf
    check_equal_to(attend, case)


@pytest.mark.parametrize("attend", [decode, flash_decode, by_tokens, prefill])
def test_a_nan_is_not_hidden_by_scores_of_minus_infinity(attend):
    case = make_case([40], [1], np.float32, kv_heads=1, group=1)
    block, offset = case.slots(0)
    case.q[:] = 1
    case.k_cache[block, :, offset] = -np.inf
    case.k_cache[block[0], :, offset[0]] = np.nan
    assert np.isnan(attend(quick, case)).all()


def test_scores_far_beyond_the_range_of_exp_do_not_overflow():
    case = replace(make_case([40], [1], np.float32, kv_heads=1, group=1), scale=1e5)
    for attend in (decode, flash_decode, prefill):
        check_equal_to(attend, case)


@in_every_way
@few
@given(parts=st.integers(1, 4), sequences=st.integers(1, 2), seen=st.sampled_from(["all", "some", "none"]))
def test_parts_are_combined_by_their_log_sums(launch, parts, sequences, seen):
    rng = np.random.default_rng(parts)
    partial = rng.standard_normal((parts, sequences, 2, 8)).astype(np.float32)
    log_sums = rng.standard_normal((parts, sequences, 2)).astype(np.float32) * 20
    log_sums[{"all": parts, "some": parts // 2, "none": 0}[seen] :] = -np.inf
    partial[np.isneginf(log_sums)] = np.nan  # never read
    out = np.empty((sequences, 2, 8), np.float32)
    launch(combine, partial, log_sums, out)
    weights = np.exp(log_sums.astype(float) - np.maximum(log_sums.max(0), -1e30))
    total = weights.sum(0)[..., None]
    expected = (weights[..., None] * np.nan_to_num(partial)).sum(0) / np.where(total == 0, 1, total)
    assert_allclose(out, expected, rtol=0, atol=1e-5)


def caches(dtype, blocks=5):
    return np.arange(2 * blocks * 2 * 3 * 4, dtype=dtype).reshape(2, blocks, 2, 3, 4)


@in_every_way
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_each_token_is_stored_in_its_slot_and_nothing_else_changes(launch, dtype):
    ours, twin = caches(dtype), caches(np.float32)
    k, v = np.random.default_rng(0).standard_normal((3, 2, 2, 4)).astype(dtype).transpose(1, 0, 2, 3)  # strided
    slots = np.array([14, 0, 7])
    launch(cuda.reshape_and_cache, k, v, *ours, slots, global_writes_per_thread=2, global_reads_per_thread=4)
    cpu.reshape_and_cache(k.astype(np.float32), v.astype(np.float32), *twin, slots)
    assert_array_equal(ours, twin)


@in_every_way
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_copied_blocks_equal_their_sources_and_the_rest_is_untouched(launch, dtype):
    ours, twin = caches(dtype), caches(np.float32)
    pairs = np.array([[4, 1], [0, 3]])
    launch(cuda.copy_blocks, *ours, pairs)
    cpu.copy_blocks(*twin, pairs)
    assert_array_equal(ours, twin)


@in_every_way
def test_swapped_blocks_survive_the_way_out_and_back(launch):
    device, host = caches(np.float32), np.full((2, 3, 2, 3, 4), np.nan, np.float32)
    launch(cuda.swap_blocks, *device, *host, np.array([[4, 0], [2, 1]]))
    device[:] = np.nan
    launch(cuda.swap_blocks, *host, *device, np.array([[1, 2]]))
    assert_array_equal(device[:, 2], caches(np.float32)[:, 2])
    assert np.isnan(host[:, 2]).all()


def test_nothing_to_do_launches_nothing():
    case = make_case([], [], np.float32)
    assert decode(quick, case).shape == prefill(quick, case).shape == flash_decode(quick, case).shape
    cuda.copy_blocks(*caches(np.float32), np.empty((0, 2), np.int64))
    cuda.reshape_and_cache(*np.empty((2, 0, 2, 4), np.float32), *caches(np.float32), np.empty(0, np.int64))


CASE = make_case([9, 5], [1, 1], np.float32)
BAD_CASES = [
    (
        "k_cache is float64; GPU kernels read float16 and float32",
        TypeError,
        {"k_cache": CASE.k_cache.astype(np.float64)},
    ),
    ("v_cache is float16 and the cache float32", TypeError, {"v_cache": CASE.v_cache.astype(np.float16)}),
    ("q is float16 and the cache float32", TypeError, {"q": CASE.q.astype(np.float16)}),
    ("k_cache .* be contiguous", ValueError, {"k_cache": CASE.k_cache[::-1]}),
    ("k_cache, v_cache have shapes", ValueError, {"v_cache": CASE.v_cache[1:]}),
    ("q has 3 heads of 8 and k 2 of 8", ValueError, {"q": np.ones((2, 3, 8), np.float32)}),
    ("block_tables is int32", TypeError, {"block_tables": CASE.block_tables.astype(np.int32)}),
    (r"block_tables is \[1, 4\]", ValueError, {"block_tables": CASE.block_tables[1:]}),
    (r"context_lens is \[1\]", ValueError, {"context_lens": CASE.context_lens[1:]}),
    ("context_lens run from -1 to 5; there are 0 to 16", ValueError, {"context_lens": np.array([-1, 5])}),
    ("context_lens run from 5 to 17; there are 0 to 16", ValueError, {"context_lens": np.array([17, 5])}),
    ("q has 0 heads of 8 and k 2 of 8; give one at least", ValueError, {"q": np.ones((2, 0, 8), np.float32)}),
    (
        "k_cache .* must have one head, one row",
        ValueError,
        {name: getattr(CASE, name)[:, :0].copy() for name in ("k_cache", "v_cache")},
    ),
]


@pytest.mark.parametrize(("message", "error", "changes"), BAD_CASES)
def test_arguments_that_do_not_fit_are_named(message, error, changes):
    with pytest.raises(error, match=message):
        decode(quick, replace(CASE, **changes))


@pytest.mark.parametrize(
    ("query_start", "max_rows"), [([0, 1, 3], 2), ([1, 1, 2], 1), ([0, 3, 2], 3), ([0, 1, 2], 0)], ids=str
)
def test_offsets_that_leave_out_tokens_or_do_not_fit_max_rows_are_refused(query_start, max_rows):
    tables = CASE.block_tables, CASE.context_lens, np.array(query_start)
    arrays = CASE.q, CASE.k_cache, CASE.v_cache
    with pytest.raises(ValueError, match=r"query_start .* must go from 0 to the 2 tokens of q, by at most max_rows"):
        cuda.paged_prefill_attention(*arrays, *tables, 1.0, np.empty_like(CASE.q), max_rows)


def test_a_head_too_long_for_the_registers_is_refused():
    with pytest.raises(ValueError, match="head_dim is 264; GPU kernels have room for 256"):
        decode(quick, make_case([2], [1], np.float32, head_dim=264))


def test_parts_too_few_for_the_longest_context_are_refused():
    case = make_case([PART + 1], [1], np.float32)
    workspace = np.empty((1, *case.q.shape), np.float32), np.empty((1, *case.q.shape[:2]), np.float32)
    with pytest.raises(ValueError, match="context_lens run from 257 to 257"):
        decoded(quick, cuda.paged_flash_decoding, case, *workspace)


@pytest.mark.parametrize("pairs", [[[0, 5]], [[-1, 2]]])
def test_blocks_outside_of_the_cache_are_refused(pairs):
    with pytest.raises(ValueError, match="blocks run from"):
        cuda.copy_blocks(*caches(np.float32), np.array(pairs))
