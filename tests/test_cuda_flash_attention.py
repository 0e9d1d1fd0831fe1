"""FlashAttention by tiles equals attention written out in float64."""

import numpy as np
from gpu_lab import TOLERANCE, few, in_every_way
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernels import lab
from kernels.cuda.flash_attention import TILE, flash_attention


def case(rows, context, kv_heads, group, head_dim, dtype):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((rows, kv_heads * group, head_dim)).astype(dtype)
    k, v = rng.standard_normal((2, context, kv_heads, head_dim)).astype(dtype)
    return q, k, v


def written_out(q, k, v, scale):
    """Attention and log-sums in float64, one row and one head after the other."""
    out, log_sums = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for row, head in np.ndindex(log_sums.shape):
        seen = max(0, len(k) - len(q) + row + 1)
        if seen:
            keys, values = (x[:seen, head // (q.shape[1] // k.shape[1])].astype(float) for x in (k, v))
            log_weights = keys @ q[row, head].astype(float) * scale
            log_sums[row, head] = np.logaddexp.reduce(log_weights)
            out[row, head] = np.exp(log_weights - log_sums[row, head]) @ values
    return out, log_sums


def attend(launch, q, k, v, scale, **budgets):
    out, log_sums = np.full_like(q, np.nan), np.full(q.shape[:2], np.nan, np.float32)
    launch(flash_attention, q, k, v, scale, out, log_sums, **budgets)
    return out, log_sums


@in_every_way
@settings(few, max_examples=1)
@given(
    rows=st.integers(1, TILE + 1),
    cached=st.integers(-2, 5),
    heads=st.sampled_from([(1, 1), (1, 2), (2, 1)]),
    head_dim=st.sampled_from([8, 16]),
    dtype=st.sampled_from([np.float16, np.float32]),
)
@example(rows=2, cached=TILE + 1, heads=(1, 1), head_dim=8, dtype=np.float32)
@example(rows=5, cached=-3, heads=(1, 1), head_dim=8, dtype=np.float32)
def test_attention_by_tiles(launch, rows, cached, heads, head_dim, dtype):
    q, k, v = case(rows, max(0, rows + cached), *heads, head_dim, dtype)
    out, log_sums = attend(launch, q, k, v, head_dim**-0.5)
    expected, expected_log_sums = written_out(q, k, v, head_dim**-0.5)
    assert_allclose(out, expected, rtol=0, atol=TOLERANCE[dtype])
    assert_allclose(log_sums, expected_log_sums, rtol=0, atol=1e-4)


@in_every_way
def test_a_higher_score_in_a_later_tile_corrects_what_came_before(launch):
    q, k, v = case(1, TILE + 2, 1, 1, 8, np.float32)
    k[-1] = 4 * q[0]
    out, log_sums = attend(launch, q, k, v, 1.0)
    expected, expected_log_sums = written_out(q, k, v, 1.0)
    assert (k[:TILE, 0] @ q[0, 0]).max() < k[-1, 0] @ q[0, 0], "the later tile holds the maximum"
    assert_allclose(out, expected, rtol=0, atol=TOLERANCE[np.float32])
    assert_allclose(log_sums, expected_log_sums, rtol=0, atol=1e-4)


def test_a_row_looks_at_every_key_up_to_its_own_and_at_no_other():
    q, k, v = case(20, 20, 1, 1, 8, np.float32)
    with lab.run():
        clean, _ = attend(lambda function, *arguments: function(*arguments), q, k, v, 1.0)
        for poisoned in (k, v):
            kept = poisoned[17].copy()
            poisoned[17] = np.nan
            out, _ = attend(lambda function, *arguments: function(*arguments), q, k, v, 1.0)
            poisoned[17] = kept
            assert_array_equal(out[:17], clean[:17])
            assert np.isnan(out[17:]).all()
