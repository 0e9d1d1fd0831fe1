"""Runs as Chrome trace events, for Perfetto and chrome://tracing.

The format is Google's "Trace Event Format": objects with a phase ``ph``, a process ``pid``, a track ``tid`` and times
in microseconds. Here a process is a policy, track 0 its passes, and every further track a sequence.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from minillm.records import Recording, StepRecord
from minillm.report.activity import Activities, Activity, Stretch, activities

Event = Mapping[str, Any]
"""One object of the format."""

DETAILS = ("computed_tokens", "useful_tokens", "context_tokens", "swapped_out", "swapped_in", "copied")
"""Figures of ``StepRecord`` that a pass shows when it is selected."""


def trace(recordings: Iterable[Recording]) -> str:
    """All runs as one JSON document, a process each; times on their engines' clocks, in microseconds."""
    events = [event for pid, recording in enumerate(recordings, 1) for event in _events(pid, recording)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _events(pid: int, recording: Recording) -> Iterator[Event]:
    found = activities(recording)
    yield from _names(pid, recording.policy, found.sequences)
    for step in recording.steps:
        yield _slice(pid, 0, f"pass {step.index}", (step.start, step.end), _pass_details(step))
        yield from _counters(pid, step)
    for stretch in found.stretches:
        yield from _of_stretch(pid, stretch, recording.steps)
    yield from _instants(pid, found, recording.steps)


def _names(pid: int, policy: str, sequences: Sequence[str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": policy}}
    for tid, name in enumerate(("passes", *sequences)):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _pass_details(step: StepRecord) -> Mapping[str, Any]:
    details = {key: getattr(step, key) for key in DETAILS}
    return {"layout": step.layout, "sequences": len(step.spans), "held rows": len(step.held), **details}


def _counters(pid: int, step: StepRecord) -> Iterator[Event]:
    """Queues and memory when the pass was scheduled. Viewers stack the values: the two of memory add up to reserved."""
    queues = {"running": step.running, "waiting": step.waiting, "swapped": step.swapped}
    memory = {"filled": step.filled_tokens, "reserved, not filled": step.reserved_tokens - step.filled_tokens}
    for name, values in (("queues", queues), ("KV tokens", memory)):
        yield {"ph": "C", "pid": pid, "name": name, "ts": _us(step.start), "args": values}


def _of_stretch(pid: int, stretch: Stretch, steps: Sequence[StepRecord]) -> Iterator[Event]:
    """A slice per computed pass; one for all the time that a sequence waited, beyond that of its own passes."""
    if stretch.activity is Activity.IN_FLIGHT:  # which the slice of its pass shows
        return
    tid, name = stretch.row + 1, stretch.activity.value
    if not stretch.tokens and not stretch.padding:
        following = steps[stretch.last].start if stretch.last < len(steps) else steps[-1].end
        yield _slice(pid, tid, name, (steps[stretch.first].start, min(steps[stretch.last - 1].end, following)), {})
        return
    for place in range(stretch.first, stretch.last):
        start = stretch.start + (place - stretch.first) * stretch.tokens
        details = {"pass": steps[place].index, "start": start, "tokens": stretch.tokens, "padding": stretch.padding}
        yield _slice(pid, tid, name, (steps[place].start, steps[place].end), details)


def _instants(pid: int, found: Activities, steps: Sequence[StepRecord]) -> Iterator[Event]:
    """What the scheduler did to sequences, and how they ended."""
    tids = {name: tid for tid, name in enumerate(found.sequences, 1)}
    for step in steps:
        for event in step.events:
            yield _instant(pid, tids[event.sequence], event.kind, step.start, event.reason)
        for name, reason in step.finished:
            yield _instant(pid, tids[name], "finished", step.end, reason)


def _slice(pid: int, tid: int, name: str, times: tuple[float, float], details: Mapping[str, Any]) -> Event:
    """Something that lasts, from the first to the second of these ``times`` in seconds."""
    start, end = map(_us, times)
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start,
        "dur": round(end - start, 3),
        "args": details,
    }


def _instant(pid: int, tid: int, name: str, moment: float, reason: str) -> Event:
    """Something that happens at ``moment``, in seconds."""
    details = {"reason": reason} if reason else {}
    return {"ph": "i", "s": "t", "pid": pid, "tid": tid, "name": name, "ts": _us(moment), "args": details}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
