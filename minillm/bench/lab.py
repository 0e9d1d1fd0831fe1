"""Processor time of the kernel lab against numba's own simulator.

Both run the same kernels on the same arrays: a paged decode, whose threads meet at many barriers, and a tiled product.
The simulator gives each thread of a block a thread of the operating system. It has to be chosen before numba is
imported, so it runs in a process of its own. Processor time is much the same on a busy machine and on an idle one.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32

SEQUENCES, HEADS, HEAD_DIM, BLOCK_SIZE, CONTEXT = 4, 4, 32, 4, 16
ROWS, TILE = 32, 8
HALVINGS = tuple(HEAD_DIM >> shift for shift in range(1, HEAD_DIM.bit_length()))
SIMULATED = {"NUMBA_ENABLE_CUDASIM": "1"}


@cuda.jit
def paged_decode(q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: Any, out: Any) -> None:
    """One query per sequence: a block for each sequence and head, a thread for each element of a head.

    q and out ``[sequences, heads, head_dim]``, caches ``[num_blocks, heads, block_size, head_dim]``. For every cached
    token the threads sum up the score in shared memory, and each keeps its element of the online softmax.
    """
    products = cuda.shared.array(HEAD_DIM, float32)
    sequence, head, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    largest, total, mixed = float32(-math.inf), float32(0), float32(0)
    query = q[sequence, head, t]
    for token in range(context_lens[sequence]):
        block = block_tables[sequence, token // BLOCK_SIZE]
        products[t] = query * k_cache[block, head, token % BLOCK_SIZE, t]
        cuda.syncthreads()
        for half in HALVINGS:
            if t < half:
                products[t] += products[t + half]
            cuda.syncthreads()
        score = products[0]
        cuda.syncthreads()
        higher = score if score > largest else largest
        scale, weight = math.exp(largest - higher), math.exp(score - higher)
        total = total * scale + weight
        mixed = mixed * scale + weight * v_cache[block, head, token % BLOCK_SIZE, t]
        largest = higher
    out[sequence, head, t] = mixed / total


@cuda.jit
def tiled_matmul(a: Any, b: Any, c: Any) -> None:
    """``c = a @ b``, all ``[rows, rows]``, by tiles in shared memory."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    total = float32(0)
    for tile in range(a.shape[1] // TILE):
        tile_a[ty, tx] = a[y, tile * TILE + tx]
        tile_b[ty, tx] = b[tile * TILE + ty, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    c[y, x] = total


@dataclass(frozen=True, slots=True)
class LabTimes:
    """Processor seconds of one launch in numba's simulator, in the lab without checks, and with all of them."""

    kernel: str
    simulator: float
    bare: float
    checked: float


def launches() -> Mapping[str, Callable[[], None]]:
    """Each kernel's name, and what launches it on its arrays."""
    generator = np.random.default_rng(0)
    num_blocks = SEQUENCES * CONTEXT // BLOCK_SIZE
    q = generator.random((SEQUENCES, HEADS, HEAD_DIM), np.float32)
    caches = generator.random((2, num_blocks, HEADS, BLOCK_SIZE, HEAD_DIM), np.float32)
    tables = generator.permutation(num_blocks).reshape(SEQUENCES, -1)
    lengths = np.full(SEQUENCES, CONTEXT)
    a, b = generator.random((2, ROWS, ROWS), np.float32)
    out, product = np.empty_like(q), np.empty_like(a)
    decode: Any = paged_decode[(SEQUENCES, HEADS), HEAD_DIM]
    multiply: Any = tiled_matmul[(ROWS // TILE, ROWS // TILE), (TILE, TILE)]
    return {
        "paged decode": lambda: decode(q, *caches, tables, lengths, out),
        "tiled matmul": lambda: multiply(a, b, product),
    }


def seconds(context: Callable[[], AbstractContextManager[Any]], warmups: int, repeats: int) -> dict[str, float]:
    """The least processor time of each kernel's launch, after ``warmups`` that are not counted."""
    times = {}
    with context():
        for name, launch in launches().items():
            rounds = [_processor_seconds(launch) for _ in range(warmups + repeats)]
            times[name] = min(rounds[warmups:])
    return times


def _processor_seconds(action: Callable[[], None]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def simulator_seconds() -> dict[str, float]:
    """The same in numba's simulator, in a new process."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "minillm.bench.lab"],
        env=os.environ | SIMULATED,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return dict(json.loads(child.stdout))


def measure(repeats: int = 15) -> list[LabTimes]:
    """Both sides, one after the other. It takes about half a minute, nearly all of it the simulator's."""
    from kernels import lab  # numba's simulator has nothing that this could be built on

    simulator = simulator_seconds()
    bare, checked = seconds(lab.run, 1, repeats), seconds(lab.check, 1, repeats)
    return [LabTimes(name, simulator[name], bare[name], checked[name]) for name in simulator]


if __name__ == "__main__":
    json.dump(seconds(nullcontext, warmups=0, repeats=1), sys.stdout)
