"""Reduction: the sum of each row by one block, first through shared memory, then by shuffles.

Both steps begin alike: a thread adds up every ``THREADS``-th column, so that neighbouring lanes read neighbouring
addresses. They differ in how the block's sums become one.
"""

from numba import cuda, float32

from kernels.checks import Floats, check_rows
from kernels.cuda.warp import WARP, ZERO, warp_sum

THREADS = 128
"""Threads of a block, which has a row to itself: four warps."""
WARPS = THREADS // WARP


@cuda.jit
def sum_rows_shared_kernel(x: Floats, out: Floats) -> None:
    """A tree in shared memory: in each turn half as many threads add a partner's sum to their own.

    Costs: a barrier in each of log2(THREADS) turns, in the last six of which one warp works alone.
    """
    sums = cuda.shared.array(THREADS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = ZERO
    for column in range(thread, x.shape[1], THREADS):
        total += float32(x[row, column])
    sums[thread] = total
    cuda.syncthreads()
    distance = THREADS // 2
    while distance > 0:
        if thread < distance:
            sums[thread] += sums[thread + distance]
        cuda.syncthreads()
        distance //= 2
    if thread == 0:
        out[row] = sums[0]


@cuda.jit
def sum_rows_shuffle_kernel(x: Floats, out: Floats) -> None:
    """Each warp adds up by shuffles; shared memory holds a sum for each warp instead of one for each thread.

    Adds: lanes read each other's registers, without memory, and one barrier suffices. Costs: it counts on warps of 32
    lanes. No faster than the tree where rows are long, for there reading them takes all the time.
    """
    sums = cuda.shared.array(WARPS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = ZERO
    for column in range(thread, x.shape[1], THREADS):
        total += float32(x[row, column])
    total = warp_sum(total, WARP)
    if thread % WARP == 0:
        sums[thread // WARP] = total
    cuda.syncthreads()
    if thread < WARP:
        total = warp_sum(sums[thread] if thread < WARPS else ZERO, WARP)
        if thread == 0:
            out[row] = total


def sum_rows_shared(x: Floats, out: Floats) -> None:
    """Sums of rows. x ``[rows, columns]``, out ``[rows]``, float16 or float32. TypeError or ValueError if not."""
    rows = check_rows(x, out)
    if rows:
        sum_rows_shared_kernel[rows, THREADS](x, out)


def sum_rows_shuffle(x: Floats, out: Floats) -> None:
    """The same by shuffles."""
    rows = check_rows(x, out)
    if rows:
        sum_rows_shuffle_kernel[rows, THREADS](x, out)
