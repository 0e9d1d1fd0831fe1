"""Attention of one new token of each sequence over its pages (PagedAttention: Kwon et al. 2023, section 4.1).

Adds, against FlashAttention over contiguous keys: keys are read through the block table, where they lie. Costs: a table
entry is read for each key, and a block's end breaks a run of contiguous reading. Slower than a kernel over contiguous
keys by those reads; and much slower than ``paged_flash_decoding`` for few sequences with long contexts, since a
sequence and head has one block only, and where query heads share key heads, since each reads the keys for itself.
"""

from numba import cuda, float32

from kernels.checks import Floats, Ints, check_decode
from kernels.cuda.online import DIMS_PER_LANE, THREADS, WARPS, begin, finish, look_at
from kernels.cuda.warp import WARP


@cuda.jit
def paged_decode_attention_kernel(
    q: Floats, k_cache: Floats, v_cache: Floats, block_tables: Ints, context_lens: Ints, scale: float, out: Floats
) -> None:
    """A block for each sequence, blockIdx.x, and query head, blockIdx.y; warp w looks at keys w, w + 4, w + 8, ..."""
    query, summed = cuda.local.array(DIMS_PER_LANE, float32), cuda.local.array(DIMS_PER_LANE, float32)
    state = cuda.local.array(2, float32)
    sequence, head, warp = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x // WARP
    kv_head, block_size = head // (q.shape[1] // k_cache.shape[1]), k_cache.shape[2]
    begin(query, state, summed, q[sequence, head], scale)
    for position in range(warp, context_lens[sequence], WARPS):
        block, offset = block_tables[sequence, position // block_size], position % block_size
        look_at(k_cache[block, kv_head, offset], v_cache[block, kv_head, offset], query, state, summed)
    finish(state, summed, out[sequence, head])


def paged_decode_attention(
    q: Floats, k_cache: Floats, v_cache: Floats, block_tables: Ints, context_lens: Ints, scale: float, out: Floats
) -> None:
    """Write ``softmax(q k^T * scale) v`` to ``out``, one row for each sequence, over all of its cached tokens.

    q, out            ``[sequences, heads, head_dim]``, in the cache's dtype; head_dim up to 256
    k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float16 or float32
    block_tables      ``[sequences, max_blocks]`` int64: entries beyond a sequence's need are not read
    context_lens      ``[sequences]`` int64: cached tokens of each sequence; zeros are written where there are none

    Sums are in float32. TypeError or ValueError names an argument that does not fit.
    """
    sequences, heads = check_decode(q, k_cache, v_cache, block_tables, context_lens, out)
    if sequences:
        kernel = paged_decode_attention_kernel[(sequences, heads), THREADS]
        kernel(q, k_cache, v_cache, block_tables, context_lens, float32(scale), out)
