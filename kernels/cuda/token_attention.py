"""Attention over a cache of single tokens, each sequence with a table of its tokens' slots (LightLLM: TokenAttention).

Adds, against pages: no slot is ever lost at a sequence's end, and sequences share any prefix, not whole blocks alone.
Costs: a table entry of eight bytes for each token, and a token's neighbours may lie anywhere. Slower than pages where
``head_dim`` is so short that a token's row is less than the 32 bytes which move at once; else by the table's reads.
"""

from numba import cuda, float32

from kernels.checks import Floats, Ints, check_tokens
from kernels.cuda.online import DIMS_PER_LANE, THREADS, WARPS, begin, finish, look_at
from kernels.cuda.warp import WARP


@cuda.jit
def token_attention_kernel(
    q: Floats, k_cache: Floats, v_cache: Floats, token_tables: Ints, context_lens: Ints, scale: float, out: Floats
) -> None:
    """As ``paged_decode_attention_kernel``, but the table names the slot itself: no division finds it."""
    query, summed = cuda.local.array(DIMS_PER_LANE, float32), cuda.local.array(DIMS_PER_LANE, float32)
    state = cuda.local.array(2, float32)
    sequence, head, warp = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x // WARP
    kv_head = head // (q.shape[1] // k_cache.shape[1])
    begin(query, state, summed, q[sequence, head], scale)
    for position in range(warp, context_lens[sequence], WARPS):
        slot = token_tables[sequence, position]
        look_at(k_cache[slot, kv_head], v_cache[slot, kv_head], query, state, summed)
    finish(state, summed, out[sequence, head])


def token_attention(
    q: Floats, k_cache: Floats, v_cache: Floats, token_tables: Ints, context_lens: Ints, scale: float, out: Floats
) -> None:
    """Write ``softmax(q k^T * scale) v`` to ``out``, one row for each sequence, over all of its cached tokens.

    q, out            ``[sequences, heads, head_dim]``, in the cache's dtype; head_dim up to 256
    k_cache, v_cache  ``[num_slots, kv_heads, head_dim]``, float16 or float32
    token_tables      ``[sequences, max_tokens]`` int64: the slot of each token, in order
    context_lens      ``[sequences]`` int64: cached tokens of each sequence

    TypeError or ValueError names an argument that does not fit.
    """
    sequences, heads = check_tokens(q, k_cache, v_cache, token_tables, context_lens, out)
    if sequences:
        kernel = token_attention_kernel[(sequences, heads), THREADS]
        kernel(q, k_cache, v_cache, token_tables, context_lens, float32(scale), out)
