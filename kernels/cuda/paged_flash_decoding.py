"""Decode attention with each context cut into parts that blocks attend to apart (Flash-Decoding: Dao et al. 2023).

Adds, against ``paged_decode_attention``: a long context occupies many blocks, even of a single sequence; and the query
heads that share a key head are warps of one block, so that keys and values are read from memory once. Costs: a second
kernel, whose threads walk over all parts of a row, one after the other; and an output and a log-sum for each part that
go through memory. Slower for many sequences with contexts below a part or so: there is nothing to cut, and the
combination is extra.
"""

import math

from numba import cuda, float32

from kernels.checks import Floats, Ints, check_decode, check_parts
from kernels.cuda.online import DIMS_PER_LANE
from kernels.cuda.tiles import TILE, attend, shared_bytes, write
from kernels.cuda.warp import MINUS_INFINITY, WARP, ZERO, lane_id, larger, smaller, whole_warps

PART = 256
"""Keys that a block attends to at most. What a part is depends on the sequence alone, not on its company."""
WARPS = 8
"""Query heads of a block at most; four warps at least, to have enough loads under way."""
COMBINE_THREADS = 64


@cuda.jit
def paged_flash_decoding_kernel(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    scale: float,
    partial: Floats,
    log_sums: Floats,
) -> None:
    """A block for each part, key head (and eight of its query heads) and sequence; a warp for each query head."""
    shared = cuda.shared.array(0, float32)
    weights = cuda.shared.array((WARPS, TILE), float32)
    summed = cuda.local.array(DIMS_PER_LANE, float32)
    part, kv_heads, sequence = cuda.blockIdx.x, k_cache.shape[1], cuda.blockIdx.z
    kv_head, group, warp = cuda.blockIdx.y % kv_heads, q.shape[1] // kv_heads, cuda.threadIdx.x // WARP
    member = cuda.blockIdx.y // kv_heads * WARPS + warp
    head = kv_head * group + smaller(member, group - 1)
    end = smaller((part + 1) * PART, context_lens[sequence])
    seen = end if member < group else 0  # a warp without a query helps to load, and writes nothing
    maximum, total = attend(
        q[sequence, head],
        scale,
        k_cache,
        v_cache,
        block_tables[sequence],
        kv_head,
        part * PART,
        end,
        seen,
        shared,
        weights[warp],
        summed,
    )
    if member < group:
        write(partial[part, sequence, head], summed, total)
        if lane_id() == 0:
            log_sums[part, sequence, head] = maximum + math.log(total) if total != ZERO else MINUS_INFINITY


@cuda.jit
def combine_kernel(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts of each row, weighted by their sums of exponentials; a row that no part saw becomes zero."""
    sequence, head = cuda.blockIdx.x, cuda.blockIdx.y
    maximum = MINUS_INFINITY
    for part in range(len(partial)):
        maximum = larger(maximum, log_sums[part, sequence, head])
    for d in range(cuda.threadIdx.x, out.shape[2], COMBINE_THREADS):
        total, weighted = ZERO, ZERO
        for part in range(len(partial)):
            if log_sums[part, sequence, head] != MINUS_INFINITY:
                weight = math.exp(log_sums[part, sequence, head] - maximum)
                total += weight
                weighted += weight * partial[part, sequence, head, d]
        out[sequence, head, d] = weighted / total if total != ZERO else ZERO


def paged_flash_decoding(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    scale: float,
    out: Floats,
    partial: Floats,
    log_sums: Floats,
) -> None:
    """The same as ``paged_decode_attention``, with room for the parts: ``parts_for(longest context)`` or more of them.

    partial   ``[parts, sequences, heads, head_dim]`` float32
    log_sums  ``[parts, sequences, heads]`` float32

    TypeError or ValueError names an argument that does not fit.
    """
    sequences, heads = check_decode(q, k_cache, v_cache, block_tables, context_lens, out)
    parts, kv_heads, head_dim = check_parts(partial, log_sums, q, k_cache, context_lens, PART)
    if sequences:
        group = heads // kv_heads
        threads = max(4 * WARP, whole_warps(group * WARP, WARPS * WARP))
        grid = (parts, kv_heads * ((group + WARPS - 1) // WARPS), sequences)
        kernel = paged_flash_decoding_kernel[grid, threads, 0, shared_bytes(head_dim, threads // WARP)]
        kernel(q, k_cache, v_cache, block_tables, context_lens, float32(scale), partial, log_sums)
        combine(partial, log_sums, out)


def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """The second kernel of ``paged_flash_decoding`` alone, in which a block has a sequence's head.

    partial   ``[parts, sequences, heads, head_dim]`` float32: the attention to each part of the keys alone
    log_sums  ``[parts, sequences, heads]`` float32: the logarithm of each part's sum of exponentials; where it is
              -inf, the part saw no key and nobody wrote its row of partial
    out       ``[sequences, heads, head_dim]``, float16 or float32
    """
    combine_kernel[log_sums.shape[1:], COMBINE_THREADS](partial, log_sums, out)


def parts_for(context: int) -> int:
    """Parts of a context of so many tokens; one at least."""
    return max(1, (context + PART - 1) // PART)
