"""On simulated time the real model and a model of nothing but output lengths leave the same records."""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from every_policy import SMALL, small
from harness import VOCAB, real_cache

from minillm.clock import VirtualClock, WallClock
from minillm.engine import Engine, Limits
from minillm.executor import TorchExecutor
from minillm.model.naive import generate
from minillm.model.tiny import tiny
from minillm.request import Request, SamplingParams
from minillm.simulator.cost import ThreeTermCost
from minillm.simulator.runner import ScriptedModel, SimulatedRunner

ENDS = frozenset(range(0, VOCAB, 9))  # so many end-of-text tokens that most outputs stop early
LIMITS = Limits(VOCAB, max_context=512, eos_token_ids=ENDS)
MODEL = tiny(0)
COST = ThreeTermCost(
    overhead=1e-3, weight_bytes=2e6, flops_per_token=3e5, kv_bytes_per_token=2e4, bandwidth=1e9, flops=1e9
)


def asked(index: int) -> Request:
    """A sampled request that ends when the model says so; every fourth asks for two samples of full length."""
    n = 2 if index % 4 == 3 else 1
    params = SamplingParams(n=n, max_tokens=12, seed=index, ignore_eos=n > 1)
    prompt = tuple((11 * index + 7 * i) % 251 for i in range(1 + 13 * index % 20))
    return Request(f"r{index}", prompt, params, arrival=0.004 * (index // 2) + 0.0005 * index)


def foretold(request: Request) -> Request:
    """The same request with the output length that the oracle finds, where the output stops by itself."""
    output = generate(MODEL, list(request.prompt_token_ids), request.params, 0, ENDS).token_ids
    stops = output[-1] in ENDS and not request.params.ignore_eos
    return replace(request, expected_output=len(output) if stops else None)


REQUESTS = [foretold(asked(index)) for index in range(18)]


def run(policy, depth, execute):
    scheduler = small(policy)
    runner = SimulatedRunner(execute or TorchExecutor(MODEL, real_cache(MODEL, scheduler.memory), ENDS), COST, depth)
    engine = Engine(scheduler, runner, VirtualClock(), LIMITS)
    for request in REQUESTS:
        engine.add(request)
    engine.run()
    return engine


def scripted():
    return ScriptedModel(filler=1, end_of_text=0)


def test_the_requests_end_at_many_lengths_that_nobody_knew_beforehand():
    lengths = {request.expected_output for request in REQUESTS}
    assert len(lengths) >= 5


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("policy", SMALL)
def test_the_real_and_the_scripted_model_leave_equal_records(policy, depth):
    in_earnest, simulated = run(policy, depth, execute=None), run(policy, depth, scripted())
    assert in_earnest.requests == simulated.requests
    assert in_earnest.steps == simulated.steps


@pytest.mark.parametrize("policy", SMALL)
def test_a_virtual_run_is_the_same_twice_and_reads_no_clock(policy):
    first = run(policy, 2, scripted())
    with clock_reads() as reads:
        second = run(policy, 2, scripted())
    assert first.steps == second.steps
    assert not reads


def test_reading_the_wall_clock_would_be_noticed():
    with clock_reads() as reads:
        WallClock().now()
    assert "perf_counter" in reads


@contextmanager
def clock_reads():
    """Names of the standard library's clock functions that our code calls, however it imported them."""
    reads = []

    def watch(frame, event, function):
        ours = event == "c_call" and frame.f_globals["__name__"].startswith("minillm")
        if ours and (function.__module__ == "time" or function.__qualname__.startswith("datetime.")):
            reads.append(function.__name__)

    sys.setprofile(watch)
    try:
        yield reads
    finally:
        sys.setprofile(None)
