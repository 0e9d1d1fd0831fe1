"""Three kernels of a colleague, each with one bug that its tests did not find. Lesson 3 asks which.

They are no part of the ladder: do not copy them.
"""

import math
from typing import Any

import numpy as np
from numba import cuda, float32

THREADS = 64
EPSILON = 1e-5
ZERO: Any = np.float32(0)


@cuda.jit
def running_sums_kernel(x: Any, out: Any) -> None:
    """``out[i] = x[0] + ... + x[i]``: in each turn every thread adds the sum that stands ``distance`` to its left."""
    sums = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.x
    sums[thread] = x[thread] if thread < len(x) else ZERO
    cuda.syncthreads()
    distance = 1
    while distance < THREADS:
        if thread >= distance:
            sums[thread] += sums[thread - distance]
        cuda.syncthreads()
        distance *= 2
    if thread < len(x):
        out[thread] = sums[thread]


@cuda.jit
def counts_kernel(token_ids: Any, counts: Any) -> None:
    """``counts[t]`` grows by the number of times that t is among the token ids, which are below THREADS."""
    local = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.x
    local[thread] = ZERO
    for i in range(thread, len(token_ids), THREADS):
        cuda.syncthreads()
        cuda.atomic.add(local, token_ids[i], 1)
    cuda.syncthreads()
    if thread < len(counts):
        counts[thread] += local[thread]


@cuda.jit
def rms_norm_kernel(x: Any, out: Any) -> None:
    """``out = x / sqrt(mean(x ** 2) + EPSILON)`` for each row, by one block."""
    squares = cuda.shared.array(1, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if thread == 0:
        squares[0] = ZERO
    cuda.syncthreads()
    total = ZERO
    for column in range(thread, x.shape[1], THREADS):
        total += x[row, column] * x[row, column]
    cuda.atomic.add(squares, 0, total)
    cuda.syncthreads()
    scale = 1 / math.sqrt(squares[0] / x.shape[1] + EPSILON)
    for column in range(thread, x.shape[1], THREADS):
        out[row, column] = x[row, column] * scale
