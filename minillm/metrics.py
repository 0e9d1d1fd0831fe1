"""What a recording says about speed, waste and waiting. Reads records only.

Definitions are those of vLLM's ``bench serve`` unless a docstring says otherwise. Times are in seconds on the engine's
clock, and clients get their tokens when a pass has settled: a token's moment is its step's ``end``.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan

import numpy as np

from minillm.records import Recording, RequestRecord, StepRecord

COMPLETE = frozenset({"stop", "length"})
PREEMPTIONS = frozenset({"preempted", "swapped out", "reset"})
CACHE_LOSSES = frozenset({"preempted", "reset"})


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """How one completed request fared. A request of n branches begins with the first of any and ends with the last.

    output_tokens       of all branches
    queue_time          from arrival to the start of the first pass that computes any of it
    ttft                from arrival to the first token delivered
    ttft_computed       from arrival to the first token computed: earlier, where a policy holds answers back
    itl                 gaps between successive deliveries of a branch, of all branches
    tpot                (e2e_latency - ttft) / (tokens of the longest branch - 1); None where all came at once, which
                        vLLM would count as 0
    e2e_latency         from arrival to the last token delivered
    normalised_latency  e2e_latency / tokens of the longest branch (Orca; Yu et al., OSDI 2022, section 6.2)
    """

    id: str
    arrival: float
    prompt_tokens: int
    output_tokens: int
    queue_time: float
    ttft: float
    ttft_computed: float
    itl: tuple[float, ...]
    tpot: float | None
    e2e_latency: float
    normalised_latency: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles, linear between the samples as numpy has them; nan where there is no sample."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> "Distribution":
        """The distribution of these samples."""
        values = np.fromiter(samples, dtype=np.float64)
        if not values.size:
            return cls(nan, nan, nan, nan)
        return cls(float(values.mean()), *map(float, np.percentile(values, [50, 90, 99])))


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures.

    completed              requests that ended by a stop or at their length; only these count below
    duration               from the first arrival to the last delivery
    requests_per_s, output_tokens_per_s, total_tokens_per_s    completed work / duration; total counts prompts too
    ttft .. normalised_latency    over the completed requests; itl pools the gaps of all of them
    passes                 steps that computed tokens
    mean_batch             sequences that a pass advanced, on average; held rows are not advanced
    padding_share          1 - useful / computed tokens
    kv_filled, kv_reserved share of the cache's places that held a token, or were set aside; weighted by passes' times
    preemptions            sequences that lost their place: recomputed, reset or swapped out
    recomputed_tokens      tokens computed again because a preemption had dropped them
    """

    policy: str
    requests: int
    completed: int
    duration: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    queue_time: Distribution
    ttft: Distribution
    ttft_computed: Distribution
    tpot: Distribution
    itl: Distribution
    e2e_latency: Distribution
    normalised_latency: Distribution
    passes: int
    mean_batch: float
    padding_share: float
    kv_filled: float
    kv_reserved: float
    preemptions: int
    recomputed_tokens: int


def summarise(recording: Recording) -> Summary:
    """All figures of a run."""
    steps, done = recording.steps, request_metrics(recording)
    duration = _duration(recording)
    output_tokens = sum(request.output_tokens for request in done)
    total_tokens = output_tokens + sum(request.prompt_tokens for request in done)
    passes = [step for step in steps if step.computed_tokens]
    return Summary(
        policy=recording.policy,
        requests=len(recording.requests),
        completed=len(done),
        duration=duration,
        requests_per_s=_ratio(len(done), duration),
        output_tokens_per_s=_ratio(output_tokens, duration),
        total_tokens_per_s=_ratio(total_tokens, duration),
        queue_time=Distribution.of(request.queue_time for request in done),
        ttft=Distribution.of(request.ttft for request in done),
        ttft_computed=Distribution.of(request.ttft_computed for request in done),
        tpot=Distribution.of(request.tpot for request in done if request.tpot is not None),
        itl=Distribution.of(gap for request in done for gap in request.itl),
        e2e_latency=Distribution.of(request.e2e_latency for request in done),
        normalised_latency=Distribution.of(request.normalised_latency for request in done),
        passes=len(passes),
        mean_batch=_ratio(sum(len(step.spans) for step in passes), len(passes)),
        padding_share=padding_share(passes),
        kv_filled=_time_weighted((step.filled_tokens, step) for step in steps) / recording.capacity,
        kv_reserved=_time_weighted((step.reserved_tokens, step) for step in steps) / recording.capacity,
        preemptions=sum(event.kind in PREEMPTIONS for step in steps for event in step.events),
        recomputed_tokens=recomputed_tokens(steps),
    )


@dataclass(slots=True)
class _Timeline:
    """Moments of one sequence: its first pass, its first sampled token, and each delivery."""

    started: float | None = None
    sampled: float | None = None
    deliveries: list[float] = field(default_factory=list)
    tokens: int = 0
    finish_reason: str | None = None


def request_metrics(recording: Recording) -> list[RequestMetrics]:
    """The metrics of each request that completed in all its branches, in order of arrival at the scheduler."""
    timelines = _timelines(recording.steps)
    families = ((request, [timelines[name] for name in branch_names(request)]) for request in recording.requests)
    return [_of_request(request, family) for request, family in families if _complete(family)]


def branch_names(request: RequestRecord) -> list[str]:
    """The names under which steps record a request's sequences."""
    return [request.id] if request.n == 1 else [f"{request.id}.{branch}" for branch in range(request.n)]


def _timelines(steps: Iterable[StepRecord]) -> Mapping[str, _Timeline]:
    timelines: dict[str, _Timeline] = defaultdict(_Timeline)
    for step in steps:
        for span in step.spans:
            line = timelines[span.sequence]
            line.started = step.start if line.started is None else line.started
        for name, _ in step.sampled:
            line = timelines[name]
            line.sampled = step.end if line.sampled is None else line.sampled
        for name, tokens in step.delivered:
            timelines[name].deliveries.append(step.end)
            timelines[name].tokens += tokens
        for name, reason in step.finished:
            timelines[name].finish_reason = reason
    return timelines


def _complete(family: Iterable[_Timeline]) -> bool:
    return all(line.finish_reason in COMPLETE for line in family)


def _of_request(request: RequestRecord, family: list[_Timeline]) -> RequestMetrics:
    arrival = request.arrival
    ttft = min(line.deliveries[0] for line in family) - arrival
    e2e_latency = max(line.deliveries[-1] for line in family) - arrival
    longest = max(line.tokens for line in family)
    itl = tuple(gap for line in family for gap in _gaps(line.deliveries))
    return RequestMetrics(
        id=request.id,
        arrival=arrival,
        prompt_tokens=request.prompt_tokens,
        output_tokens=sum(line.tokens for line in family),
        queue_time=min(line.started for line in family if line.started is not None) - arrival,
        ttft=ttft,
        ttft_computed=min(line.sampled for line in family if line.sampled is not None) - arrival,
        itl=itl,
        tpot=(e2e_latency - ttft) / (longest - 1) if itl else None,
        e2e_latency=e2e_latency,
        normalised_latency=e2e_latency / longest,
    )


def _gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


def padding_share(steps: Sequence[StepRecord]) -> float:
    """Share of the computed tokens that nobody needed: padding and held rows."""
    computed = sum(step.computed_tokens for step in steps)
    return _ratio(computed - sum(step.useful_tokens for step in steps), computed)


@dataclass(frozen=True, slots=True)
class Waste:
    """What became of the tokens that the model computed.

    useful   tokens that some request needed
    padding  places beside spans that are shorter than their pass's rectangle
    held     rows of finished sequences, over the rectangle's whole width
    """

    useful: int
    padding: int
    held: int


def waste(steps: Iterable[StepRecord]) -> Waste:
    """Count useful, padding and held tokens; together they are all that was computed."""
    useful = padding = held = 0
    for step in steps:
        rows = len(step.spans) + len(step.held)
        in_held_rows = step.computed_tokens * len(step.held) // rows if rows else 0
        useful += step.useful_tokens
        held += in_held_rows
        padding += step.computed_tokens - step.useful_tokens - in_held_rows
    return Waste(useful, padding, held)


def recomputed_tokens(steps: Iterable[StepRecord]) -> int:
    """Tokens computed again below the mark that their sequence had reached when a preemption dropped its cache."""
    reached: dict[str, int] = defaultdict(int)
    lost: dict[str, int] = defaultdict(int)
    again = 0
    for step in steps:
        for event in step.events:
            if event.kind in CACHE_LOSSES:
                lost[event.sequence] = reached[event.sequence]
        for span in step.spans:
            end = span.start + span.length
            again += max(0, min(end, lost[span.sequence]) - span.start)
            reached[span.sequence] = max(reached[span.sequence], end)
    return again


def _duration(recording: Recording) -> float:
    deliveries = [step.end for step in recording.steps if step.delivered]
    arrivals = [request.arrival for request in recording.requests]
    return deliveries[-1] - min(arrivals) if deliveries else 0.0


def _time_weighted(values: Iterable[tuple[float, StepRecord]]) -> float:
    weighted, time = 0.0, 0.0
    for value, step in values:
        weighted += value * (step.end - step.start)
        time += step.end - step.start
    return _ratio(weighted, time)


def _ratio(amount: float, whole: float) -> float:
    return float(amount / whole) if whole else 0.0
