"""Lesson 3, GPU kernels: each task's kernel gives the right numbers, without a fault and within a budget of traffic.

Kernels run in the lab with late stores: what a thread writes is seen by others after the next barrier only, so that a
missing barrier is wrong every time. Sums and products are of small integers, which float32 holds exactly.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest
from launches import faultless, launched, within

from kernels import lab
from kernels.cuda.flash_attention import flash_attention
from kernels.cuda.matmul import matmul_tiled
from kernels.cuda.paged_flash_decoding import combine
from kernels.cuda.reduction import sum_rows_shared
from kernels.cuda.softmax import softmax_online

DETECTIVE = Path(__file__).parents[1] / "lessons" / "03_gpu_kernels" / "detective.py"
CLOSE = 1e-5
"""Several roundings of float32, for results about 1 in size."""


def integers(*shape):
    return np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


# Task 1: reduction


def sums(check, x, **options):
    """Each row's sum by task 1's kernel, and its report."""
    out = np.full(len(x), np.nan, np.float32)
    report = launched(check, sum_rows_shared, x, out, **options)
    return out, report


@pytest.mark.task(3, 1)
@pytest.mark.parametrize("columns", [0, 1, 100, 128, 300])
def test_each_row_has_its_sum(check, columns):
    x = integers(2, columns)
    out, _ = sums(check, x)
    check("sums", out, x.sum(1), axes=("row",))


@pytest.mark.task(3, 1)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_no_sum_is_read_before_it_is_there(check, order):
    _, report = sums(check, integers(1, 300), order=order)
    faultless(check, report)


@pytest.mark.task(3, 1)
def test_neighbouring_threads_read_neighbouring_columns_once(check):
    _, report = sums(check, integers(1, 512))
    within(check, report, global_reads_per_thread=4, global_writes_per_thread=1, excess_sectors=0, bank_conflict=1)


@pytest.mark.task(3, 1)
def test_the_sums_of_the_threads_meet_in_a_tree(check):
    _, report = sums(check, integers(1, 128))
    within(check, report, shared_accesses=100, atomics=0)


# Task 2: tiled matmul


def product(check, m, k, n, **options):
    """The product of two matrices by task 2's kernel, its report, and what is due."""
    a, b = integers(m, k), integers(k, n)
    out = np.full((m, n), np.nan, np.float32)
    report = launched(check, matmul_tiled, a, b, out, **options)
    return out, report, a @ b


@pytest.mark.task(3, 2)
@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (3, 40, 5), (1, 7, 20), (17, 1, 1)])
def test_products_of_any_shape(check, m, k, n):
    out, _, due = product(check, m, k, n)
    check("product", out, due, axes=("row", "column"))


@pytest.mark.task(3, 2)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_tiles_are_read_whole_and_overwritten_only_afterwards(check, order):
    _, report, _ = product(check, 9, 20, 5, order=order)
    faultless(check, report)


@pytest.mark.task(3, 2)
def test_each_element_is_read_once_for_a_tile_by_neighbours_from_different_banks(check):
    _, report, _ = product(check, 16, 32, 16)
    within(check, report, global_reads_per_thread=4, global_writes_per_thread=1, excess_sectors=0, bank_conflict=2)


# Task 3: the online softmax


def softmax(check, x, **options):
    """Softmax of each row by task 3's kernel, and its report."""
    out = np.full_like(x, np.nan)
    report = launched(check, softmax_online, x, out, **options)
    return out, report


def softmax_in_float64(x):
    weights = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.task(3, 3)
@pytest.mark.parametrize("columns", [1, 40, 300])
def test_each_row_becomes_its_softmax(check, columns):
    x = 3 * floats(1, columns)
    out, _ = softmax(check, x)
    check("softmax", out, softmax_in_float64(x), axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
@pytest.mark.parametrize("step", [1, -1], ids=["ascending", "descending"])
def test_the_maximum_may_come_first_or_last(check, step):
    x = np.linspace(-6, 6, 260, dtype=np.float32)[None, ::step].copy()
    out, _ = softmax(check, x)
    check("softmax", out, softmax_in_float64(x), axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
def test_scores_in_the_hundreds_do_not_overflow(check):
    x = 300 * floats(1, 150)
    out, _ = softmax(check, x)
    check("softmax", out, softmax_in_float64(x), axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
@pytest.mark.parametrize("middle", [-300, -30_000])
def test_a_row_may_lie_far_from_zero(check, middle):
    x = middle + 3 * floats(1, 150)
    out, _ = softmax(check, x)
    check("softmax", out, softmax_in_float64(x), axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
@pytest.mark.parametrize("column", [0, 140])
def test_a_nan_does_not_get_lost(check, column):
    x = floats(2, 150)
    due = softmax_in_float64(x)
    x[1, column], due[1] = np.nan, np.nan
    out, _ = softmax(check, x)
    check("softmax", out, due, axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
def test_masked_scores_get_nothing_and_a_row_of_them_is_zero(check):
    x = np.full((2, 130), -np.inf, np.float32)
    x[0, 100] = x[0, 129] = 5
    due = np.zeros_like(x)
    due[0, 100] = due[0, 129] = 0.5
    out, _ = softmax(check, x)
    check("softmax", out, due, axes=("row", "column"), tolerance=CLOSE)


@pytest.mark.task(3, 3)
def test_a_row_is_read_twice_and_warps_wait_for_each_other(check):
    _, report = softmax(check, floats(1, 256), order="descending")
    within(check, report, global_reads_per_thread=4, global_writes_per_thread=2, excess_sectors=0, bank_conflict=1)


# Task 4: FlashAttention


def attention(check, rows, context, heads=1, kv_heads=1, head_dim=8, scale=0.5, **options):
    """Outputs and log sums by task 4's kernel, its report, and what is due."""
    q, k, v = floats(rows, heads, head_dim), floats(context, kv_heads, head_dim), integers(context, kv_heads, head_dim)
    out, log_sums, report = attended(check, q, k, v, scale, **options)
    return out, log_sums, report, attention_in_float64(q, k, v, scale)


def attended(check, q, k, v, scale, **options):
    """Outputs and log sums by task 4's kernel, and its report."""
    out, log_sums = np.full_like(q, np.nan), np.full(q.shape[:2], np.nan, np.float32)
    report = launched(check, flash_attention, q, k, v, scale, out, log_sums, **options)
    return out, log_sums, report


def attention_in_float64(q, k, v, scale):
    """Outputs and log sums of the last rows of a sequence, one row and one head after the other."""
    out, log_sums = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for row, head in np.ndindex(log_sums.shape):
        seen = max(0, len(k) - len(q) + row + 1)
        keys, values = (x[:seen, head // (q.shape[1] // k.shape[1])].astype(float) for x in (k, v))
        scores = keys @ q[row, head].astype(float) * scale
        log_sums[row, head] = np.logaddexp.reduce(scores)
        out[row, head] = np.exp(scores - log_sums[row, head]) @ values if seen else 0
    return out, log_sums


@pytest.mark.task(3, 4)
@pytest.mark.parametrize(("rows", "context"), [(3, 3), (1, 20), (5, 20), (2, 33)])
def test_each_query_attends_to_the_keys_up_to_its_own(check, rows, context):
    out, _, _, (due, _) = attention(check, rows, context)
    check("attention", out, due, axes=("row", "head", "element"), tolerance=10 * CLOSE)


@pytest.mark.task(3, 4)
def test_more_queries_than_a_tile_holds(check):
    out, _, _, (due, _) = attention(check, 18, 18)
    check("attention", out, due, axes=("row", "head", "element"), tolerance=10 * CLOSE)


@pytest.mark.task(3, 4)
def test_query_heads_share_key_heads_with_their_neighbours(check):
    out, _, _, (due, _) = attention(check, 1, 3, heads=4, kv_heads=2)
    check("attention", out, due, axes=("row", "head", "element"), tolerance=10 * CLOSE)


@pytest.mark.task(3, 4)
@pytest.mark.parametrize("middle", [-300, -30_000])
def test_scores_may_lie_far_from_zero(check, middle):
    q, k, v = np.ones((1, 1, 8), np.float32), integers(20, 1, 8) / 8, floats(20, 1, 8)
    k[:, :, 0] += 2 * middle  # float32 holds every score exactly
    out, log_sums, _ = attended(check, q, k, v, 0.5)
    due, due_log_sums = attention_in_float64(q, k, v, 0.5)
    check("attention", out, due, axes=("row", "head", "element"), tolerance=10 * CLOSE)
    check("log sums", log_sums, due_log_sums, axes=("row", "head"), tolerance=abs(middle) * CLOSE)


@pytest.mark.task(3, 4)
def test_the_log_of_each_row_s_sum_of_exponentials_is_kept(check):
    _, log_sums, _, (_, due) = attention(check, 2, 20)
    check("log sums", log_sums, due, axes=("row", "head"), tolerance=10 * CLOSE)


@pytest.mark.task(3, 4)
def test_rows_before_the_first_key_are_zero(check):
    out, log_sums, _, (due, due_log_sums) = attention(check, 3, 2)
    check("attention", out, due, axes=("row", "head", "element"), tolerance=10 * CLOSE)
    check("log sums", log_sums, due_log_sums, axes=("row", "head"), tolerance=10 * CLOSE)


@pytest.mark.task(3, 4)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_keys_values_and_weights_are_there_before_they_are_read(check, order):
    *_, report, _ = attention(check, 2, 20, order=order)
    faultless(check, report)


@pytest.mark.task(3, 4)
def test_keys_are_read_once_for_a_tile_of_queries_and_only_if_one_of_them_sees_them(check):
    *_, report, _ = attention(check, 32, 32)
    within(check, report, sectors=190, global_reads_per_thread=8, bank_conflict=4)


# Task 5: Flash-Decoding's combination


def combined(check, partial, log_sums):
    """The parts combined by task 5's kernel, and its report."""
    out = np.full(partial.shape[1:], np.nan, np.float32)
    report = launched(check, combine, partial, log_sums, out)
    return out, report


def combined_in_float64(partial, log_sums):
    weights = np.exp(log_sums.astype(float) - log_sums.max(0))
    return (weights[..., None] * partial).sum(0) / weights.sum(0)[..., None]


@pytest.mark.task(3, 5)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("head_dim", [8, 80])
def test_parts_count_by_their_sums_of_exponentials(check, parts, head_dim):
    partial, log_sums = floats(parts, 2, 1, head_dim), 2 * floats(parts, 2, 1)
    out, _ = combined(check, partial, log_sums)
    due = combined_in_float64(partial, log_sums)
    check("combined", out, due, axes=("sequence", "head", "element"), tolerance=CLOSE)


@pytest.mark.task(3, 5)
@pytest.mark.parametrize("middle", [300, -300, -30_000])
def test_log_sums_may_lie_far_from_zero(check, middle):
    partial, log_sums = floats(3, 1, 2, 8), middle + 2 * floats(3, 1, 2)
    out, _ = combined(check, partial, log_sums)
    due = combined_in_float64(partial, log_sums)
    check("combined", out, due, axes=("sequence", "head", "element"), tolerance=CLOSE)


@pytest.mark.task(3, 5)
def test_parts_that_saw_no_key_are_not_read_and_a_row_that_none_saw_is_zero(check):
    partial, log_sums = np.full((2, 2, 1, 8), np.nan, np.float32), np.full((2, 2, 1), -np.inf, np.float32)
    partial[0, 0], log_sums[0, 0] = 7, 3
    out, _ = combined(check, partial, log_sums)
    due = np.zeros((2, 1, 8))
    due[0] = 7
    check("combined", out, due, axes=("sequence", "head", "element"))


@pytest.mark.task(3, 5)
def test_nothing_is_at_fault_and_parts_are_read_by_neighbours(check):
    _, report = combined(check, floats(3, 1, 1, 128), floats(3, 1, 1))
    within(check, report, global_reads_per_thread=48, global_writes_per_thread=2, excess_sectors=0)


# The three cases for a detective: each kernel is right where its author tried it, and the lab names its one bug


def faults_of(name, *arguments, blocks=1, late_stores=True):
    case = runpy.run_path(str(DETECTIVE))
    with lab.check(late_stores=late_stores) as reports:
        case[name][blocks, case["THREADS"]](*arguments)
    return reports[0].faults


@pytest.mark.parametrize("late_stores", [True, False])
def test_the_first_case_is_a_race_that_late_stores_hide(late_stores):
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    (fault,) = faults_of("running_sums_kernel", x, out, late_stores=late_stores)
    assert fault.startswith("race on sums[1]")
    assert np.array_equal(out, np.cumsum(x)) == late_stores


def test_the_second_case_is_a_barrier_that_some_threads_miss_where_sizes_are_odd():
    token_ids = np.arange(128) % 50
    assert faults_of("counts_kernel", token_ids, np.zeros(50, np.float32)) == []
    faults = faults_of("counts_kernel", token_ids[:100], np.zeros(50, np.float32))
    assert any(fault.startswith("syncthreads in line") for fault in faults)


def test_the_third_case_is_a_float64():
    x = floats(2, 100)
    out = np.empty_like(x)
    (fault,) = faults_of("rms_norm_kernel", x, out, blocks=2)
    assert "makes a float64" in fault
    assert np.allclose(out, x / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-5), atol=1e-5)
