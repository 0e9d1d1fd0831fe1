"""Timing that a noisy machine disturbs least."""

import time
from collections.abc import Callable
from statistics import median


def median_seconds(action: Callable[[], object], repeats: int = 15, warmups: int = 2) -> float:
    """Median wall time of an action in seconds."""
    for _ in range(warmups):
        action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)
