"""What the lanes of a warp do together: sums and maxima by shuffles, without memory and without a barrier."""

from typing import Any

import numpy as np
from numba import cuda

WARP = 32
"""Lanes of a warp, on every NVIDIA GPU so far."""
ALL_LANES = 0xFFFFFFFF
MINUS_INFINITY: Any = np.float32(-np.inf)
ZERO: Any = np.float32(0)


# numba 0.68's own CUDA target cannot compile max and min, whose implementation takes any number of arguments; the
# package numba-cuda can. These two work with both. NaN may get lost in a maximum; kernels keep it in their sums.


@cuda.jit(device=True)
def larger(a: float, b: float) -> float:
    """``max(a, b)``."""
    return a if a > b else b


@cuda.jit(device=True)
def smaller(a: float, b: float) -> float:
    """``min(a, b)``."""
    return a if a < b else b


@cuda.jit(device=True)
def lane_id() -> int:
    """This thread's lane, 0 to 31, where the threads of a block lie along x.

    By ``&`` and not by ``%``, which would give the same: from ``&`` the compiler sees that the lane is not negative,
    and leaves out what wraps a negative index around, which takes dozens of registers (``kernels.ptx`` counts them).
    """
    return cuda.threadIdx.x & (WARP - 1)


@cuda.jit(device=True)
def warp_sum(value: float, lanes: int) -> float:
    """The sum over each ``lanes`` neighbours (a power of two, ``WARP`` for all), in every one of them.

    All 32 lanes must come here together.
    """
    distance = lanes // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, distance)
        distance //= 2
    return value


@cuda.jit(device=True)
def warp_max(value: float, lanes: int) -> float:
    """The largest value among each ``lanes`` neighbours, likewise."""
    distance = lanes // 2
    while distance > 0:
        value = larger(value, cuda.shfl_xor_sync(ALL_LANES, value, distance))
        distance //= 2
    return value


def whole_warps(threads: int, most: int) -> int:
    """So many threads in whole warps, but no more than ``most``."""
    return min((threads + WARP - 1) // WARP * WARP, most)
