"""Attention of a ragged batch over the paged cache: prompts, chunks of prompts over cached context, and single tokens.

Adds, against ``flash_attention``: many sequences of different lengths in one launch, keys and values read through the
block table, and the query heads that share a key head handled together: a block's twelve vectors are rows x heads of
one group, one after the other, so that a group of any size fills them. Costs: the grid has as many tiles as the
longest sequence needs, for all; blocks beyond a shorter one's end leave at once. Slower than ``paged_flash_decoding``
for single tokens, where most vectors stay empty and a long context occupies one block alone.
"""

from numba import cuda, float32

from kernels.checks import Floats, Ints, check_prefill
from kernels.cuda.online import DIMS_PER_LANE
from kernels.cuda.tiles import TILE, accumulate, load_tile, shared_bytes, weigh, write
from kernels.cuda.warp import MINUS_INFINITY, WARP, ZERO, smaller

WARPS = 4
VECTORS_PER_WARP = 3
VECTORS = WARPS * VECTORS_PER_WARP
"""Query vectors of a block: as many as fit in 48 KiB of shared memory with a tile, at the longest head_dim."""


@cuda.jit
def paged_prefill_attention_kernel(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    scale: float,
    out: Floats,
) -> None:
    """A block for each twelve vectors of a sequence and key head; a warp keeps the sums of three of them."""
    shared = cuda.shared.array(0, float32)
    weights = cuda.shared.array((VECTORS, TILE), float32)
    summed = cuda.local.array((VECTORS_PER_WARP, DIMS_PER_LANE), float32)
    maximum, total = cuda.local.array(VECTORS_PER_WARP, float32), cuda.local.array(VECTORS_PER_WARP, float32)
    kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    first, kv_head, sequence = cuda.blockIdx.x * VECTORS, cuda.blockIdx.y, cuda.blockIdx.z
    lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
    group = q.shape[1] // kv_heads
    first_token, end_token = query_start[sequence], query_start[sequence + 1]
    vectors = (end_token - first_token) * group
    if first >= vectors:
        return
    tile, queries = shared[: TILE * (head_dim + 1)], shared[TILE * (head_dim + 1) :]
    first_position = context_lens[sequence] - (end_token - first_token)
    last_row = (smaller(first + VECTORS, vectors) - 1) // group
    end = first_position + last_row + 1
    for r in range(VECTORS_PER_WARP):
        vector = first + r * WARPS + warp
        for d in range(lane, head_dim if vector < vectors else 0, WARP):
            element = q[first_token + vector // group, kv_head * group + vector % group, d]
            queries[(r * WARPS + warp) * head_dim + d] = float32(element) * scale
        for i in range(DIMS_PER_LANE):
            summed[r, i] = ZERO
        maximum[r], total[r] = MINUS_INFINITY, ZERO
    for start in range(0, end, TILE):
        keys = smaller(TILE, end - start)
        load_tile(tile, k_cache, block_tables[sequence], kv_head, start, keys)
        cuda.syncthreads()
        for r in range(VECTORS_PER_WARP):
            vector = first + r * WARPS + warp
            visible = smaller(keys, first_position + vector // group + 1 - start) if vector < vectors else 0
            query = queries[(r * WARPS + warp) * head_dim :]
            weight, maximum[r], correction, tile_total = weigh(tile, query, head_dim, visible, maximum[r])
            total[r] = total[r] * correction + tile_total
            for i in range(DIMS_PER_LANE):
                summed[r, i] *= correction
            weights[r * WARPS + warp, lane] = weight
        cuda.syncthreads()  # nobody reads keys any more
        load_tile(tile, v_cache, block_tables[sequence], kv_head, start, keys)
        cuda.syncthreads()
        for r in range(VECTORS_PER_WARP):
            vector = first + r * WARPS + warp
            visible = smaller(keys, first_position + vector // group + 1 - start) if vector < vectors else 0
            accumulate(summed[r], weights[r * WARPS + warp], tile, head_dim, visible)
        cuda.syncthreads()  # nobody reads values any more
    for r in range(VECTORS_PER_WARP):
        vector = first + r * WARPS + warp
        if vector < vectors:
            write(out[first_token + vector // group, kv_head * group + vector % group], summed[r], total[r])


def paged_prefill_attention(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    scale: float,
    out: Floats,
    max_rows: int,
) -> None:
    """Write ``softmax(q k^T * scale) v`` to ``out``; each row looks back on the pages of its own sequence.

    q, out            ``[tokens, heads, head_dim]``, in the cache's dtype: rows of all sequences, one after another
    k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float16 or float32; head_dim up to 256
    block_tables      ``[sequences, max_blocks]`` int64: entries beyond a sequence's need are not read
    context_lens      ``[sequences]`` int64: cached tokens of each sequence, this pass's included
    query_start       ``[sequences + 1]`` int64: offsets of each sequence's rows in q and out
    max_rows          rows of the sequence that has most, by which the grid is chosen

    Row i of a sequence's n rows sits at position ``context_len - n + i`` and reads positions up to its own; a row
    before position 0 gives zeros. TypeError or ValueError names an argument that does not fit.
    """
    tokens, sequences, kv_heads, group, head_dim = check_prefill(
        q, k_cache, v_cache, block_tables, context_lens, query_start, out
    )
    if tokens and max_rows:
        grid = ((max_rows * group + VECTORS - 1) // VECTORS, kv_heads, sequences)
        kernel = paged_prefill_attention_kernel[grid, WARPS * WARP, 0, shared_bytes(head_dim, VECTORS)]
        kernel(q, k_cache, v_cache, block_tables, context_lens, query_start, float32(scale), out)
