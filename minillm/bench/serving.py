"""How fast policies serve a mixed workload for real, and how much of the time the model itself runs."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.bench.attention import total
from minillm.bench.stopwatch import alternating_medians
from minillm.comparison import Stage, real_stage, serve, warm_up
from minillm.metrics import summarise
from minillm.model.transformer import Transformer
from minillm.policies import Capacity, capacity_for, policy_named
from minillm.request import Request
from minillm.simulator.workload import build_workload, lognormal_lengths

POLICIES = ("single", "static", "splitfuse")
KV_TOKENS = 8192
MAX_NUM_SEQS = 32
TOKEN_BUDGET = 96


@dataclass(frozen=True, slots=True)
class ServingSpeed:
    """One policy on the workload: output tokens per second, seconds in all, and seconds in the model's forward pass.

    ``weights_seconds`` is what a sum over the model's weights took just before: no pass can be shorter.
    """

    policy: str
    output_tokens_per_s: float
    seconds: float
    forward_seconds: float
    weights_seconds: float

    @property
    def overhead_share(self) -> float:
        """Share of the run spent outside the forward pass: scheduling, lowering, sampling and bookkeeping."""
        return 1 - self.forward_seconds / self.seconds


class _Stopwatch:
    """Seconds spent inside the functions it was put around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


@contextmanager
def _timed(model: Transformer) -> Iterator[_Stopwatch]:
    """While it is open, the model's passes and its head are timed."""
    watch = _Stopwatch()
    names = ("forward", "logits")
    for name in names:
        setattr(model, name, watch.around(getattr(model, name)))
    try:
        yield watch
    finally:
        for name in names:
            delattr(model, name)


def measure(
    model: Path | None, requests: int = 64, mean_tokens: int = 60, seed: int = 0, policies: Sequence[str] = POLICIES
) -> Iterator[ServingSpeed]:
    """Serve requests that all arrive at once, prompts and outputs lognormal around ``mean_tokens``, by each policy."""
    lengths = lognormal_lengths(requests, mean_tokens, mean_tokens, seed)
    stage = real_stage(model, lengths, KV_TOKENS)
    workload = build_workload(lengths, stage.prompts, [0.0] * requests)
    capacity = capacity_for(workload, KV_TOKENS, MAX_NUM_SEQS, TOKEN_BUDGET)
    for policy in policies:
        yield _speed(policy, stage, capacity, workload)


def _speed(policy: str, stage: Stage, capacity: Capacity, workload: Sequence[Request]) -> ServingSpeed:
    build = policy_named(policy).build
    warm_up(stage, build(capacity), workload[:2])
    engine = stage.engine(build(capacity))
    assert stage.model is not None
    weights_seconds = read_weights(stage.model)
    with _timed(stage.model) as watch:
        start = time.perf_counter()
        serve(engine, workload, on_tokens=lambda tokens: None)
        seconds = time.perf_counter() - start
    tokens_per_s = summarise(engine.recording(policy)).output_tokens_per_s
    return ServingSpeed(policy, tokens_per_s, seconds, watch.seconds, weights_seconds)


def read_weights(model: Transformer, repeats: int = 9) -> float:
    """Median seconds of a sum over all weights, by all threads: what memory alone asks of every pass."""
    weights = [weight.reshape(-1).numpy() for weight in model.parameters()]
    [seconds] = alternating_medians([lambda: [total(weight) for weight in weights]], repeats)
    return seconds
