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
# def sum_rows_shared(x: Floats, out: Floats) -> None:
#     """Sums of rows. x ``[rows, columns]``, out ``[rows]``, float16 or float32. TypeError or ValueError if not."""


# Task 1: 15 points, about 10 minutes, section 3.4 Reduction: threads that need each other
@cuda.jit
def sum_rows_shared_kernel(x: Floats, out: Floats) -> None:
    """A tree in shared memory: in each turn half as many threads add a partner's sum to their own.

    Costs: a barrier in each of log2(THREADS) turns, in the last five of which one warp works alone.
    """
    raise NotImplementedError(
        "lesson 3, task 1: sum each row by one block: strided reads, then a tree in shared memory"
    )


# Given in kernels/cuda/matmul.py:
#
# def matmul_naive(a: Floats, b: Floats, out: Floats) -> None:
#     """``out = a b``. a ``[m, k]``, b ``[k, n]``, out ``[m, n]``, float16 or float32. TypeError or ValueError if
#             not."""


# Task 2: 20 points, about 15 minutes, section 3.5 Tiles: read once, use often
@cuda.jit
def matmul_tiled_kernel(a: Floats, b: Floats, out: Floats) -> None:
    """The block's threads read a tile of a and of b together, then each uses ``SIDE`` elements of both.

    Adds: memory is read a ``SIDE``-th as often. Costs: shared memory, and two barriers for each tile: one before it is
    used, so that it is whole, and one after, so that no thread fills in the next while another still reads. Slower than
    the naive kernel for products narrower than a tile, whose cells beyond the edge are computed for nothing, and, where
    the first cache holds what a block reads, by no more than its barriers.
    """
    raise NotImplementedError("lesson 3, task 2: multiply matrices by tiles that the threads of a block load together")


# Given in kernels/cuda/warp.py:
#
# @cuda.jit(device=True)
# def larger(a: float, b: float) -> float:
#     """``max(a, b)``."""

# Given in kernels/cuda/softmax.py:
#
# def softmax_two_pass(x: Floats, out: Floats) -> None:
#     """Softmax along rows. x, out ``[rows, columns]``, float16 or float32. TypeError or ValueError if not."""


# Task 3: 25 points, about 20 minutes, section 3.6 The online softmax, for 2 functions together. The first:
@cuda.jit(device=True)
def rescaled(total: float, maximum: float, new_maximum: float) -> float:
    """A sum of exponentials that were relative to ``maximum``, relative to ``new_maximum`` instead."""
    raise NotImplementedError("lesson 3, task 3: the online softmax: one pass keeps a maximum and a sum relative to it")


# Task 3, function 2 of 2
@cuda.jit
def softmax_online_kernel(x: Floats, out: Floats) -> None:
    """One pass keeps the maximum so far and the sum relative to it (Milakov and Gimelshein 2018, algorithm 3).

    Where the maximum grows, the sum is multiplied by ``exp(old - new)``. Sums of two parts of a row are merged by the
    same rule, which makes FlashAttention and Flash-Decoding possible.

    Adds: a row is read twice instead of three times. Costs: two exponentials for each element of the first pass
    instead of one. Slower than two passes where the row stays in the first cache, so that only arithmetic counts.
    """
    raise NotImplementedError("lesson 3, task 3: the online softmax: one pass keeps a maximum and a sum relative to it")


# Given in kernels/cuda/flash_attention.py:
#
# @cuda.jit(device=True)
# def load_tile(tile: Floats, source: Floats, start: int, end: int, head: int) -> None:
#     """Fill a tile ``[TILE, head_dim]`` with rows ``[start, end)`` of source ``[rows, heads, head_dim]``, else
#             zeros."""
#
# @cuda.jit(device=True)
# def row_max(value: float) -> float:
#     """The largest value among the 16 threads of a row, in each of them."""
#
# @cuda.jit(device=True)
# def row_sum(value: float) -> float:
#     """The sum over the 16 threads of a row, in each of them."""
#
# def flash_attention(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
#     """``softmax(q k^T * scale) v`` of the last ``rows`` tokens of a sequence, each over the keys up to its own."""

# Given in kernels/cuda/warp.py:
#
# @cuda.jit(device=True)
# def smaller(a: float, b: float) -> float:
#     """``min(a, b)``."""


# Task 4: 30 points, about 25 minutes, section 3.7 FlashAttention
@cuda.jit
def flash_attention_kernel(q: Floats, k: Floats, v: Floats, scale: float, out: Floats, log_sums: Floats) -> None:
    """A block for each tile of queries and each head. Thread (x, y): key x of a tile, query y; then dims x, x + 16, ...

    The maximum so far, the sum and the correction are the same in all threads of a row.
    """
    raise NotImplementedError(
        "lesson 3, task 4: FlashAttention: walk over tiles of keys and values with an online softmax"
    )


# Given in kernels/cuda/paged_flash_decoding.py:
#
# def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
#     """The second kernel of ``paged_flash_decoding`` alone; out ``[sequences, heads, head_dim]``."""


# Task 5: 10 points, about 10 minutes, section 3.8 Flash-Decoding: split and combine
@cuda.jit
def combine_kernel(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts of each row, weighted by their sums of exponentials; a row that no part saw becomes zero."""
    raise NotImplementedError("lesson 3, task 5: combine the parts of Flash-Decoding by their log sums")
