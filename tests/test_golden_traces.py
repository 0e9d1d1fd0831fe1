"""Each policy's decisions on small workloads, pinned by traces that were written by hand from its rules."""

import tomllib
from pathlib import Path

import pytest
from harness import POLICIES, request, simulated, trace

GOLDEN = Path(__file__).parent / "golden"
WORKLOADS = tomllib.loads((GOLDEN / "workloads.toml").read_text())
FILES = sorted(set(GOLDEN.glob("*.toml")) - {GOLDEN / "workloads.toml"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_policy_decides_as_written_by_hand(file):
    golden = tomllib.loads(file.read_text())
    scheduler = POLICIES[golden["policy"]](**golden["options"])
    engine = simulated(scheduler, [request(*entry) for entry in WORKLOADS[golden["workload"]]])
    engine.run()
    assert trace(engine.steps) == golden["passes"].strip().splitlines()
    scheduler.check_integrity()
