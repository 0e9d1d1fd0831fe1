"""Matrix product: one thread for each element of the result, first alone, then sharing tiles."""

from numba import cuda, float32

from kernels.checks import Floats, check_product
from kernels.cuda.warp import ZERO

SIDE = 16
"""Rows and columns of a tile, and threads of a block along both: 256 threads."""


@cuda.jit
def matmul_naive_kernel(a: Floats, b: Floats, out: Floats) -> None:
    """Each thread reads a row of a and a column of b from memory: 2 K reads for its 2 K operations."""
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = ZERO
        for k in range(a.shape[1]):
            total += float32(a[row, k]) * float32(b[k, column])
        out[row, column] = total


@cuda.jit
def matmul_tiled_kernel(a: Floats, b: Floats, out: Floats) -> None:
    """The block's threads read a tile of a and of b together, then each uses ``SIDE`` elements of both.

    Adds: memory is read a ``SIDE``-th as often. Costs: shared memory, and two barriers for each tile: one before it is
    used, so that it is whole, and one after, so that no thread fills in the next while another still reads. Slower than
    the naive kernel for products narrower than a tile, whose cells beyond the edge are computed for nothing, and, where
    the first cache holds what a block reads, by no more than its barriers.
    """
    tile_a = cuda.shared.array((SIDE, SIDE), float32)
    tile_b = cuda.shared.array((SIDE, SIDE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = ZERO
    for start in range(0, a.shape[1], SIDE):
        inside_a = row < a.shape[0] and start + x < a.shape[1]
        inside_b = column < b.shape[1] and start + y < b.shape[0]
        tile_a[y, x] = a[row, start + x] if inside_a else ZERO
        tile_b[y, x] = b[start + y, column] if inside_b else ZERO
        cuda.syncthreads()
        for k in range(SIDE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


def matmul_naive(a: Floats, b: Floats, out: Floats) -> None:
    """``out = a b``. a ``[m, k]``, b ``[k, n]``, out ``[m, n]``, float16 or float32. TypeError or ValueError if not."""
    m, n = check_product(a, b, out)
    if m and n:
        matmul_naive_kernel[grid_for(m, n), (SIDE, SIDE)](a, b, out)


def matmul_tiled(a: Floats, b: Floats, out: Floats) -> None:
    """``out = a b`` through tiles. a ``[m, k]``, b ``[k, n]``, out ``[m, n]``, float16 or float32.

    TypeError or ValueError if not.
    """
    m, n = check_product(a, b, out)
    if m and n:
        matmul_tiled_kernel[grid_for(m, n), (SIDE, SIDE)](a, b, out)


def grid_for(m: int, n: int) -> tuple[int, int]:
    """Blocks along columns and rows that cover ``[m, n]``. x runs along columns, whose neighbours are adjacent."""
    return (n + SIDE - 1) // SIDE, (m + SIDE - 1) // SIDE
