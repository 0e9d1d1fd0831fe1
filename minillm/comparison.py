"""One workload under several policies: where they run, how they are served, and whether all said the same."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minillm.clock import VirtualClock
from minillm.engine import Engine, Limits
from minillm.model.naive import next_logits
from minillm.model.transformer import Transformer
from minillm.model.weights import default_model_path
from minillm.request import Request
from minillm.scheduler import Scheduler
from minillm.serving import load, wall_engine
from minillm.simulator.gpus import GPU, ModelShape, kv_tokens, pass_cost
from minillm.simulator.runner import ScriptedModel, SimulatedRunner
from minillm.simulator.workload import Length, Prompts, random_prompts, text_prompts

NEAR_TIE = 1e-3
"""Logits this close may change places by the order in which float32 sums are taken."""

VIRTUAL_VOCAB = 32_000
"""Vocabulary of the scripted model, whose token ids mean nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where policies run: a model on this machine, or a simulated GPU.

    title      what was run and how its times came about, in words
    prompts    prompts that it can take, one per request
    kv_tokens  cache places that a policy gets unless told otherwise
    engine     makes an engine for a scheduler, its clock at 0
    model      the model that ran; None on a simulated GPU
    """

    title: str
    prompts: Prompts
    kv_tokens: int
    engine: Callable[[Scheduler], Engine]
    model: Transformer | None = None


def real_stage(path: Path | None, lengths: Sequence[Length], kv_tokens: int) -> Stage:
    """The model at ``path``, or the default one, on this machine and in real time, with prompts of real text."""
    path = path or default_model_path()
    model = load(path)
    limits = model.limits()
    return Stage(
        title=f"{path.stem}, measured on this machine",
        prompts=text_prompts(lengths, model.tokenizer),
        kv_tokens=kv_tokens,
        engine=lambda scheduler: wall_engine(model, scheduler, limits),
        model=model.transformer,
    )


def virtual_stage(gpu: GPU, shape: ModelShape, lengths: Sequence[Length], seed: int) -> Stage:
    """A simulated GPU with all the cache that the model's weights leave on it; outputs have no meaning."""
    cost = pass_cost(gpu, shape)
    limits = Limits(VIRTUAL_VOCAB, max(length.prompt_tokens + length.output_tokens for length in lengths))

    def engine(scheduler: Scheduler) -> Engine:
        runner = SimulatedRunner(ScriptedModel(filler=0, end_of_text=0), cost)
        return Engine(scheduler, runner, VirtualClock(), limits)

    title = f"{shape.name} on {gpu.name}, simulated"
    return Stage(title, random_prompts(lengths, VIRTUAL_VOCAB, seed), kv_tokens(gpu, shape), engine)


def warm_up(stage: Stage, scheduler: Scheduler, requests: Iterable[Request]) -> None:
    """Serve these requests for two tokens each and forget them: kernels are compiled and memory is touched."""
    short = [replace(request, arrival=0.0, params=replace(request.params, max_tokens=2)) for request in requests]
    serve(stage.engine(scheduler), short, on_tokens=lambda tokens: None)


def serve(engine: Engine, requests: Iterable[Request], on_tokens: Callable[[int], None]) -> dict[str, list[int]]:
    """Run a workload to its end; returns the output token ids of each sequence.

    ``on_tokens`` hears after each step how many tokens were computed, delivered or not. Raises ``Refused`` for a
    request that the policy can never run. What ran until an exception stands in the engine's records.
    """
    for request in requests:
        engine.add(request)
    token_ids: dict[str, list[int]] = {}
    while engine.has_work:
        known = len(engine.steps)
        for output in engine.step():
            token_ids.setdefault(output.sequence, []).extend(output.token_ids)
        on_tokens(sum(tokens for step in engine.steps[known:] for _, tokens in step.sampled))
    return token_ids


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two policies disagree on a request.

    ``position`` counts output tokens from 0. ``gap`` is how far below the largest logit the worse of the two lies,
    where the model reads the prompt and the tokens that both agree on, uncached.
    """

    request: str
    position: int
    policies: tuple[str, str]
    token_ids: tuple[int, int]
    gap: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone can explain it."""
        return self.gap <= NEAR_TIE


def differences(
    answers: Mapping[str, Mapping[str, Sequence[int]]], requests: Sequence[Request], model: Transformer
) -> list[Difference]:
    """Where the policies' greedy ``answers`` (policy, then request, to output token ids) leave those of the first.

    After a first difference the texts go their own ways, so one per request and policy is reported.
    """
    first, *others = answers
    found = []
    for other in others:
        for request in requests:
            pair = answers[first].get(request.id, ()), answers[other].get(request.id, ())
            position = _first_difference(*pair)
            if position is not None:
                token_ids = pair[0][position], pair[1][position]
                gap = _gap(model, [*request.prompt_token_ids, *pair[0][:position]], token_ids)
                found.append(Difference(request.id, position, (first, other), token_ids, gap))
    return found


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position at which both have a token and these differ."""
    return next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def _gap(model: Transformer, token_ids: list[int], chosen: Iterable[int]) -> float:
    """How far the least of the chosen tokens' logits lies below the largest logit after ``token_ids``."""
    logits = next_logits(model, token_ids)
    return float(logits.max() - logits[list(chosen)].min())
