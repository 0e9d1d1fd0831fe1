"""Writing a pass's keys and values into the paged cache, each token's to its slot (vLLM: ``reshape_and_cache``)."""

from numba import cuda

from kernels.checks import Floats, Ints, check_store
from kernels.cuda.warp import whole_warps

MOST_THREADS = 256


@cuda.jit
def reshape_and_cache_kernel(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
    """A block for each token; its threads copy neighbouring elements of all heads.

    Adds: tokens need not be neighbours in the cache. Costs: a head's row is contiguous, but the heads of a token lie
    ``block_size`` rows apart, so a block writes ``kv_heads`` runs of ``head_dim`` elements. Slower than one copy of a
    whole range where all tokens follow each other.
    """
    token = cuda.blockIdx.x
    block_size, head_dim = k_cache.shape[2], k_cache.shape[3]
    block, offset = slots[token] // block_size, slots[token] % block_size
    for i in range(cuda.threadIdx.x, k_cache.shape[1] * head_dim, cuda.blockDim.x):
        head, d = i // head_dim, i % head_dim
        k_cache[block, head, offset, d] = k[token, head, d]
        v_cache[block, head, offset, d] = v[token, head, d]


def reshape_and_cache(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
    """Store this pass's keys and values, each token's in its slot.

    k, v              ``[tokens, kv_heads, head_dim]``, with any strides
    k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float16 or float32
    slots             ``[tokens]`` int64: block * block_size + offset, each slot once

    TypeError or ValueError names an argument that does not fit; what slots hold is checked where the host can see it.
    """
    tokens, kv_heads, head_dim = check_store(k, v, k_cache, v_cache, slots)
    if tokens:
        threads = whole_warps(kv_heads * head_dim, MOST_THREADS)
        reshape_and_cache_kernel[tokens, threads](k, v, k_cache, v_cache, slots)
