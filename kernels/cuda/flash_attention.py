"""FlashAttention: attention of one sequence by tiles, without a matrix of scores in memory (Dao et al. 2022).

Written as FlashAttention-2's forward pass (Dao 2023, algorithm 1): a block keeps one tile of queries, walks over the
tiles of keys and values, and divides by the sums of exponentials at the end.

Adds, against a product, a softmax and a product: ``rows x context`` scores never reach memory. Costs: an exponential
for each tile and row to bring earlier sums to the new maximum, and every tile of keys is read once for each tile of
queries. Slower than the three kernels for short contexts, whose scores the caches hold; and for a single row, which
leaves all but one row of the block idle (``paged_decode_attention`` is for that). It is far from what the library
``flash-attn`` does: that uses tensor cores, which numba does not reach, and keeps in registers what here is read from
shared memory anew, two words for each multiplication.
"""

import math

from numba import cuda, float32

from kernels.checks import MAX_HEAD_DIM, Floats, check_flash_attention
from kernels.cuda.warp import MINUS_INFINITY, ZERO, larger, smaller, warp_max, warp_sum

TILE = 16
"""Queries of a block, keys of a tile, and threads along both: the 16 threads of a row are half a warp."""
DIMS_PER_THREAD = MAX_HEAD_DIM // TILE
PADDED_DIM = MAX_HEAD_DIM + 1
"""Rows of a tile in shared memory begin in different banks, so that 16 lanes read 16 rows in one turn."""


@cuda.jit(device=True)
def row_max(value: float) -> float:
    """The largest value among the 16 threads of a row, in each of them; all lanes of a warp must come together."""
    return warp_max(value, TILE)


@cuda.jit(device=True)
def row_sum(value: float) -> float:
    """The sum over the 16 threads of a row, in each of them; all lanes of a warp must come together."""
    return warp_sum(value, TILE)


@cuda.jit(device=True)
def load_tile(tile: Floats, source: Floats, start: int, end: int, head: int) -> None:
    """Fill a tile ``[TILE, head_dim]`` with rows ``[start, end)`` of source ``[rows, heads, head_dim]``, else zeros.

    All threads of the block come here, and each writes cells that others read: it has no barrier of its own.
    """
    x, y = cuda.threadIdx.x & (TILE - 1), cuda.threadIdx.y
    for d in range(x, source.shape[2], TILE):
        tile[y, d] = float32(source[start + y, head, d]) if start + y < end else ZERO


@cuda.jit
def flash_attention_kernel(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
    """A block for each tile of queries, blockIdx.x, and each query head, blockIdx.y.

    Thread (x, y) stands for key x of a tile and query y, and then for dims x, x + 16, ... of that query. The maximum so
    far, the sum and the correction are the same in all threads of a row; weights change hands in shared memory.
    """
    queries = cuda.shared.array((TILE, PADDED_DIM), float32)
    tile = cuda.shared.array((TILE, PADDED_DIM), float32)
    weights = cuda.shared.array((TILE, TILE), float32)
    summed = cuda.local.array(DIMS_PER_THREAD, float32)
    rows, heads, head_dim = q.shape
    x, y = cuda.threadIdx.x & (TILE - 1), cuda.threadIdx.y  # by & the compiler sees that x is small: see lane_id
    context, head = k.shape[0], cuda.blockIdx.y
    kv_head = head // (heads // k.shape[1])
    first = cuda.blockIdx.x * TILE
    position = context - rows + first + y  # the last key that row y looks at, by the mask aligned to the bottom right
    end = smaller(context, context - rows + first + TILE)  # the keys that the tile's last row looks at
    load_tile(queries, q, first, rows, head)
    for i in range(DIMS_PER_THREAD):
        summed[i] = ZERO
    maximum, total = MINUS_INFINITY, ZERO
    for start in range(0, end, TILE):
        load_tile(tile, k, start, end, kv_head)
        cuda.syncthreads()
        score = MINUS_INFINITY
        if start + x <= position and start + x < end:
            score = ZERO
            for d in range(head_dim):
                score += queries[y, d] * tile[x, d]
            score *= scale
        new_maximum = larger(maximum, row_max(score))
        correction = math.exp(maximum - new_maximum) if maximum != MINUS_INFINITY else ZERO
        weight = math.exp(score - new_maximum) if score != MINUS_INFINITY else ZERO
        maximum, total = new_maximum, total * correction + row_sum(weight)
        weights[y, x] = weight
        cuda.syncthreads()  # all weights are there, and nobody reads keys any more
        load_tile(tile, v, start, end, kv_head)
        cuda.syncthreads()
        visible = smaller(smaller(TILE, end - start), position - start + 1)
        for i in range(DIMS_PER_THREAD):
            if x + i * TILE < head_dim:
                summed[i] *= correction
                for key in range(visible):
                    summed[i] += weights[y, key] * tile[key, x + i * TILE]
        cuda.syncthreads()  # nobody reads values or weights any more
    if first + y < rows:
        for i in range(DIMS_PER_THREAD):
            if x + i * TILE < head_dim:
                out[first + y, head, x + i * TILE] = summed[i] / total if total != ZERO else ZERO
        if x == 0:
            log_sums[first + y, head] = maximum + math.log(total) if total != ZERO else MINUS_INFINITY


def flash_attention(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
    """``softmax(q k^T * scale) v`` of the last ``rows`` tokens of a sequence, each over the keys up to its own.

    q, out    ``[rows, heads, head_dim]``, float16 or float32; head_dim up to 256
    k, v      ``[context, kv_heads, head_dim]``; heads are a multiple of kv_heads
    log_sums  ``[rows, heads]`` float32: receives the logarithm of each row's sum of exponentials

    A row before the first key gives zeros and -inf. TypeError or ValueError names an argument that does not fit.
    """
    rows, heads = check_flash_attention(q, k, v, out, log_sums)
    if rows:
        grid = ((rows + TILE - 1) // TILE, heads)
        flash_attention_kernel[grid, (TILE, TILE)](q, k, v, float32(scale), out, log_sums)
