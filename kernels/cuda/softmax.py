"""Softmax of each row by one block: first with a pass for the maximum and one for the sum, then with one for both.

A row of nothing but -inf, which attention calls fully masked, gives zeros.
"""

import math

from numba import cuda, float32

from kernels.checks import Floats, check_same
from kernels.cuda.reduction import THREADS, WARPS
from kernels.cuda.warp import ALL_LANES, MINUS_INFINITY, WARP, ZERO, larger, warp_max, warp_sum


@cuda.jit
def softmax_two_pass_kernel(x: Floats, out: Floats) -> None:
    """Maximum, then sum of exponentials, then division: each row is read three times."""
    maxima = cuda.shared.array(WARPS, float32)
    totals = cuda.shared.array(WARPS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    maximum = MINUS_INFINITY
    for column in range(thread, x.shape[1], THREADS):
        maximum = larger(maximum, float32(x[row, column]))
    maximum = warp_max(maximum, WARP)
    if thread % WARP == 0:
        maxima[thread // WARP] = maximum
    cuda.syncthreads()
    for warp in range(WARPS):
        maximum = larger(maximum, maxima[warp])
    if maximum == MINUS_INFINITY:
        maximum = ZERO
    total = ZERO
    for column in range(thread, x.shape[1], THREADS):
        total += math.exp(float32(x[row, column]) - maximum)
    total = warp_sum(total, WARP)
    if thread % WARP == 0:
        totals[thread // WARP] = total
    cuda.syncthreads()
    total = ZERO
    for warp in range(WARPS):
        total += totals[warp]
    for column in range(thread, x.shape[1], THREADS):
        weight = math.exp(float32(x[row, column]) - maximum)
        out[row, column] = weight / total if total != ZERO else ZERO


@cuda.jit(device=True)
def rescaled(total: float, maximum: float, new_maximum: float) -> float:
    """A sum of exponentials that were relative to ``maximum``, relative to ``new_maximum`` instead."""
    if maximum == MINUS_INFINITY:
        return total  # zero, or NaN
    return total * math.exp(maximum - new_maximum)


@cuda.jit
def softmax_online_kernel(x: Floats, out: Floats) -> None:
    """One pass keeps the maximum so far and the sum relative to it (Milakov and Gimelshein 2018, algorithm 3).

    Where the maximum grows, the sum is multiplied by ``exp(old - new)``. Sums of two parts of a row are merged by the
    same rule, which makes FlashAttention and Flash-Decoding possible.

    Adds: a row is read twice instead of three times. Costs: two exponentials for each element of the first pass
    instead of one. Slower than two passes where the row stays in the first cache, so that only arithmetic counts.
    """
    maxima = cuda.shared.array(WARPS, float32)
    totals = cuda.shared.array(WARPS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    maximum, total = MINUS_INFINITY, ZERO
    for column in range(thread, x.shape[1], THREADS):
        value = float32(x[row, column])
        new_maximum = larger(maximum, value)
        if new_maximum != MINUS_INFINITY:
            total = rescaled(total, maximum, new_maximum) + math.exp(value - new_maximum)
        maximum = new_maximum
    distance = WARP // 2
    while distance > 0:
        other_maximum = cuda.shfl_xor_sync(ALL_LANES, maximum, distance)
        other_total = cuda.shfl_xor_sync(ALL_LANES, total, distance)
        new_maximum = larger(maximum, other_maximum)
        total = rescaled(total, maximum, new_maximum) + rescaled(other_total, other_maximum, new_maximum)
        maximum = new_maximum
        distance //= 2
    if thread % WARP == 0:
        maxima[thread // WARP], totals[thread // WARP] = maximum, total
    cuda.syncthreads()
    maximum, total = MINUS_INFINITY, ZERO
    for warp in range(WARPS):
        new_maximum = larger(maximum, maxima[warp])
        total = rescaled(total, maximum, new_maximum) + rescaled(totals[warp], maxima[warp], new_maximum)
        maximum = new_maximum
    for column in range(thread, x.shape[1], THREADS):
        out[row, column] = math.exp(float32(x[row, column]) - maximum) / total if total != ZERO else ZERO


def softmax_two_pass(x: Floats, out: Floats) -> None:
    """Softmax along rows. x, out ``[rows, columns]``, float16 or float32. TypeError or ValueError if not."""
    rows, columns = check_same(2, x=x, out=out)
    if rows and columns:
        softmax_two_pass_kernel[rows, THREADS](x, out)


def softmax_online(x: Floats, out: Floats) -> None:
    """Softmax along rows, in one pass less. x, out ``[rows, columns]``, float16 or float32.

    TypeError or ValueError if not.
    """
    rows, columns = check_same(2, x=x, out=out)
    if rows and columns:
        softmax_online_kernel[rows, THREADS](x, out)
