"""Runs a policy on the simulated model or on a real tiny one, and writes traces as the golden files do."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from minillm.batch import Batch, Outcome
from minillm.cache.memory import Memory, PagedMemory
from minillm.cache.paged import PagedCache
from minillm.cache.rectangle import RectangleCache
from minillm.clock import VirtualClock
from minillm.engine import Engine, Limits, Output
from minillm.executor import Cache, TorchExecutor
from minillm.model.naive import generate
from minillm.model.transformer import Transformer
from minillm.records import SpanRecord, StepRecord
from minillm.request import Request, SamplingParams
from minillm.scheduler import Scheduler
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.orca import Orca
from minillm.schedulers.priority_queue import QueuePolicy
from minillm.schedulers.ragged import Ragged
from minillm.schedulers.single import Single
from minillm.schedulers.splitfuse import SplitFuse
from minillm.schedulers.static import NaiveStatic, Static
from minillm.schedulers.vllm import VLLM
from minillm.sequence import Sequence
from minillm.simulator.runner import ScriptedModel, SimulatedRunner

VOCAB, EOS = 257, 256
LIMITS = Limits(vocab_size=VOCAB, max_context=512, eos_token_ids=frozenset({EOS}))


def paged(policy):
    """A constructor that takes the memory's sizes beside the policy's own options."""

    def build(num_blocks, block_size, swap_blocks=0, **options):
        return policy(PagedMemory(num_blocks, block_size, swap_blocks), **options)

    return build


def queued(policy):
    """A constructor that takes queue policies as tables of their options."""

    def build(*sizes, queue_policies=({},), **options):
        return policy(*sizes, queue_policies=[QueuePolicy(**table) for table in queue_policies], **options)

    return build


POLICIES = {
    "single": Single,
    "static": Static,
    "naive static": NaiveStatic,
    "dynamic": queued(Dynamic),
    "ragged": queued(Ragged),
    "orca": Orca,
    "vllm": paged(VLLM),
    "splitfuse": paged(SplitFuse),
}


def request(name: str, prompt: int, output: int, **more) -> Request:
    """A request of so many prompt tokens that generates exactly ``output`` tokens, whatever the model says."""
    params = {"max_tokens": output, "ignore_eos": True, "temperature": 0.0} | more.pop("params", {})
    salt = sum(map(ord, name))
    token_ids = tuple((salt + 7 * i) % 251 for i in range(prompt))
    return Request(name, token_ids, SamplingParams(**params), **more)


def one_second(batch: Batch) -> float:
    """Every pass takes a second."""
    return 1.0


def simulated(scheduler: Scheduler, requests, cost=one_second, depth=1, execute=None) -> Engine:
    """An engine on simulated time that has these requests."""
    runner = SimulatedRunner(execute or ScriptedModel(0, EOS), cost, depth)
    engine = Engine(scheduler, runner, VirtualClock(), LIMITS)
    for each in requests:
        engine.add(each)
    return engine


def recorded(scheduler: Scheduler, requests, **options) -> list[StepRecord]:
    """The steps of a simulated run of these requests to its end."""
    engine = simulated(scheduler, requests, **options)
    engine.run()
    scheduler.check_integrity()
    return engine.steps


def launch(scheduler: Scheduler) -> Batch:
    """Schedule a pass and leave it in flight."""
    batch = scheduler.schedule(0.0)
    for span in batch.spans:
        span.sequence.in_flight = True
    return batch


def land(scheduler: Scheduler, batch: Batch) -> None:
    """Settle a pass that was in flight; whatever it sampled is token 0."""
    outcomes = [Outcome(span.sequence, span, (0,) * span.samples) for span in batch.spans]
    for outcome in outcomes:
        outcome.sequence.in_flight = False
        outcome.sequence.token_ids += outcome.token_ids
    scheduler.settle(batch, outcomes, 0.0)


EVENT_SIGNS = {
    "preempted": "!",
    "reset": "~",
    "swapped out": ">",
    "swapped in": "<",
    "failed": "x",
    "expired": "-",
    "completed": "=",
}


def trace(steps: list[StepRecord]) -> list[str]:
    """One line per step: ``A7`` ran 7 tokens, ``(A)`` was held, ``!A`` was preempted, ``~A`` reset."""
    return [" ".join([*map(span_text, step.spans), *held_and_events(step)]) for step in steps]


def timed_trace(steps: list[StepRecord]) -> list[str]:
    """The same, each line behind the second at which its step began: ``@0.5 A7``."""
    return [f"@{step.start:g} {line}" for step, line in zip(steps, trace(steps), strict=True)]


def span_text(span: SpanRecord) -> str:
    """``A7``, or ``A.0:7`` for one of several samples."""
    return f"{span.sequence}{':' if '.' in span.sequence else ''}{span.length}"


def held_and_events(step: StepRecord) -> list[str]:
    events = [EVENT_SIGNS[event.kind] + event.sequence for event in step.events]
    return [f"({name})" for name in step.held] + events


def real_cache(model: Transformer, memory: Memory) -> Cache:
    """The tensors that a scheduler's memory asks for, filled with NaN: whatever is read unwritten shows."""
    kind = PagedCache if isinstance(memory, PagedMemory) else RectangleCache
    return kind(model.config, memory, model.dtype, fill=torch.nan)


def real(model: Transformer, scheduler: Scheduler, requests, cost=one_second, depth=1) -> Engine:
    """The same engine, but the passes are computed by a real model, on simulated time."""
    execute = TorchExecutor(model, real_cache(model, scheduler.memory), LIMITS.eos_token_ids)
    return simulated(scheduler, requests, cost, depth, execute)


def tokens_of(outputs: Iterable[Output]) -> dict[str, list[int]]:
    """All tokens of each sequence, in the order of delivery."""
    tokens: dict[str, list[int]] = defaultdict(list)
    for output in outputs:
        tokens[output.sequence] += output.token_ids
    return dict(tokens)


def oracle(model: Transformer, requests: Iterable[Request]) -> dict[str, list[int]]:
    """The tokens of each sequence by the uncached loop."""
    return {
        Sequence(each, branch).name: generate(
            model, list(each.prompt_token_ids), each.params, branch, LIMITS.eos_token_ids
        ).token_ids
        for each in requests
        for branch in range(each.params.n)
    }
