"""Attention of a ragged batch over the paged cache: prompts, chunks of prompts over cached context, and single tokens.

Adds, against ``flash_attention``: many sequences of different lengths in one launch, keys and values read through the
block table, and the query heads that share a key head handled together: a block's eight vectors are rows x heads of
one group, one after the other, so that a group of any size fills them. Costs: keys and values are loaded once for
eight vectors, where ``flash_attention`` loads them for sixteen; and the grid has as many blocks as the longest sequence
needs, for all, of which those beyond a shorter one's end leave at once. Slower than ``paged_flash_decoding`` for single
tokens, where most vectors stay empty and a long context occupies one block alone.
"""

from numba import cuda, float32

from kernels.checks import Floats, Ints, check_prefill
from kernels.cuda.online import DIMS_PER_LANE
from kernels.cuda.tiles import TILE, attend, shared_bytes, write
from kernels.cuda.warp import WARP, smaller

VECTORS = 8
"""Query vectors of a block, a warp for each: 256 threads fit a multiprocessor whatever registers they take."""


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
    """A block for each eight vectors of a sequence and key head, a warp for each vector. Tiles as in Flash-Decoding."""
    shared = cuda.shared.array(0, float32)
    weights = cuda.shared.array((VECTORS, TILE), float32)
    summed = cuda.local.array(DIMS_PER_LANE, float32)
    sequence, kv_head, warp = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x // WARP
    group, first_token = q.shape[1] // k_cache.shape[1], query_start[sequence]
    rows = query_start[sequence + 1] - first_token
    first, vectors = cuda.blockIdx.x * VECTORS, rows * group
    if first >= vectors:
        return
    vector = smaller(first + warp, vectors - 1)  # a warp without a vector repeats the last one, and writes nothing
    row, head = vector // group, kv_head * group + vector % group
    last_row = (smaller(first + VECTORS, vectors) - 1) // group
    seen, end = context_lens[sequence] - rows + 1 + row, context_lens[sequence] - rows + 1 + last_row
    _, total = attend(
        q[first_token + row, head],
        scale,
        k_cache,
        v_cache,
        block_tables[sequence],
        kv_head,
        0,
        end,
        seen,
        shared,
        weights[warp],
        summed,
    )
    if first + warp < vectors:
        write(out[first_token + row, head], summed, total)


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
        q, k_cache, v_cache, block_tables, context_lens, query_start, out, max_rows
    )
    if tokens and max_rows:
        grid = ((max_rows * group + VECTORS - 1) // VECTORS, kv_heads, sequences)
        kernel = paged_prefill_attention_kernel[grid, VECTORS * WARP, 0, shared_bytes(head_dim, VECTORS)]
        kernel(q, k_cache, v_cache, block_tables, context_lens, query_start, float32(scale), out)
