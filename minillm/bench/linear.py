"""Why weights lie as ``[inputs, outputs]``, and which dtype is fast: matrix products of the model's largest layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from minillm.bench.stopwatch import alternating_medians

INPUTS, OUTPUTS = 576, 3072  # gate and up of SmolLM2-135M
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Seconds of one product of ``rows`` by the weights, in the two layouts and in bfloat16."""

    rows: int
    outputs_first: float
    inputs_first: float
    bfloat16: float


def measure(rows: Sequence[int] = ROWS) -> Iterator[LinearTimes]:
    """One measurement per batch size, in which the products take turns."""
    weight = torch.randn(OUTPUTS, INPUTS)
    transposed = weight.T.contiguous()
    half = transposed.bfloat16()
    for count in rows:
        x = torch.randn(count, INPUTS)
        products = (
            partial(F.linear, x, weight),
            partial(torch.matmul, x, transposed),
            partial(torch.matmul, x.bfloat16(), half),
        )
        yield LinearTimes(count, *alternating_medians(products))
