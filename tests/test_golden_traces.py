"""Each policy's decisions on small workloads, pinned by traces that were written by hand from its rules."""

import tomllib
from pathlib import Path

import pytest
from harness import POLICIES, request, simulated, timed_trace, trace

from minillm.scheduler import Load

GOLDEN = Path(__file__).parent / "golden"
WORKLOADS = tomllib.loads((GOLDEN / "workloads.toml").read_text())
FILES = sorted(set(GOLDEN.glob("*.toml")) - {GOLDEN / "workloads.toml"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_policy_decides_as_written_by_hand(file):
    golden = tomllib.loads(file.read_text())
    scheduler = POLICIES[golden["policy"]](**golden["options"])
    requests = [listed(*entry) for entry in WORKLOADS[golden["workload"]]]
    engine = simulated(scheduler, requests, cost=lambda batch: golden.get("pass_seconds", 1.0))
    engine.run()
    passes = golden["passes"].strip().splitlines()
    written = timed_trace if passes[0].startswith("@") else trace
    assert written(engine.steps) == passes
    assert scheduler.load() == Load()
    scheduler.check_integrity()


def listed(name, prompt, output, more=None):
    return request(name, prompt, output, **(more or {}))
