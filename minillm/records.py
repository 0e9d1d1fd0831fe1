"""What happened, as plain numbers and names: one record per request, one per step.

Metrics, timelines, figures and graders read records; they are JSON lines on disk.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request as it arrived, in seconds on the engine's clock; ``refused`` says why if it was never queued."""

    id: str
    arrival: float
    prompt_tokens: int
    max_tokens: int
    n: int = 1
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span that ran: whose, from which token, how many, and how many tokens it was to sample.

    ``prompt`` is how many of its tokens belong to the client's prompt: all in a prefill, none in a decode.
    """

    sequence: str
    start: int
    length: int
    samples: int
    prompt: int


@dataclass(frozen=True, slots=True)
class EventRecord:
    """What the scheduler did to a sequence besides running it."""

    kind: str
    sequence: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One pass, from its scheduling (``start``) to its settling (``end``), in seconds on the engine's clock.

    held              finished rows that were computed all the same
    computed_tokens   tokens through the model, padding and held rows included
    useful_tokens     those that a request needed
    context_tokens    cached tokens that attention read, padding included
    swapped_out, swapped_in, copied    blocks moved
    waiting, running, swapped          sequences in the scheduler's queues when the pass was scheduled
    reserved_tokens, filled_tokens     cache places set aside, and those that held a token
    sampled           (sequence, tokens) computed by this pass
    delivered         (sequence, tokens) handed to clients at its end
    finished          (sequence, reason) ended at its end
    """

    index: int
    start: float
    end: float
    layout: str
    spans: tuple[SpanRecord, ...]
    held: tuple[str, ...]
    events: tuple[EventRecord, ...]
    computed_tokens: int
    useful_tokens: int
    context_tokens: int
    swapped_out: int
    swapped_in: int
    copied: int
    waiting: int
    running: int
    swapped: int
    reserved_tokens: int
    filled_tokens: int
    sampled: tuple[tuple[str, int], ...] = ()
    delivered: tuple[tuple[str, int], ...] = ()
    finished: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """All records of one run, in order. ``capacity`` is the cache's size in tokens."""

    policy: str
    capacity: int
    requests: tuple[RequestRecord, ...]
    steps: tuple[StepRecord, ...]


def write_jsonl(path: Path, recordings: Iterable[Recording]) -> None:
    """One JSON object per line: a ``run`` line per recording, then its requests and its steps.

    The file appears whole or not at all.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for recording in recordings:
                for line in _lines(recording):
                    file.write(json.dumps(line) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _lines(recording: Recording) -> Iterable[dict[str, Any]]:
    yield {
        "kind": "run",
        "schema": SCHEMA_VERSION,
        "policy": recording.policy,
        "capacity": recording.capacity,
    }
    for request in recording.requests:
        yield {"kind": "request", **asdict(request)}
    for step in recording.steps:
        yield {"kind": "step", **asdict(step)}
