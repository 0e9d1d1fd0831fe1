"""The CPU kernels against attention written out in numpy, with NaN in every slot that nothing may read."""

import math
from dataclasses import dataclass, replace

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernels.cpu import attention, copy_blocks, paged_attention, reshape_and_cache, swap_blocks

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-13}


@dataclass(frozen=True)
class Case:
    """The arguments of ``paged_attention``; slots without a token hold NaN."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    block_tables: np.ndarray
    context_lens: np.ndarray
    query_start: np.ndarray
    scale: float

    def attend(self):
        out = np.full_like(self.q, np.nan)
        paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.context_lens,
            self.query_start,
            self.scale,
            out,
        )
        return out

    def slots(self, sequence):
        """Block and offset of each cached token."""
        position = np.arange(self.context_lens[sequence])
        block_size = self.k_cache.shape[2]
        return self.block_tables[sequence][position // block_size], position % block_size

    def alone(self, sequence):
        """The same sequence in a batch of its own."""
        rows = slice(self.query_start[sequence], self.query_start[sequence + 1])
        one = slice(sequence, sequence + 1)
        return replace(
            self,
            q=self.q[rows],
            block_tables=self.block_tables[one],
            context_lens=self.context_lens[one],
            query_start=np.array([0, rows.stop - rows.start]),
        )


def make_case(context_lens, rows, dtype=np.float64, kv_heads=2, group=2, head_dim=8, block_size=4, seed=0):
    rng = np.random.default_rng(seed)
    context_lens = np.array(context_lens, dtype=np.int64)
    blocks = -(-context_lens // block_size)
    pool = rng.permutation(blocks.sum() + 2)
    block_tables = np.full((len(blocks), blocks.max(initial=0) + 1), -1)
    for table, end, count in zip(block_tables, np.cumsum(blocks), blocks, strict=True):
        table[:count] = pool[end - count : end]
    k_cache, v_cache = np.full((2, len(pool), kv_heads, block_size, head_dim), np.nan, dtype)
    q = rng.standard_normal((sum(rows), kv_heads * group, head_dim)).astype(dtype)
    query_start = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
    case = Case(q, k_cache, v_cache, block_tables, context_lens, query_start, head_dim**-0.5)
    for sequence, length in enumerate(context_lens):
        block, offset = case.slots(sequence)
        for cache in (k_cache, v_cache):
            cache[block, :, offset] = rng.standard_normal((length, kv_heads, head_dim))
    return case


def attend_in_numpy(case):
    """Softmax attention in float64, one row and one head after the other."""
    out = np.zeros(case.q.shape)
    group = case.q.shape[1] // case.k_cache.shape[1]
    for sequence, length in enumerate(case.context_lens):
        block, offset = case.slots(sequence)
        start, end = case.query_start[sequence : sequence + 2]
        for row in range(start, end):
            seen = max(0, length - (end - row) + 1)
            for head in range(case.q.shape[1]) if seen else ():
                k, v = (cache[block, head // group, offset][:seen] for cache in (case.k_cache, case.v_cache))
                scores = k.astype(np.float64) @ case.q[row, head] * case.scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v / weights.sum()
    return out


@st.composite
def cases(draw):
    rows = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    cached = [draw(st.one_of(st.just(0), st.integers(0, 150))) for _ in rows]
    return make_case(
        [length + count for length, count in zip(cached, rows, strict=True)],
        rows,
        dtype=draw(st.sampled_from([np.float32, np.float64])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 3, 8, 50])),
        head_dim=draw(st.sampled_from([1, 2, 7, 16, 33, 64])),
        block_size=draw(st.integers(1, 17)),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_mixture_of_prefill_chunks_and_decode_equals_attention_written_out(case):
    assert_allclose(case.attend(), attend_in_numpy(case), rtol=0, atol=TOLERANCE[case.q.dtype.type])


@pytest.mark.parametrize("length", [attention.TILE, attention.PART - 1, attention.PART, 3 * attention.PART + 5])
@pytest.mark.parametrize(("rows", "block_size"), [(1, 4), (20, 4), (20, 7)])
def test_contexts_beyond_a_tile_and_beyond_a_part(length, rows, block_size):
    case = make_case([length, 3], [rows, 1], block_size=block_size)
    assert_allclose(case.attend(), attend_in_numpy(case), rtol=0, atol=1e-13)


def test_a_batch_without_sequences_writes_nothing():
    assert make_case([], []).attend().shape == (0, 4, 8)


def test_rows_before_the_first_position_give_zeros():
    case = make_case([2], [5])
    out = case.attend()
    assert_array_equal(out[:3], 0)
    assert_allclose(out[3:], attend_in_numpy(case)[3:], rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_blocks_lie_changes_no_bit(dtype):
    case = make_case([37, 5, 700], [9, 1, 2], dtype)
    order = np.random.default_rng(1).permutation(len(case.k_cache))
    moved = replace(
        case,
        k_cache=case.k_cache[order],
        v_cache=case.v_cache[order],
        block_tables=np.where(case.block_tables < 0, -1, np.argsort(order)[case.block_tables]),
    )
    assert_array_equal(moved.attend(), case.attend())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neither_company_nor_threads_change_a_bit(dtype):
    case = make_case([37, 5, 1200], [9, 1, 2], dtype)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        together = case.attend()
        numba.set_num_threads(1)
        alone = [case.alone(sequence).attend() for sequence in range(3)]
    finally:
        numba.set_num_threads(threads)
    assert_array_equal(np.concatenate(alone), together)


@pytest.mark.parametrize("poisoned", ["k_cache", "v_cache"])
def test_a_row_reads_every_position_up_to_its_own_and_no_other(poisoned):
    case = make_case([30], [30])
    clean = case.attend()
    block, offset = case.slots(0)
    for position in (0, 7, 16, 29):
        cache = getattr(case, poisoned).copy()
        cache[block[position], :, offset[position]] = np.nan
        out = replace(case, **{poisoned: cache}).attend()
        assert_array_equal(out[:position], clean[:position])
        assert np.isnan(out[position:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_far_beyond_the_range_of_exp_do_not_overflow(dtype):
    case = replace(make_case([3 * attention.PART], [1], dtype), scale=1e5)
    assert_allclose(case.attend(), attend_in_numpy(case), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_errs_by_less_than_the_rounding_of_one(dtype):
    x = np.linspace(-80, 0, 4001).astype(dtype)
    ours = np.array([attention.exp(value) for value in x])
    assert np.abs(ours - np.exp(x.astype(np.longdouble))).max() <= np.finfo(dtype).eps / 2
    assert attention.exp(dtype(0)) == 1
    assert attention.exp(dtype(-math.inf)) < 1e-37
    assert math.isnan(attention.exp(dtype(math.nan)))


def loads(context_lens, rows, workers):
    query_start = np.concatenate(([0], np.cumsum(rows)))
    work = attention.plan(np.array(context_lens), query_start, 16, workers)
    keys = np.minimum(
        attention.PART,
        np.array(context_lens)[work["sequence"]]
        - (query_start[work["sequence"] + 1] - work["token"])
        + work["rows"]
        - work["part"] * attention.PART,
    )
    return np.bincount(work["worker"], weights=keys * work["rows"], minlength=workers), (keys * work["rows"]).max()


def test_one_long_sequence_keeps_every_thread_busy():
    load, _ = loads([8192], [1], workers=16)
    assert load.min() == load.max() == 8192 / 16


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 60)), min_size=1, max_size=20), st.integers(1, 9))
@settings(deadline=None)
def test_no_thread_has_more_than_one_item_more_than_another(sequences, workers):
    load, largest_item = loads([length + rows for length, rows in sequences], [rows for _, rows in sequences], workers)
    assert load.max() - load.min() <= largest_item


def empty_caches(case, axis):
    return {name: np.delete(getattr(case, name), slice(None), axis) for name in ("k_cache", "v_cache")}


BAD_ARGUMENTS = [
    ("cache is float16", TypeError, lambda c: {"k_cache": c.k_cache.astype(np.float16)}),
    ("v_cache is float32 and the cache float64", TypeError, lambda c: {"v_cache": c.v_cache.astype(np.float32)}),
    ("q is float32 and the cache float64", TypeError, lambda c: {"q": c.q.astype(np.float32)}),
    ("v_cache .* must be alike", ValueError, lambda c: {"v_cache": c.v_cache[:-1]}),
    ("k_cache has strides", ValueError, lambda c: {"k_cache": c.k_cache[::-1]}),
    ("q has strides", ValueError, lambda c: {"q": np.asfortranarray(c.q)}),
    ("head_dim 8 and a multiple of its 2 heads", ValueError, lambda c: {"q": np.ones((10, 4, 6))}),
    ("head_dim 8 and a multiple of its 2 heads", ValueError, lambda c: {"q": np.ones((10, 3, 8))}),
    ("one head, one row in a block", ValueError, lambda c: empty_caches(c, 1)),
    (
        "one head, one row in a block",
        ValueError,
        lambda c: empty_caches(c, 2),
    ),
    ("multiple of its 2 heads", ValueError, lambda c: {"q": c.q[:, :0]}),
    ("block_tables is int32", TypeError, lambda c: {"block_tables": c.block_tables.astype(np.int32)}),
    (r"query_start \(2,\)", ValueError, lambda c: {"query_start": c.query_start[:-1]}),
    ("sequence 1 has rows 9 to 10 of 11", ValueError, lambda c: {"q": np.ones((11, 4, 8))}),
    ("sequence 1 has rows 12 to 10", ValueError, lambda c: {"query_start": np.array([0, 12, 10])}),
    ("sequence 0 .* 99 cached tokens", ValueError, lambda c: {"context_lens": np.array([99, 5])}),
    ("sequence 0 .* -1 cached tokens", ValueError, lambda c: {"context_lens": np.array([-1, 5])}),
    ("need a block from 0 to 13", ValueError, lambda c: {"block_tables": c.block_tables + 14}),
]


@pytest.mark.parametrize(("message", "error", "changes"), BAD_ARGUMENTS)
def test_arguments_that_do_not_fit_are_named(message, error, changes):
    case = make_case([37, 5], [9, 1])
    with pytest.raises(error, match=message):
        replace(case, **changes(case)).attend()


def test_rows_that_belong_to_no_sequence_are_refused():
    with pytest.raises(ValueError, match="3 rows belong to no sequence"):
        replace(make_case([], []), q=np.ones((3, 4, 8))).attend()


def test_out_must_have_the_shape_of_q():
    case = make_case([37, 5], [9, 1])
    arguments = (case.k_cache, case.v_cache, case.block_tables, case.context_lens, case.query_start, case.scale)
    with pytest.raises(ValueError, match=r"out .* must have the shape of q"):
        paged_attention(case.q, *arguments, np.empty((10, 4, 9)))


def caches(num_blocks=6, dtype=np.float64):
    return np.arange(2 * num_blocks * 2 * 4 * 3, dtype=dtype).reshape(2, num_blocks, 2, 4, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_token_is_stored_in_its_slot_and_nothing_else_changes(dtype):
    k_cache, v_cache = caches(dtype=dtype)
    expected_k, expected_v = k_cache.copy(), v_cache.copy()
    k, v = np.random.default_rng(0).standard_normal((3, 2, 2, 3)).astype(dtype).transpose(1, 0, 2, 3)  # strided
    for token, (block, offset) in enumerate([(5, 3), (0, 0), (2, 1)]):
        expected_k[block, :, offset], expected_v[block, :, offset] = k[token], v[token]
    reshape_and_cache(k, v, k_cache, v_cache, np.array([23, 0, 9]))
    assert_array_equal(k_cache, expected_k)
    assert_array_equal(v_cache, expected_v)


@pytest.mark.parametrize("slots", [[0, -1], [0, 24]])
def test_slots_outside_of_the_cache_are_refused(slots):
    k_cache, v_cache = caches()
    with pytest.raises(ValueError, match="cache has slots 0 to 23"):
        reshape_and_cache(np.ones((2, 2, 3)), np.ones((2, 2, 3)), k_cache, v_cache, np.array(slots))
    assert_array_equal((k_cache, v_cache), caches())


def test_copied_blocks_equal_their_sources_and_the_rest_is_untouched():
    k_cache, v_cache = caches()
    copy_blocks(k_cache, v_cache, np.array([[4, 1], [0, 5]]))
    assert_array_equal((k_cache, v_cache), caches()[:, [0, 4, 2, 3, 4, 0]])


def test_swapped_blocks_survive_the_way_out_and_back():
    device, host = caches(), np.full((2, 3, 2, 4, 3), np.nan)
    swap_blocks(*device, *host, np.array([[4, 0], [2, 1]]))
    assert_array_equal(host[:, :2], caches()[:, [4, 2]])
    assert np.isnan(host[:, 2]).all()
    device[:] = np.nan
    swap_blocks(*host, *device, np.array([[1, 2]]))
    assert_array_equal(device[:, 2], caches()[:, 2])


@pytest.mark.parametrize("pairs", [[[0, 6]], [[-1, 2]]])
def test_blocks_outside_of_the_cache_are_refused(pairs):
    k_cache, v_cache = caches()
    with pytest.raises(ValueError, match="block"):
        copy_blocks(k_cache, v_cache, np.array(pairs))
    assert_array_equal((k_cache, v_cache), caches())


def test_pools_of_different_blocks_do_not_swap():
    with pytest.raises(ValueError, match="do not fit"):
        swap_blocks(*caches(), *np.ones((2, 3, 2, 8, 3)), np.array([[0, 0]]))
