"""Running the GPU's kernels in the lab: in three orders of threads, with late and with immediate stores."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings

from kernels import lab

TOLERANCE = {np.float16: 4e-3, np.float32: 2e-5}
"""Absolute, for results about 1 in size: several roundings of float16 storage, or of float32 sums."""


@dataclass(frozen=True)
class Launch:
    """Calls a host function so that its kernels run in the lab, and raises for every fault in their reports."""

    order: str | int
    late_stores: bool

    def __call__(self, function, *arguments, **budgets):
        with lab.check(order=self.order, late_stores=self.late_stores) as reports:
            function(*arguments)
        for report in reports:
            report.check(**budgets)

    def __str__(self):
        return f"{self.order}-{'late' if self.late_stores else 'immediate'}"


LAUNCHES = [Launch(order, late) for order in ("ascending", "descending", 7) for late in (True, False)]

in_every_way = pytest.mark.parametrize("launch", LAUNCHES, ids=str)

few = settings(max_examples=3, deadline=None, derandomize=True)
