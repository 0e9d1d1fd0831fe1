"""Map: one thread for each element, and no thread needs another. The first kernel to write."""

from numba import cuda, float32

from kernels.checks import Floats, check_same

THREADS = 128
"""Threads of a block: a multiple of a warp's 32."""
MOST_BLOCKS = 4096
"""Blocks of the grid-stride launch: 16 of them are the 2048 threads that a multiprocessor holds at most (CUDA C++
Programming Guide, "Technical Specifications per Compute Capability"), so they fill 256, more than a GPU has."""


@cuda.jit
def axpy_kernel(a: float, x: Floats, y: Floats, out: Floats) -> None:
    """``out = a * x + y``, one element for each thread."""
    i = cuda.grid(1)
    if i < len(out):  # the last block may reach beyond the end
        out[i] = a * float32(x[i]) + float32(y[i])


@cuda.jit
def axpy_grid_stride_kernel(a: float, x: Floats, y: Floats, out: Floats) -> None:
    """The same for any number of threads: each takes every ``gridsize``-th element.

    Adds: the launch no longer depends on the data's size, and a thread's set-up serves several elements. Costs: a loop.
    Slower than one element for each thread where there are fewer elements than threads on the GPU: the loop's test is
    then all that was added.
    """
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = a * float32(x[i]) + float32(y[i])


def axpy(a: float, x: Floats, y: Floats, out: Floats) -> None:
    """``out = a * x + y``. x, y, out ``[elements]``, float16 or float32. TypeError or ValueError if not."""
    elements = check_same(1, x=x, y=y, out=out)[0]
    if elements:
        axpy_kernel[blocks_for(elements), THREADS](float32(a), x, y, out)


def axpy_grid_stride(a: float, x: Floats, y: Floats, out: Floats) -> None:
    """The same by the grid-stride kernel."""
    elements = check_same(1, x=x, y=y, out=out)[0]
    if elements:
        axpy_grid_stride_kernel[min(blocks_for(elements), MOST_BLOCKS), THREADS](float32(a), x, y, out)


def blocks_for(elements: int) -> int:
    """Blocks of ``THREADS`` threads that give each element its own."""
    return (elements + THREADS - 1) // THREADS
