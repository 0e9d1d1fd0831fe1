"""Records on disk: JSON lines that come back as they were, in a file that is whole or absent."""

import json
from dataclasses import asdict, replace

import pytest
from every_policy import SMALL, small
from harness import request, simulated

from minillm.records import SCHEMA_VERSION, Recording, RequestRecord, write_jsonl

MIX = [request("A", 9, 4), request("B", 20, 12, params={"n": 2}), request("C", 14, 9, arrival=2.5)]


def recording(policy="vllm") -> Recording:
    engine = simulated(small(policy), MIX)
    engine.run()
    return engine.recording(policy)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_json(record):
    """What a record is after a trip through JSON, which knows no tuples."""
    return json.loads(json.dumps(asdict(record)))


@pytest.mark.parametrize("policy", SMALL)
def test_every_record_comes_back_as_it_was(policy, tmp_path):
    written = recording(policy)
    write_jsonl(tmp_path / "run.jsonl", [written])
    head, *rest = lines(tmp_path / "run.jsonl")
    assert head == {"kind": "run", "schema": SCHEMA_VERSION, "policy": policy, "capacity": written.capacity}
    assert rest == [
        *({"kind": "request"} | as_json(each) for each in written.requests),
        *({"kind": "step"} | as_json(each) for each in written.steps),
    ]


def test_schema_1_is_what_readers_of_these_files_rely_on(tmp_path):
    """Whoever changes these names or their meaning raises the schema version."""
    write_jsonl(tmp_path / "run.jsonl", [recording()])
    head, *rest = lines(tmp_path / "run.jsonl")
    first = next(line for line in rest if line["kind"] == "step")
    assert head["schema"] == 1
    assert rest[0] == {
        "kind": "request", "id": "A", "arrival": 0.0, "prompt_tokens": 9, "max_tokens": 4, "n": 1, "refused": None
    }  # fmt: skip
    assert first == {
        "kind": "step", "index": 0, "start": 0.0, "end": 1.0, "layout": "ragged",
        "spans": [
            {"sequence": "A", "start": 0, "length": 9, "samples": 1, "prompt": 9},
            {"sequence": "B.0", "start": 0, "length": 20, "samples": 2, "prompt": 20},
        ],
        "held": [], "events": [], "computed_tokens": 29, "useful_tokens": 29, "context_tokens": 29,
        "swapped_out": 0, "swapped_in": 0, "copied": 0, "waiting": 0, "running": 2, "swapped": 0,
        "reserved_tokens": 30, "filled_tokens": 0,
        "sampled": [["A", 1], ["B.1", 1], ["B.0", 1]], "delivered": [["A", 1], ["B.1", 1], ["B.0", 1]], "finished": [],
    }  # fmt: skip


def test_cache_places_that_samples_share_are_counted_once():
    """Blocks of 3: the prompt's two full ones are shared, its last token is copied for two of the samples."""
    engine = simulated(small("vllm"), [request("A", 7, 4, params={"n": 3})])
    engine.run()
    assert [(step.reserved_tokens, step.filled_tokens) for step in engine.steps] == [
        (9, 0),
        (6 + 3 * 3, 6 + 3 * 1),
        (6 + 3 * 3, 6 + 3 * 2),
        (6 + 3 * 6, 6 + 3 * 3),
    ]


def test_several_runs_share_a_file(tmp_path):
    write_jsonl(tmp_path / "runs.jsonl", [recording("orca"), recording("vllm")])
    runs = [line["policy"] for line in lines(tmp_path / "runs.jsonl") if line["kind"] == "run"]
    assert runs == ["orca", "vllm"]


def test_a_write_that_fails_leaves_what_was_there_before(tmp_path):
    path = tmp_path / "run.jsonl"
    write_jsonl(path, [recording("orca")])
    before = path.read_bytes()

    def interrupted():
        yield recording("vllm")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, interrupted())
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_no_file_where_there_was_none(tmp_path):
    broken = replace(recording(), requests=(RequestRecord("A", 0.0, 1, 1, refused=object()),))
    with pytest.raises(TypeError):
        write_jsonl(tmp_path / "run.jsonl", [broken])
    assert not list(tmp_path.iterdir())
