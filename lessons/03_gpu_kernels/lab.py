"""Lesson 3, GPU kernels on your laptop: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-3              all tasks; T=2 for one of them
    make hint L=3 T=2       the next hint for a task
    make peek L=3 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 3 --task 2`, `minillm lab hint 3 2` and `minillm lab peek 3 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

import math

from numba import cuda, float32

from kernels.checks import Floats
from kernels.cuda.flash_attention import DIMS_PER_THREAD, PADDED_DIM, TILE, load_tile, row_max, row_sum
from kernels.cuda.matmul import SIDE
from kernels.cuda.paged_flash_decoding import COMBINE_THREADS
from kernels.cuda.reduction import THREADS, WARPS
from kernels.cuda.warp import ALL_LANES, MINUS_INFINITY, WARP, ZERO, larger, smaller

# Given in kernels/cuda/reduction.py:
#
# THREADS = 128
#
# def sum_rows_shared(x: Floats, out: Floats) -> None:
#     """Sums of rows. x ``[rows, columns]``, out ``[rows]``, float16 or float32. TypeError or ValueError if not."""
#     rows = check_rows(x, out)
#     if rows:
#         sum_rows_shared_kernel[rows, THREADS](x, out)


# Task 1: 15 points, about 10 minutes, section 3.4 Reduction: threads that need each other
@cuda.jit
def sum_rows_shared_kernel(x: Floats, out: Floats) -> None:
    """A tree in shared memory: in each turn half as many threads add a partner's sum to their own.

    Costs: a barrier in each of log2(THREADS) turns, in the last six of which one warp works alone.
    """
    raise NotImplementedError("lesson 3, task 1: sum each row by one block: strided reads, then a tree")


# Given in kernels/cuda/matmul.py:
#
# SIDE = 16
#
# def matmul_tiled(a: Floats, b: Floats, out: Floats) -> None:
#     """``out = a b`` through tiles. a ``[m, k]``, b ``[k, n]``, out ``[m, n]``, float16 or float32.
#
#     TypeError or ValueError if not.
#     """
#     m, n = check_product(a, b, out)
#     if m and n:
#         matmul_tiled_kernel[grid_for(m, n), (SIDE, SIDE)](a, b, out)
#
# def grid_for(m: int, n: int) -> tuple[int, int]:
#     """Blocks along columns and rows that cover ``[m, n]``. x runs along columns, whose neighbours are adjacent."""


# Task 2: 20 points, about 15 minutes, section 3.5 Tiles: read once, use often
@cuda.jit
def matmul_tiled_kernel(a: Floats, b: Floats, out: Floats) -> None:
    """The block's threads read a tile of a and of b together, then each uses ``SIDE`` elements of both.

    Adds: memory is read a ``SIDE``-th as often. Costs: shared memory, and two barriers for each tile: one before it is
    used, so that it is whole, and one after, so that no thread fills in the next while another still reads. Slower than
    the naive kernel for products narrower than a tile, whose cells beyond the edge are computed for nothing, and, where
    the first cache holds what a block reads, by no more than its barriers.
    """
    raise NotImplementedError("lesson 3, task 2: multiply matrices by tiles that a block loads together")


# Given in kernels/cuda/warp.py:
#
# @cuda.jit(device=True)
# def larger(a: float, b: float) -> float:
#     """``max(a, b)``."""

# Given in kernels/cuda/softmax.py:
#
# def softmax_online(x: Floats, out: Floats) -> None:
#     """Softmax along rows, in one pass less. x, out ``[rows, columns]``, float16 or float32.
#
#     TypeError or ValueError if not.
#     """
#     rows, columns = check_same(2, x=x, out=out)
#     if rows and columns:
#         softmax_online_kernel[rows, THREADS](x, out)


# Task 3: 25 points, about 20 minutes, section 3.6 The online softmax, for 2 functions together. The first:
@cuda.jit(device=True)
def rescaled(total: float, maximum: float, new_maximum: float) -> float:
    """A sum of exponentials that were relative to ``maximum``, relative to ``new_maximum`` instead."""
    raise NotImplementedError("lesson 3, task 3: the online softmax: one pass for the maximum and the sum")


# Task 3, function 2 of 2
@cuda.jit
def softmax_online_kernel(x: Floats, out: Floats) -> None:
    """One pass keeps the maximum so far and the sum relative to it (Milakov and Gimelshein 2018, algorithm 3).

    Where the maximum grows, the sum is multiplied by ``exp(old - new)``. Sums of two parts of a row are merged by the
    same rule, which makes FlashAttention and Flash-Decoding possible.

    Adds: a row is read twice instead of three times. Costs: two exponentials for each element of the first pass
    instead of one. Slower than two passes where the row stays in the first cache, so that only arithmetic counts.
    """
    raise NotImplementedError("lesson 3, task 3: the online softmax: one pass for the maximum and the sum")


# Given in kernels/cuda/flash_attention.py:
#
# TILE = 16
#
# DIMS_PER_THREAD = MAX_HEAD_DIM // TILE
#
# PADDED_DIM = MAX_HEAD_DIM + 1
#
# @cuda.jit(device=True)
# def load_tile(tile: Floats, source: Floats, start: int, end: int, head: int) -> None:
#     """Fill a tile ``[TILE, head_dim]`` with rows ``[start, end)`` of source ``[rows, heads, head_dim]``, else zeros.
#
#     All threads of the block come here, and each writes cells that others read: it has no barrier of its own.
#     """
#
# @cuda.jit(device=True)
# def row_max(value: float) -> float:
#     """The largest value among the 16 threads of a row, in each of them; all lanes of a warp must come together."""
#
# @cuda.jit(device=True)
# def row_sum(value: float) -> float:
#     """The sum over the 16 threads of a row, in each of them; all lanes of a warp must come together."""
#
# def flash_attention(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
#     """``softmax(q k^T * scale) v`` of the last ``rows`` tokens of a sequence, each over the keys up to its own.
#
#     q, out    ``[rows, heads, head_dim]``, float16 or float32; head_dim up to 256
#     k, v      ``[context, kv_heads, head_dim]``; heads are a multiple of kv_heads
#     log_sums  ``[rows, heads]`` float32: receives the logarithm of each row's sum of exponentials
#
#     A row before the first key gives zeros and -inf. TypeError or ValueError names an argument that does not fit.
#     """
#     rows, heads = check_flash_attention(q, k, v, out, log_sums)
#     if rows:
#         grid = ((rows + TILE - 1) // TILE, heads)
#         flash_attention_kernel[grid, (TILE, TILE)](q, k, v, float32(scale), out, log_sums)

# Given in kernels/cuda/warp.py:
#
# @cuda.jit(device=True)
# def smaller(a: float, b: float) -> float:
#     """``min(a, b)``."""


# Task 4: 30 points, about 25 minutes, section 3.7 FlashAttention
@cuda.jit
def flash_attention_kernel(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
    """A block for each tile of queries, blockIdx.x, and each query head, blockIdx.y.

    Thread (x, y) stands for key x of a tile and query y, and then for dims x, x + 16, ... of that query. The maximum so
    far, the sum and the correction are the same in all threads of a row; weights change hands in shared memory.
    """
    raise NotImplementedError("lesson 3, task 4: FlashAttention: tiles of keys and values, and an online softmax")


# Given in kernels/cuda/paged_flash_decoding.py:
#
# COMBINE_THREADS = 64
#
# def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
#     """The second kernel of ``paged_flash_decoding`` alone, in which a block has a sequence's head.
#
#     partial   ``[parts, sequences, heads, head_dim]`` float32: the attention to each part of the keys alone
#     log_sums  ``[parts, sequences, heads]`` float32: the logarithm of each part's sum of exponentials; where it is
#               -inf, the part saw no key and nobody wrote its row of partial
#     out       ``[sequences, heads, head_dim]``, float16 or float32
#     """
#     combine_kernel[log_sums.shape[1:], COMBINE_THREADS](partial, log_sums, out)


# Task 5: 10 points, about 10 minutes, section 3.8 Flash-Decoding: split and combine
@cuda.jit
def combine_kernel(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts of each row, weighted by their sums of exponentials; a row that no part saw becomes zero."""
    raise NotImplementedError("lesson 3, task 5: combine the parts of Flash-Decoding by their log sums")
