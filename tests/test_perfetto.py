"""A trace has a process per policy, a track per sequence, and counters, as viewers of Chrome traces read them."""

import json
from dataclasses import replace
from itertools import pairwise

from harness import POLICIES, request, simulated

from minillm.report.perfetto import trace

VLLM = {"num_blocks": 6, "block_size": 4, "watermark": 1}
W0 = [("A", 7, 6), ("B", 7, 6), ("C", 3, 4)]


def record():
    engine = simulated(POLICIES["vllm"](**VLLM), [request(*entry) for entry in W0])
    engine.run()
    return engine.recording("vllm")


def events(*recordings, **wanted):
    found = json.loads(trace(recordings))["traceEvents"]
    return [event for event in found if all(event.get(key) == value for key, value in wanted.items())]


def test_every_run_is_a_process_and_every_sequence_a_track():
    first = record()
    found = events(first, replace(first, policy="again"), ph="M")
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == ["vllm", "again"]
    names = [e["args"]["name"] for e in found if e["name"] == "thread_name" and e["pid"] == 1]
    assert names == ["passes", "A", "B", "C"]


def test_every_pass_and_every_span_is_a_slice():
    recording = record()
    slices = events(recording, ph="X")
    assert sum(e["tid"] == 0 for e in slices) == len(recording.steps)
    assert sum(e["args"].get("tokens", 0) for e in slices) == sum(step.useful_tokens for step in recording.steps)
    assert [e["name"] for e in slices if e["tid"] == 3] == ["prefill", "decode", "waiting", "recompute", "decode"]


def test_slices_of_a_track_follow_each_other():
    for tid in range(4):
        slices = events(record(), ph="X", tid=tid)
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3


def test_queues_and_memory_are_counted_in_every_pass():
    recording = record()
    memory = events(recording, ph="C", name="KV tokens")
    assert [sum(e["args"].values()) for e in memory] == [step.reserved_tokens for step in recording.steps]
    assert [e["args"]["waiting"] for e in events(recording, ph="C", name="queues")] == [
        step.waiting for step in recording.steps
    ]


def test_preemptions_and_ends_are_marked():
    assert [e["tid"] for e in events(record(), ph="i", name="preempted")] == [3, 2]
    assert {e["tid"]: e["args"]["reason"] for e in events(record(), name="finished")} == dict.fromkeys(
        (1, 2, 3), "length"
    )


def test_the_same_runs_give_the_same_trace():
    assert trace([record()]) == trace([record()])
