"""Paged attention on the CPU: one call for prefill, chunked prefill over cached context and decode, in any mixture.

Keys and values are read where they lie, through the block table (PagedAttention: Kwon et al., SOSP 2023, section 4.1),
a tile at a time with an online softmax (FlashAttention-2: Dao 2023, section 3.1); a long context is cut into parts that
are attended to apart and then combined (Flash-Decoding: Dao et al. 2023).

What makes it fast: the query heads that share a key head are handled together, so that each key and value comes from
memory once; the innermost loops run along ``head_dim``, which is contiguous, and become vector instructions; while keys
are read the values are on their way, and the other way round; and no work item reads more than ``PART`` keys, so that
one long sequence, or a batch of very unequal ones, still occupies all threads.

A sequence's result is the same to the last bit in any batch, in any blocks and on any number of threads, because how
its work is cut depends on the sequence alone.
"""

import math
from typing import Any

import numpy as np
from numba import get_num_threads, prange

from kernels.checks import Floats, Ints, check_attention
from kernels.cpu.compiled import compiled, compiled_parallel
from kernels.cpu.prefetch import prefetch_row

TILE = 64
"""Keys whose scores are computed before their exponentials are."""
PART = 512
"""Keys that one work item reads at most; a multiple of TILE."""
QUERY_VECTORS = 48
"""Query vectors (rows x heads of one group) that one work item holds, if a single row has no more."""

WORK_ITEM = np.dtype([(name, np.int64) for name in ("worker", "sequence", "kv_head", "token", "rows", "part")])
"""What ``worker`` does: rows ``[token, token + rows)`` of the batch, for one key head, over one part of its keys."""


def paged_attention(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    scale: float,
    out: Floats,
) -> None:
    """Write ``softmax(q k^T * scale) v`` to ``out``; each row looks back on the pages of its own sequence.

    q, out            ``[tokens, heads, head_dim]``: the rows of all sequences, one sequence after the other
    k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float32 or float64
    block_tables      ``[sequences, max_blocks]``: each sequence's blocks in order; entries beyond its need are not read
    context_lens      ``[sequences]``: cached tokens of each sequence, this pass's included
    query_start       ``[sequences + 1]``: offsets of each sequence's rows in q and out

    Row i of a sequence's n rows sits at position ``context_len - n + i`` and reads positions up to its own (a causal
    mask aligned to the bottom right); a row before position 0 reads nothing and gives zeros. No other slot is read.
    Arithmetic is in the cache's dtype, integers are int64. TypeError or ValueError names an argument that does not fit.
    """
    check_attention(q, k_cache, v_cache, block_tables, context_lens, query_start, out)
    check_pages(block_tables, context_lens, query_start, len(q), k_cache)
    tokens, heads, head_dim = q.shape
    kv_heads, workers = k_cache.shape[1], get_num_threads()
    work = plan(context_lens, query_start, kv_heads, max(1, QUERY_VECTORS * kv_heads // heads), workers)
    parts = work["part"].max(initial=0) + 1
    partial = np.empty((parts, tokens, heads, head_dim), q.dtype)
    log_sums = np.full((parts, tokens, heads), -np.inf, q.dtype)
    scale = q.dtype.type(scale)
    attend_all(work, workers, q, k_cache, v_cache, block_tables, context_lens, query_start, scale, partial, log_sums)
    combine(partial, log_sums, out)


def check_pages(block_tables: Ints, context_lens: Ints, query_start: Ints, tokens: int, k_cache: Floats) -> None:
    """Raise ValueError for rows outside of the batch and blocks outside of the cache: they would be read as memory."""
    num_blocks, _, block_size, _ = k_cache.shape
    sequence = misplaced_sequence(block_tables, context_lens, query_start, tokens, num_blocks, block_size)
    if sequence >= 0:
        raise ValueError(
            f"sequence {sequence} has rows {query_start[sequence]} to {query_start[sequence + 1]} of {tokens}, "
            f"{context_lens[sequence]} cached tokens and blocks {block_tables[sequence]}; rows must follow each other "
            f"and fill the batch, and every {block_size} tokens need a block from 0 to {num_blocks - 1}"
        )


@compiled
def misplaced_sequence(
    block_tables: Ints, context_lens: Ints, query_start: Ints, tokens: int, num_blocks: int, block_size: int
) -> int:
    """The first sequence whose rows or blocks cannot be, or -1."""
    row = 0
    for sequence in range(len(context_lens)):
        blocks = (context_lens[sequence] + block_size - 1) // block_size
        rows_follow = query_start[sequence] == row <= query_start[sequence + 1]
        if not rows_follow or context_lens[sequence] < 0 or blocks > block_tables.shape[1]:
            return sequence
        for index in range(blocks):
            if not 0 <= block_tables[sequence, index] < num_blocks:
                return sequence
        row = query_start[sequence + 1]
    return -1 if row == tokens else len(context_lens) - 1


@compiled
def plan(context_lens: Ints, query_start: Ints, kv_heads: int, max_rows: int, workers: int) -> Any:
    """Work items ``[items]`` of at most ``max_rows`` rows, each given to the worker that has least to do so far.

    What there is to do is counted in rows x keys.
    """
    work = np.empty(count_items(context_lens, query_start, kv_heads, max_rows), WORK_ITEM)
    load = np.zeros(workers, np.int64)
    count = 0
    for sequence in range(len(context_lens)):
        end = query_start[sequence + 1]
        for token in range(query_start[sequence], end, max_rows):
            rows = min(max_rows, end - token)
            keys = context_lens[sequence] - (end - token) + rows
            for start in range(0, keys, PART):
                for kv_head in range(kv_heads):
                    item = work[count]
                    item.worker = np.argmin(load)
                    item.sequence, item.kv_head = sequence, kv_head
                    item.token, item.rows = token, rows
                    item.part = start // PART
                    load[item.worker] += rows * min(PART, keys - start)
                    count += 1
    return work[:count]


@compiled
def count_items(context_lens: Ints, query_start: Ints, kv_heads: int, max_rows: int) -> int:
    """No fewer than the work items of a batch."""
    count = 0
    for sequence in range(len(context_lens)):
        rows = query_start[sequence + 1] - query_start[sequence]
        parts = (context_lens[sequence] + PART - 1) // PART
        count += parts * kv_heads * ((rows + max_rows - 1) // max_rows)
    return count


@compiled_parallel
def attend_all(
    work: Any,
    workers: int,
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    scale: float,
    partial: Floats,
    log_sums: Floats,
) -> None:
    """Every worker does its work items, all workers in parallel."""
    for worker in prange(workers):
        for i in range(len(work)):
            if work[i].worker == worker:
                attend(work[i], q, k_cache, v_cache, block_tables, context_lens, query_start, scale, partial, log_sums)


@compiled
def attend(
    item: Any,
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    scale: float,
    partial: Floats,
    log_sums: Floats,
) -> None:
    """One work item: an online softmax over the tiles of one part (FlashAttention-2, algorithm 1, inner loop).

    partial   ``[parts, tokens, heads, head_dim]`` receives the attention of the item's rows to this part alone
    log_sums  ``[parts, tokens, heads]`` receives the logarithm of the sum of their exponentials
    """
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // kv_heads
    position = context_lens[item.sequence] - (query_start[item.sequence + 1] - item.token)  # of the item's first row
    begin = item.part * PART
    end = min(begin + PART, position + item.rows)
    key_rows = locate(block_tables[item.sequence], begin, end, item.kv_head, kv_heads, block_size)
    keys, values = k_cache.reshape(-1, head_dim), v_cache.reshape(-1, head_dim)
    queries = scaled_queries(q, item.token, item.rows, item.kv_head * group, group, scale)
    vectors = len(queries)
    scores = np.empty((vectors, TILE), q.dtype)
    visible = np.empty(vectors, np.int64)
    maximum, new_maximum = np.full(vectors, -np.inf, q.dtype), np.full(vectors, -np.inf, q.dtype)
    total = np.zeros(vectors, q.dtype)
    summed = np.zeros((vectors, head_dim), q.dtype)
    for start in range(begin, end, TILE):
        stop = min(start + TILE, end)
        for i in range(vectors):
            visible[i] = max(0, min(stop, position + i // group + 1) - start)
        tile, next_tile = key_rows[start - begin : stop - begin], key_rows[stop - begin : stop - begin + TILE]
        score(queries, keys, tile, visible, scores, new_maximum, values, tile)
        rescale(scores, visible, new_maximum, maximum, total, summed)
        accumulate(scores, values, tile, visible, summed, keys, next_tile)
    for i in range(vectors):
        token, head = item.token + i // group, item.kv_head * group + i % group
        log_sums[item.part, token, head] = maximum[i] + math.log(total[i])  # -inf where nothing of this part is visible
        for d in range(head_dim):
            partial[item.part, token, head, d] = summed[i, d] / total[i]


@compiled
def locate(block_table: Ints, begin: int, end: int, kv_head: int, kv_heads: int, block_size: int) -> Ints:
    """Where positions ``[begin, end)`` lie: rows ``[end - begin]`` of the cache seen as ``[rows, head_dim]``."""
    key_rows = np.empty(end - begin, np.int64)
    for block in range(begin // block_size, (end + block_size - 1) // block_size):
        first_position = block * block_size
        first_row = (block_table[block] * kv_heads + kv_head) * block_size
        for position in range(max(begin, first_position), min(end, first_position + block_size)):
            key_rows[position - begin] = first_row + position - first_position
    return key_rows


@compiled
def scaled_queries(q: Floats, token: int, rows: int, head: int, group: int, scale: float) -> Floats:
    """Query vectors ``[rows * group, head_dim]`` of ``rows`` rows and ``group`` heads, times the softmax scale."""
    queries = np.empty((rows * group, q.shape[2]), q.dtype)
    for i in range(rows * group):
        for d in range(q.shape[2]):
            queries[i, d] = q[token + i // group, head + i % group, d] * scale
    return queries


@compiled
def score(
    queries: Floats,
    keys: Floats,
    tile: Ints,
    visible: Ints,
    scores: Floats,
    maximum: Floats,
    soon: Floats,
    soon_rows: Ints,
) -> None:
    """``scores[i, j] = queries[i] . keys[tile[j]]`` for the ``visible[i]`` keys that vector i may read.

    queries ``[vectors, head_dim]``; keys ``[rows, head_dim]``; scores ``[vectors, TILE]``; maximum ``[vectors]`` is
    raised to the largest score. Rows of ``soon`` are prefetched meanwhile. Keys that all vectors see are taken in
    pairs, so that an element of a query, once loaded, is used twice.
    """
    zero = queries.dtype.type(0)
    paired = visible[0] // 2 * 2
    for j in range(0, paired, 2):
        row, row_after = tile[j], tile[j + 1]
        if j + 1 < len(soon_rows):
            prefetch_row(soon, soon_rows[j])
            prefetch_row(soon, soon_rows[j + 1])
        for i in range(len(queries)):
            dot, dot_after = zero, zero
            for d in range(queries.shape[1]):
                dot += queries[i, d] * keys[row, d]
                dot_after += queries[i, d] * keys[row_after, d]
            scores[i, j], scores[i, j + 1] = dot, dot_after
            maximum[i] = max(maximum[i], dot, dot_after)
    for j in range(paired, len(tile)):
        row = tile[j]
        for i in range(len(queries)):
            if j < visible[i]:
                dot = zero
                for d in range(queries.shape[1]):
                    dot += queries[i, d] * keys[row, d]
                scores[i, j] = dot
                maximum[i] = max(maximum[i], dot)


@compiled
def rescale(scores: Floats, visible: Ints, new_maximum: Floats, maximum: Floats, total: Floats, summed: Floats) -> None:
    """Turn a tile's scores into ``exp(score - new_maximum)``, and bring what earlier tiles left to the new maximum.

    scores       ``[vectors, TILE]``: of vector i only the first ``visible[i]`` count, and the rest are not read
    visible      ``[vectors]``: where it is 0, the vector's scores and running values stay as they are
    new_maximum  ``[vectors]``: the largest of the running maximum and the visible scores
    maximum, total, summed    ``[vectors]``, ``[vectors]``, ``[vectors, head_dim]``: the running values, -inf and 0 at
                 first. The maximum becomes the new one; total and weighted sum shrink to it, and the tile's
                 exponentials are added to the total. Their share of the weighted sum is added later, by the caller.

    The online softmax of Milakov and Gimelshein 2018; as in FlashAttention-2, dividing by the total is left to the end.
    """
    for i in range(len(scores)):
        if visible[i] > 0:
            factor = exp(maximum[i] - new_maximum[i])
            tile_total = scores.dtype.type(0)
            for j in range(visible[i]):
                scores[i, j] = exp(scores[i, j] - new_maximum[i])
                tile_total += scores[i, j]
            maximum[i] = new_maximum[i]
            total[i] = total[i] * factor + tile_total
            for d in range(summed.shape[1]):
                summed[i, d] *= factor


@compiled
def accumulate(
    weights: Floats,
    values: Floats,
    tile: Ints,
    visible: Ints,
    summed: Floats,
    soon: Floats,
    soon_rows: Ints,
) -> None:
    """``summed[i] += weights[i, j] * values[tile[j]]`` for the ``visible[i]`` values that vector i may read.

    Shapes, pairs and prefetching as in ``score``.
    """
    paired = visible[0] // 2 * 2
    for j in range(0, paired, 2):
        row, row_after = tile[j], tile[j + 1]
        if j + 1 < len(soon_rows):
            prefetch_row(soon, soon_rows[j])
            prefetch_row(soon, soon_rows[j + 1])
        for i in range(len(weights)):
            weight, weight_after = weights[i, j], weights[i, j + 1]
            for d in range(summed.shape[1]):
                summed[i, d] += weight * values[row, d] + weight_after * values[row_after, d]
    for j in range(paired, len(tile)):
        row = tile[j]
        for i in range(len(weights)):
            if j < visible[i]:
                weight = weights[i, j]
                for d in range(summed.shape[1]):
                    summed[i, d] += weight * values[row, d]


@compiled
def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts of each row, weighted by their sums of exponentials, and write that to ``out``.

    partial   ``[parts, tokens, heads, head_dim]``: the attention to each part of the keys alone
    log_sums  ``[parts, tokens, heads]``: the logarithm of each part's sum of exponentials; where it is -inf, nobody
              wrote the part, and it is not read
    out       ``[tokens, heads, head_dim]``: zero where no part was written
    """
    parts, tokens, heads, head_dim = partial.shape
    for token in range(tokens):
        for head in range(heads):
            maximum = log_sums[0, token, head]
            for part in range(parts):
                maximum = max(maximum, log_sums[part, token, head])
            total = out.dtype.type(0)
            out[token, head] = 0
            for part in range(parts):
                if log_sums[part, token, head] != -np.inf:
                    weight = exp(log_sums[part, token, head] - maximum)
                    total += weight
                    for d in range(head_dim):
                        out[token, head, d] += weight * partial[part, token, head, d]
            if total != 0:
                for d in range(head_dim):
                    out[token, head, d] /= total


@compiled
def exp(x: float) -> float:
    """``e^x`` for x <= 0, to half a unit in the last place of 1, by arithmetic that becomes vector instructions.

    ``e^x = 2^n e^r`` with n the integer nearest to ``x / ln 2``; e^r is the Taylor series, as far as it counts.
    """
    real = type(x)
    x = real(-700) if x < -700 else x  # there 2^n is still a normal float64
    n = np.floor(x * real(1 / math.log(2)) + real(0.5))
    r = x - n * real(math.log(2))
    terms = 7 if np.finfo(real).eps > 1e-10 else 13  # r is at most ln 2 / 2
    series = real(1)
    for term in range(terms, 0, -1):
        series = real(1) + series * r * real(1 / term)
    exponent_bits = (np.int64(np.int32(n)) + 1023) << 52
    return series * real(np.int64(exponent_bits).view(np.float64))
