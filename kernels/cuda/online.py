"""A warp's online softmax over single keys: the device functions of the decode kernels.

The lanes share a key's elements: lane 0 has elements 0, 32, 64 and so on, which makes reading it one coalesced access
for each 32. A warp keeps ``state``, the maximum so far and the sum of exponentials relative to it, and ``summed``, the
values weighted alike. It costs five shuffles for each key, where ``tiles`` has ten for 32 of them.
"""

import math

from numba import cuda, float32

from kernels.checks import MAX_HEAD_DIM, Floats
from kernels.cuda.warp import MINUS_INFINITY, WARP, ZERO, lane_id, larger, warp_sum

THREADS = 128
WARPS = THREADS // WARP
DIMS_PER_LANE = MAX_HEAD_DIM // WARP
"""Registers of a lane for its elements. Loops over them have a fixed length, or there could be no registers."""


@cuda.jit(device=True)
def begin(query: Floats, state: Floats, summed: Floats, q: Floats, scale: float) -> None:
    """Load a lane's elements of a query ``q [head_dim]``, scaled; nothing has been looked at.

    query and summed ``[DIMS_PER_LANE]`` and state ``[2]`` are the thread's own, float32.
    """
    lane = lane_id()
    for i in range(DIMS_PER_LANE):
        query[i] = float32(q[lane + i * WARP]) * scale if lane + i * WARP < len(q) else ZERO
        summed[i] = ZERO
    state[0], state[1] = MINUS_INFINITY, ZERO


@cuda.jit(device=True)
def look_at(key: Floats, value: Floats, query: Floats, state: Floats, summed: Floats) -> None:
    """Take one more ``key [head_dim]`` and its ``value [head_dim]`` into a warp's online softmax.

    All lanes of the warp must come here together, with the same key.
    """
    lane = lane_id()
    dot = ZERO
    for i in range(DIMS_PER_LANE):
        if lane + i * WARP < len(key):
            dot += query[i] * float32(key[lane + i * WARP])
    score = warp_sum(dot, WARP)
    maximum = larger(state[0], score)
    correction = math.exp(state[0] - maximum) if state[0] != MINUS_INFINITY else ZERO
    weight = math.exp(score - maximum) if score != MINUS_INFINITY else ZERO
    state[0], state[1] = maximum, state[1] * correction + weight
    for i in range(DIMS_PER_LANE):
        if lane + i * WARP < len(value):
            summed[i] = summed[i] * correction + weight * float32(value[lane + i * WARP])


@cuda.jit(device=True)
def finish(state: Floats, summed: Floats, out: Floats) -> None:
    """Merge what the block's warps have, as one warp corrects its sums, and write ``out [head_dim]``.

    Zeros where no warp looked at a key. All threads of the block must come here, for it has a barrier.
    """
    maxima, totals = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, float32)
    sums = cuda.shared.array((WARPS, MAX_HEAD_DIM), float32)
    lane, warp = lane_id(), cuda.threadIdx.x // WARP
    for i in range(DIMS_PER_LANE):
        if lane + i * WARP < len(out):
            sums[warp, lane + i * WARP] = summed[i]
    if lane == 0:
        maxima[warp], totals[warp] = state[0], state[1]
    cuda.syncthreads()
    maximum = MINUS_INFINITY
    for other in range(WARPS):
        maximum = larger(maximum, maxima[other])
    for d in range(cuda.threadIdx.x, len(out), THREADS):
        total, weighted = ZERO, ZERO
        for other in range(WARPS):
            if totals[other] != ZERO:
                correction = math.exp(maxima[other] - maximum)
                total += totals[other] * correction
                weighted += sums[other, d] * correction
        out[d] = weighted / total if total != ZERO else ZERO
