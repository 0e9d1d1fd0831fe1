"""Copying whole blocks, within a cache for copy-on-write and between two for swapping (vLLM: the same names)."""

from numba import cuda

from kernels.checks import Floats, Ints, check_pairs
from kernels.cuda.warp import whole_warps

MOST_THREADS = 256


@cuda.jit
def swap_blocks_kernel(source_k: Floats, source_v: Floats, target_k: Floats, target_v: Floats, pairs: Ints) -> None:
    """A block of threads for each pair and head: within a head, ``block_size`` rows are one contiguous run.

    Adds: any number of blocks move in one launch. Slower than a plain copy for each pair where blocks are so large
    that one occupies the memory by itself.
    """
    source, target, head = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1], cuda.blockIdx.y
    head_dim = source_k.shape[3]
    for i in range(cuda.threadIdx.x, source_k.shape[2] * head_dim, cuda.blockDim.x):
        offset, d = i // head_dim, i % head_dim
        target_k[target, head, offset, d] = source_k[source, head, offset, d]
        target_v[target, head, offset, d] = source_v[source, head, offset, d]


def copy_blocks(k_cache: Floats, v_cache: Floats, pairs: Ints) -> None:
    """Copy whole blocks within a cache: copy-on-write. pairs ``[copies, 2]`` are (source, target) blocks.

    No block may be both source and target: copies run at once. Else as ``swap_blocks``.
    """
    swap_blocks(k_cache, v_cache, k_cache, v_cache, pairs)


def swap_blocks(source_k: Floats, source_v: Floats, target_k: Floats, target_v: Floats, pairs: Ints) -> None:
    """Copy whole blocks from one cache to another of the same block shape and dtype.

    Caches ``[num_blocks, kv_heads, block_size, head_dim]``; pairs ``[copies, 2]`` int64 are (source, target) blocks.
    TypeError or ValueError names an argument that does not fit; what pairs hold is checked where the host can see it.
    """
    copies, kv_heads, elements = check_pairs(source_k, source_v, target_k, target_v, pairs)
    if copies:
        threads = whole_warps(elements, MOST_THREADS)
        swap_blocks_kernel[(copies, kv_heads), threads](source_k, source_v, target_k, target_v, pairs)
