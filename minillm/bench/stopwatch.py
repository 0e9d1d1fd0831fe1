"""Timing that a noisy machine disturbs least."""

import time
from collections.abc import Callable, Sequence
from statistics import median


def seconds(action: Callable[[], object]) -> float:
    """Wall time of an action in seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def alternating_medians(actions: Sequence[Callable[[], object]], repeats: int = 15, warmups: int = 2) -> list[float]:
    """Median wall time of each action in seconds; they take turns, so that a busy moment hits all alike."""
    rounds = [[seconds(action) for action in actions] for _ in range(warmups + repeats)]
    return [median(times) for times in zip(*rounds[warmups:], strict=True)]
