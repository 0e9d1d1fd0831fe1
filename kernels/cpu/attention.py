"""Paged attention on the CPU: one call for prefill, chunked prefill over cached context and decode, in any mixture.

Keys and values are read where they lie, through the block table (PagedAttention: Kwon et al., SOSP 2023, section 4.1),
a tile at a time with an online softmax (FlashAttention-2: Dao 2023, section 3.1); a long context is cut into parts that
are attended to apart and then combined (Flash-Decoding: Dao et al. 2023).

What makes it fast: the query heads that share a key head are handled together, so that each key and value comes from
memory once; all key heads of a block are read one after the other, as they lie there, while the next rows are on their
way; three queries meet four keys, or four pieces of a value, in registers, so that what is loaded is used several
times; and no work item reads more than ``PART`` keys, so that one long sequence, or a batch of very unequal ones, still
occupies all threads.

A sequence's result is the same to the last bit in any batch, in any blocks and on any number of threads, because how
its work is cut depends on the sequence alone.
"""

import math
from typing import Any

import numpy as np
from numba import get_num_threads, prange

from kernels.checks import Floats, Ints, check_attention
from kernels.cpu.compiled import compiled, compiled_inline, compiled_parallel
from kernels.cpu.prefetch import prefetch_row
from kernels.cpu.vectors import LANES, broadcast, larger, largest_lane, load, multiply_add, store, store_sums

TILE = 64
"""Keys whose scores are computed before their exponentials are."""
RUN = 16
"""Keys of one head that are read before those of the next."""
TRIO = 3
"""Query vectors that share a loaded key or value."""
PIECE = 4 * LANES
"""Columns of a value that share a loaded weight."""
PART = 512
"""Keys of each head that one work item reads at most; a multiple of TILE."""
QUERY_VECTORS = 48
"""Query vectors (rows x heads of one group) that a work item holds for each key head, if one row has no more."""

WORK_ITEM = np.dtype([(name, np.int64) for name in ("worker", "sequence", "token", "rows", "part")])
"""What ``worker`` does: rows ``[token, token + rows)`` of the batch, for all heads, over one part of their keys."""


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
    work = plan(context_lens, query_start, max(1, QUERY_VECTORS * kv_heads // heads), workers)
    parts = work["part"].max(initial=0) + 1
    partial = np.empty((parts, tokens, heads, head_dim), q.dtype)
    log_sums = np.full((parts, tokens, heads), -np.inf, q.dtype)
    scale = q.dtype.type(scale)
    attend_all(work, workers, q, k_cache, v_cache, block_tables, context_lens, query_start, scale, partial, log_sums)
    combine(partial, log_sums, out)


def check_pages(block_tables: Ints, context_lens: Ints, query_start: Ints, tokens: int, k_cache: Floats) -> None:
    """Raise ValueError for rows outside of the batch and blocks outside of the cache: they would be read as memory."""
    num_blocks, _, block_size, _ = k_cache.shape
    if tokens and not len(context_lens):
        raise ValueError(f"{tokens} rows belong to no sequence; give query_start and context_lens for them")
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
def plan(context_lens: Ints, query_start: Ints, max_rows: int, workers: int) -> Any:
    """Work items ``[items]`` of at most ``max_rows`` rows, each given to the worker that has least to do so far.

    What there is to do is counted in rows x keys.
    """
    work = np.empty(count_items(context_lens, query_start, max_rows), WORK_ITEM)
    loads = np.zeros(workers, np.int64)
    count = 0
    for sequence in range(len(context_lens)):
        end = query_start[sequence + 1]
        for token in range(query_start[sequence], end, max_rows):
            rows = min(max_rows, end - token)
            keys = context_lens[sequence] - (end - token) + rows
            for start in range(0, keys, PART):
                item = work[count]
                item.worker = np.argmin(loads)
                item.sequence, item.token, item.rows, item.part = sequence, token, rows, start // PART
                loads[item.worker] += rows * min(PART, keys - start)
                count += 1
    return work[:count]


@compiled
def count_items(context_lens: Ints, query_start: Ints, max_rows: int) -> int:
    """No fewer than the work items of a batch."""
    count = 0
    for sequence in range(len(context_lens)):
        rows = query_start[sequence + 1] - query_start[sequence]
        parts = (context_lens[sequence] + PART - 1) // PART
        count += parts * ((rows + max_rows - 1) // max_rows)
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
    position = context_lens[item.sequence] - (query_start[item.sequence + 1] - item.token)  # of the item's first row
    begin = item.part * PART
    end = min(begin + PART, position + item.rows)
    places = locate(block_tables[item.sequence], begin, end, kv_heads, block_size)
    keys, values = k_cache.reshape(-1, head_dim), v_cache.reshape(-1, head_dim)
    heads, group = q.shape[1], q.shape[1] // kv_heads
    queries = scaled_queries(q, item.token, item.rows, kv_heads, scale)
    vectors = len(queries)
    of_a_head = vectors // kv_heads
    scores = np.zeros((vectors, TILE), q.dtype)
    visible = np.zeros(vectors, np.int64)
    maximum, new_maximum = np.full(vectors, -np.inf, q.dtype), np.full(vectors, -np.inf, q.dtype)
    total = np.zeros(vectors, q.dtype)
    summed = np.zeros((vectors, head_dim), q.dtype)
    for start in range(begin, end, TILE):
        stop = min(start + TILE, end)
        for row in range(item.rows):
            for head in range(heads):
                i = vector_of(row, head, group, of_a_head)
                visible[i] = max(0, min(stop, position + row + 1) - start)
        tile = places[start - begin : stop - begin]
        score(queries, keys, tile, kv_heads, block_size, visible, scores)
        raise_maximum(scores, visible, new_maximum)
        rescale(scores, visible, new_maximum, maximum, total, summed)
        accumulate(scores, values, tile, kv_heads, block_size, visible, summed)
    for row in range(item.rows):
        for head in range(heads):
            i = vector_of(row, head, group, of_a_head)
            log_sums[item.part, item.token + row, head] = maximum[i] + math.log(total[i])  # -inf where it saw nothing
            for d in range(head_dim):
                partial[item.part, item.token + row, head, d] = summed[i, d] / total[i]


@compiled
def locate(block_table: Ints, begin: int, end: int, kv_heads: int, block_size: int) -> Ints:
    """Where positions ``[begin, end)`` of the first head lie: rows of the cache seen as ``[rows, head_dim]``.

    Those of each next head lie ``block_size`` rows further on.
    """
    places = np.empty(end - begin, np.int64)
    for block in range(begin // block_size, (end + block_size - 1) // block_size):
        first_position = block * block_size
        first_row = block_table[block] * kv_heads * block_size
        for position in range(max(begin, first_position), min(end, first_position + block_size)):
            places[position - begin] = first_row + position - first_position
    return places


@compiled
def scaled_queries(q: Floats, token: int, rows: int, kv_heads: int, scale: float) -> Floats:
    """Query vectors ``[vectors, head_dim]`` of ``rows`` rows, times the softmax scale, in the order of ``vector_of``.

    Each key head has a multiple of ``TRIO``; what is too many are zeros.
    """
    heads, head_dim = q.shape[1:]
    group = heads // kv_heads
    of_a_head = (rows * group + TRIO - 1) // TRIO * TRIO
    queries = np.zeros((kv_heads * of_a_head, head_dim), q.dtype)
    for row in range(rows):
        for head in range(heads):
            i = vector_of(row, head, group, of_a_head)
            for d in range(head_dim):
                queries[i, d] = q[token + row, head, d] * scale
    return queries


@compiled_inline
def vector_of(row: int, head: int, group: int, of_a_head: int) -> int:
    """A query's place among the vectors: those that share a key head stand together, row after row."""
    return head // group * of_a_head + row * group + head % group


@compiled
def score(
    queries: Floats, keys: Floats, tile: Ints, kv_heads: int, block_size: int, visible: Ints, scores: Floats
) -> None:
    """``scores[i, j] = queries[i] . keys[tile[j]]`` for the ``visible[i]`` keys that vector i may read.

    queries ``[vectors, head_dim]``, as many for each key head; keys ``[rows, head_dim]``; tile as ``locate`` has it;
    scores ``[vectors, TILE]``, in which some beyond ``visible[i]`` are written too.
    """
    of_a_head, in_registers = len(queries) // kv_heads, queries.shape[1] % LANES == 0
    for start in range(0, len(tile), RUN):
        stop = min(start + RUN, len(tile))
        whole = stop // 4 * 4 if in_registers else start
        for kv_head in range(kv_heads):
            first, offset = kv_head * of_a_head, kv_head * block_size
            soon, soon_offset = next_run(start, kv_head, kv_heads, block_size)
            for j in range(start, whole, 4):
                for ahead in range(soon + j - start, min(soon + j - start + 4, len(tile))):
                    prefetch_row(keys, tile[ahead] + soon_offset)
                for i in range(first, first + of_a_head, TRIO):
                    if j < max(visible[i], visible[i + 1], visible[i + 2]):
                        score_trio(queries, i, keys, tile, j, offset, scores)
            for i in range(first, first + of_a_head):
                for j in range(whole, min(stop, visible[i])):
                    row = tile[j] + offset
                    dot = queries.dtype.type(0)
                    for d in range(queries.shape[1]):
                        dot += queries[i, d] * keys[row, d]
                    scores[i, j] = dot


@compiled_inline
def next_run(start: int, kv_head: int, kv_heads: int, block_size: int) -> tuple[int, int]:
    """Where the run begins that is read after this one, in the tile, and how far its head's rows lie from the first."""
    return (start, (kv_head + 1) * block_size) if kv_head + 1 < kv_heads else (start + RUN, 0)


@compiled_inline
def score_trio(queries: Floats, i: int, keys: Floats, tile: Ints, j: int, offset: int, scores: Floats) -> None:
    """Scores of queries i, i + 1, i + 2, here a, b, c, and keys j to j + 3 of a tile: twelve sums in registers."""
    zero = broadcast(queries.dtype.type(0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    c0, c1, c2, c3 = zero, zero, zero, zero
    row0, row1, row2, row3 = tile[j] + offset, tile[j + 1] + offset, tile[j + 2] + offset, tile[j + 3] + offset
    for d in range(0, queries.shape[1], LANES):
        a, b, c = load(queries, i, d), load(queries, i + 1, d), load(queries, i + 2, d)
        key = load(keys, row0, d)
        a0, b0, c0 = multiply_add(a, key, a0), multiply_add(b, key, b0), multiply_add(c, key, c0)
        key = load(keys, row1, d)
        a1, b1, c1 = multiply_add(a, key, a1), multiply_add(b, key, b1), multiply_add(c, key, c1)
        key = load(keys, row2, d)
        a2, b2, c2 = multiply_add(a, key, a2), multiply_add(b, key, b2), multiply_add(c, key, c2)
        key = load(keys, row3, d)
        a3, b3, c3 = multiply_add(a, key, a3), multiply_add(b, key, b3), multiply_add(c, key, c3)
    store_sums(scores, i, j, a0, a1, a2, a3)
    store_sums(scores, i + 1, j, b0, b1, b2, b3)
    store_sums(scores, i + 2, j, c0, c1, c2, c3)


@compiled
def raise_maximum(scores: Floats, visible: Ints, maximum: Floats) -> None:
    """Raise ``maximum[i]`` to the largest of the ``visible[i]`` scores of vector i."""
    for i in range(len(scores)):
        whole = visible[i] // LANES * LANES
        if whole > 0:
            best = load(scores, i, 0)
            for j in range(LANES, whole, LANES):
                best = larger(best, load(scores, i, j))
            maximum[i] = max(maximum[i], largest_lane(best))
        for j in range(whole, visible[i]):
            maximum[i] = max(maximum[i], scores[i, j])


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
    weights: Floats, values: Floats, tile: Ints, kv_heads: int, block_size: int, visible: Ints, summed: Floats
) -> None:
    """``summed[i] += weights[i, j] * values[tile[j]]`` for the ``visible[i]`` values that vector i may read.

    Shapes as in ``score``.
    """
    of_a_head, head_dim = len(weights) // kv_heads, summed.shape[1]
    columns = head_dim // PIECE * PIECE
    for start in range(0, len(tile), RUN):
        stop = min(start + RUN, len(tile))
        for kv_head in range(kv_heads):
            first, offset = kv_head * of_a_head, kv_head * block_size
            soon, soon_offset = next_run(start, kv_head, kv_heads, block_size)
            for d in range(0, columns, PIECE):
                for i in range(first, first + of_a_head, TRIO):
                    ahead = soon if d == 0 and i == first else len(tile)  # a row is asked for once
                    seen = min(stop, visible[i])
                    accumulate_trio(weights, i, values, tile, start, seen, offset, d, summed, ahead, soon_offset)
            for i in range(first, first + of_a_head):
                together = visible[first + (i - first) // TRIO * TRIO]
                for j in range(max(start, together) if columns == head_dim else start, min(stop, visible[i])):
                    row = tile[j] + offset
                    for d in range(columns if j < together else 0, head_dim):
                        summed[i, d] += weights[i, j] * values[row, d]


@compiled_inline
def accumulate_trio(
    weights: Floats,
    i: int,
    values: Floats,
    tile: Ints,
    start: int,
    stop: int,
    offset: int,
    d: int,
    summed: Floats,
    ahead: int,
    ahead_offset: int,
) -> None:
    """Add a ``PIECE`` from column d of values ``[start, stop)`` of a tile to the sums of vectors i, i + 1, i + 2.

    The twelve sums stay in registers. Rows of the tile from ``ahead`` on are prefetched meanwhile.
    """
    a0, a1, a2, a3 = load_piece(summed, i, d)
    b0, b1, b2, b3 = load_piece(summed, i + 1, d)
    c0, c1, c2, c3 = load_piece(summed, i + 2, d)
    for j in range(start, stop):
        if ahead < len(tile):
            prefetch_row(values, tile[ahead] + ahead_offset)
            ahead += 1
        v0, v1, v2, v3 = load_piece(values, tile[j] + offset, d)
        a, b, c = broadcast(weights[i, j]), broadcast(weights[i + 1, j]), broadcast(weights[i + 2, j])
        a0, b0, c0 = multiply_add(a, v0, a0), multiply_add(b, v0, b0), multiply_add(c, v0, c0)
        a1, b1, c1 = multiply_add(a, v1, a1), multiply_add(b, v1, b1), multiply_add(c, v1, c1)
        a2, b2, c2 = multiply_add(a, v2, a2), multiply_add(b, v2, b2), multiply_add(c, v2, c2)
        a3, b3, c3 = multiply_add(a, v3, a3), multiply_add(b, v3, b3), multiply_add(c, v3, c3)
    store_piece(summed, i, d, a0, a1, a2, a3)
    store_piece(summed, i + 1, d, b0, b1, b2, b3)
    store_piece(summed, i + 2, d, c0, c1, c2, c3)


@compiled_inline
def load_piece(array: Floats, row: int, d: int) -> Any:
    """Four vectors: ``array[row, d : d + PIECE]``."""
    return (
        load(array, row, d),
        load(array, row, d + LANES),
        load(array, row, d + 2 * LANES),
        load(array, row, d + 3 * LANES),
    )


@compiled_inline
def store_piece(array: Floats, row: int, d: int, v0: Any, v1: Any, v2: Any, v3: Any) -> None:
    """Write four vectors to ``array[row, d : d + PIECE]``."""
    store(array, row, d, v0)
    store(array, row, d + LANES, v1)
    store(array, row, d + 2 * LANES, v2)
    store(array, row, d + 3 * LANES, v3)


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


@compiled_inline
def exp(x: float) -> float:
    """``e^x`` for x <= 0, to half a unit in the last place of 1, by arithmetic that becomes vector instructions.

    ``e^x = 2^n e^r`` with n the integer nearest to ``x / ln 2``; e^r is the Taylor series, as far as it counts.
    """
    real = type(x)
    lowest, terms = (-87, 7) if np.finfo(real).eps > 1e-10 else (-700, 13)
    x = real(lowest) if x < lowest else x  # there 2^n is still a normal number
    n = np.floor(x * real(1 / math.log(2)) + real(0.5))
    r = x - n * real(math.log(2))  # at most ln 2 / 2
    series = real(1)
    for term in range(terms, 0, -1):
        series = real(1) + series * r * real(1 / term)
    return series * power_of_two(n)


@compiled_inline
def power_of_two(n: float) -> float:
    """``2^n`` for an integer n whose power is a normal number: n is put where such a number keeps its exponent."""
    real = type(n)
    if np.finfo(real).eps > 1e-10:
        return real(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32))
    return real(np.int64((np.int64(np.int32(n)) + 1023) << 52).view(np.float64))
