"""A block's online softmax over tiles of keys and values in shared memory: the device functions of the paged kernels.

Its warps have a query each, of the same key head, and share what they load.
"""

import math
from typing import Any

from numba import cuda, float32

from kernels.checks import Floats, Ints
from kernels.cuda.online import DIMS_PER_LANE
from kernels.cuda.warp import MINUS_INFINITY, WARP, ZERO, lane_id, larger, smaller, warp_max, warp_sum

TILE = WARP
"""Keys of a tile: one for each lane.

A tile's rows are ``head_dim + 1`` long, an odd number where head_dim is even, so that the 32 lanes, each reading its
key's element d, read from 32 different banks.
"""


@cuda.jit(device=True)
def load_tile(tile: Floats, cache: Floats, block_table: Ints, kv_head: int, start: int, keys: int) -> None:
    """Load positions ``[start, start + keys)`` of a sequence into the tile, by all warps, each a whole row at a time.

    cache ``[num_blocks, kv_heads, block_size, head_dim]``; block_table ``[max_blocks]``.
    """
    block_size, head_dim = cache.shape[2], cache.shape[3]
    lane = lane_id()
    for key in range(cuda.threadIdx.x // WARP, keys, cuda.blockDim.x // WARP):
        block, offset = block_table[(start + key) // block_size], (start + key) % block_size
        for d in range(lane, head_dim, WARP):
            tile[key * (head_dim + 1) + d] = float32(cache[block, kv_head, offset, d])


@cuda.jit(device=True)
def weigh(tile: Floats, query: Floats, head_dim: int, visible: int, maximum: float) -> Any:
    """A step of the online softmax: each lane scores one key of the tile for its warp's query ``[head_dim]``, scaled.

    Returns the lane's weight ``exp(score - new maximum)``, zero from the ``visible``-th key on; the new maximum; the
    factor that brings earlier sums to it; and the sum of the weights. All lanes must come here together.
    """
    lane = lane_id()
    score = MINUS_INFINITY
    if lane < visible:
        score = ZERO
        for d in range(head_dim):
            score += query[d] * tile[lane * (head_dim + 1) + d]
    new_maximum = larger(maximum, warp_max(score, WARP))
    correction = math.exp(maximum - new_maximum) if maximum != MINUS_INFINITY else ZERO
    weight = math.exp(score - new_maximum) if score != MINUS_INFINITY else ZERO
    return weight, new_maximum, correction, warp_sum(weight, WARP)


@cuda.jit(device=True)
def accumulate(summed: Floats, weights: Floats, tile: Floats, head_dim: int, visible: int) -> None:
    """``summed += weights[key] * tile[key]`` for the first ``visible`` keys; each lane has every 32nd element."""
    lane = lane_id()
    for key in range(visible):
        for i in range(DIMS_PER_LANE):
            if lane + i * WARP < head_dim:
                summed[i] += weights[key] * tile[key * (head_dim + 1) + lane + i * WARP]


@cuda.jit(device=True)
def attend(
    q: Floats,
    scale: float,
    k_cache: Floats,
    v_cache: Floats,
    block_table: Ints,
    kv_head: int,
    start: int,
    end: int,
    seen: int,
    shared: Floats,
    weights: Floats,
    summed: Floats,
) -> Any:
    """A block's walk over positions ``[start, end)``; a warp's query ``q [head_dim]`` looks at those before ``seen``.

    All warps load a tile of keys; each lane then has one key's score; all load the values; each lane then has some of
    the output's elements. Returns the largest score and the sum of exponentials relative to it; ``summed`` receives
    the values, weighted alike. The block has ``shared_bytes`` in shared, a warp ``weights [TILE]`` of its own. All
    threads of the block must come here together.
    """
    head_dim, lane = len(q), lane_id()
    query = shared[TILE * (head_dim + 1) + cuda.threadIdx.x // WARP * head_dim :]
    for d in range(lane, head_dim, WARP):
        query[d] = float32(q[d]) * scale
    for i in range(DIMS_PER_LANE):
        summed[i] = ZERO
    maximum, total = MINUS_INFINITY, ZERO
    for first in range(start, end, TILE):
        keys = smaller(TILE, end - first)
        visible = smaller(keys, seen - first)
        load_tile(shared, k_cache, block_table, kv_head, first, keys)
        cuda.syncthreads()
        weight, maximum, correction, tile_total = weigh(shared, query, head_dim, visible, maximum)
        total = total * correction + tile_total
        weights[lane] = weight
        cuda.syncthreads()  # nobody reads keys any more
        load_tile(shared, v_cache, block_table, kv_head, first, keys)
        cuda.syncthreads()
        for i in range(DIMS_PER_LANE):
            summed[i] *= correction
        accumulate(summed, weights, shared, head_dim, visible)
        cuda.syncthreads()  # nobody reads values any more
    return maximum, total


@cuda.jit(device=True)
def write(out: Floats, summed: Floats, total: float) -> None:
    """``out [head_dim] = summed / total``, zeros where there was nothing to sum."""
    lane = lane_id()
    for i in range(DIMS_PER_LANE):
        if lane + i * WARP < len(out):
            out[lane + i * WARP] = summed[i] / total if total != ZERO else ZERO


def shared_bytes(head_dim: int, queries: int) -> int:
    """Dynamic shared memory for a tile and so many queries: 40 KiB for eight of the longest, of a block's 48."""
    return 4 * (TILE * (head_dim + 1) + queries * head_dim)
