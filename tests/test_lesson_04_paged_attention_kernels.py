"""Lesson 4, paged attention, on a GPU: its optional tasks, whose kernels run in the lab with late stores."""

import numpy as np
import pytest
from launches import launched, within

from kernels import cuda


def stored_by_kernel(check, kv_heads=2, head_dim=8):
    """Both caches of 5 blocks of 3 slots after three tokens were stored, what is due in them, and the report."""
    k, v = np.random.default_rng(0).standard_normal((2, 3, kv_heads, head_dim)).astype(np.float32)
    caches, due = np.full((2, 2, 5, kv_heads, 3, head_dim), np.nan, np.float32)
    slots = np.array([14, 0, 7])
    due[0, slots // 3, :, slots % 3], due[1, slots // 3, :, slots % 3] = k, v
    report = launched(check, cuda.reshape_and_cache, k, v, *caches, slots)
    return caches, due, report


CACHES = ("keys or values", "block", "head", "offset", "element")


@pytest.mark.task(4, 7)
def test_the_kernel_stores_each_token_in_its_slot_and_nowhere_else(check):
    caches, due, _ = stored_by_kernel(check)
    check("caches", caches, due, axes=CACHES)


@pytest.mark.task(4, 7)
def test_a_token_may_have_more_elements_than_its_block_has_threads(check):
    caches, due, _ = stored_by_kernel(check, head_dim=136)
    check("caches", caches, due, axes=CACHES)


@pytest.mark.task(4, 7)
def test_neighbouring_threads_store_neighbouring_elements(check):
    _, _, report = stored_by_kernel(check, kv_heads=8, head_dim=64)
    within(check, report, global_reads_per_thread=10, global_writes_per_thread=4, excess_sectors=0)


def decoded_by_kernel(check, context_lens, kv_heads=1, group=1):
    """One query for each sequence, over pages in disorder, other slots full too; what is due, and the report."""
    rng, block_size, head_dim = np.random.default_rng(0), 4, 8
    tables = np.full((len(context_lens), 4), -1)
    free = iter(rng.permutation(12))
    k_cache, v_cache = 3 * rng.standard_normal((2, 12, kv_heads, block_size, head_dim)).astype(np.float32)
    q = rng.standard_normal((len(context_lens), kv_heads * group, head_dim)).astype(np.float32)
    due = np.empty(q.shape)
    for sequence, length in enumerate(context_lens):
        k, v = rng.standard_normal((2, length, kv_heads, head_dim)).astype(np.float32)
        tables[sequence, : -(-length // block_size)] = [next(free) for _ in range(-(-length // block_size))]
        position = np.arange(length)
        where = tables[sequence, position // block_size], slice(None), position % block_size
        k_cache[where], v_cache[where] = k, v
        for head in range(kv_heads * group):
            scores = k[:, head // group] @ q[sequence, head] * head_dim**-0.5
            weights = np.exp(scores - scores.max())
            due[sequence, head] = weights @ v[:, head // group] / weights.sum()
    out = np.full_like(q, np.nan)
    arguments = q, k_cache, v_cache, tables, np.array(context_lens), head_dim**-0.5, out
    return out, due, launched(check, cuda.paged_decode_attention, *arguments)


@pytest.mark.task(4, 8)
def test_the_kernel_finds_each_sequence_s_keys_through_its_own_table(check):
    out, due, _ = decoded_by_kernel(check, [6, 9])
    check("attention", out, due, axes=("sequence", "head", "element"), tolerance=1e-5)


@pytest.mark.task(4, 8)
def test_the_kernel_s_query_heads_share_key_heads_with_their_neighbours(check):
    out, due, _ = decoded_by_kernel(check, [3], kv_heads=2, group=2)
    check("attention", out, due, axes=("sequence", "head", "element"), tolerance=1e-5)


@pytest.mark.task(4, 8)
def test_the_block_s_warps_share_the_keys(check):
    _, _, report = decoded_by_kernel(check, [8])
    within(check, report, global_reads_per_thread=12, excess_sectors=0, bank_conflict=1)
