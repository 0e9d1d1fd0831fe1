"""``minillm compare``: one workload under several policies, their figures, and the check that they said the same."""

import json

import pytest
import torch
import typer
from harness import VOCAB, request
from typer.testing import CliRunner

import minillm.comparison
from minillm.commands.compare import DEFAULT_POLICIES, compare
from minillm.comparison import differences
from minillm.engine import Engine
from minillm.model.naive import generate, next_logits
from minillm.model.tiny import tiny
from minillm.model.tokenizer import ByteTokenizer
from minillm.policies import POLICIES, Capacity, capacity_for, policy_named
from minillm.schedulers.orca import Orca
from minillm.serving import LanguageModel

APP = typer.Typer()
APP.command()(compare)
VIRTUAL = ["--virtual", "A100-80GB", "--requests", "12"]
REAL = ["--model", "tiny.gguf", "--requests", "6", "--prompt-tokens", "8", "--output-tokens", "6", "--kv-tokens", "128"]


def run(*arguments):
    return CliRunner().invoke(APP, arguments, env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def tiny_weights(monkeypatch):
    """Whatever is loaded is the tiny model."""
    model = LanguageModel(tiny(0), ByteTokenizer())
    monkeypatch.setattr(minillm.comparison, "load", lambda path: model)


def test_a_virtual_run_shows_all_policies_and_says_that_it_is_simulated():
    result = run(*VIRTUAL)
    assert result.exit_code == 0
    assert "12 requests, Llama-2-7B on A100-80GB, simulated" in result.output
    for policy in DEFAULT_POLICIES.split(","):
        assert f"{policy}: " in result.output
        assert result.output.count(f"\n{policy} ") == 2
    assert result.output.count("12/12") == 8


def test_a_virtual_run_is_the_same_each_time():
    arguments = [*VIRTUAL, "--rate", "20", "--burstiness", "0.5", "--seed", "3"]
    assert run(*arguments).output == run(*arguments).output


@pytest.mark.usefixtures("tiny_weights")
def test_a_real_run_finds_identical_text_under_every_policy():
    result = run(*REAL)
    assert result.exit_code == 0, result.output
    assert "tiny, measured on this machine" in result.output
    assert "All 8 policies gave identical text" in result.output


@pytest.mark.usefixtures("tiny_weights")
def test_a_policy_that_says_something_else_fails_the_comparison(monkeypatch):
    def corrupted(engine, requests, on_tokens):
        answers = honest(engine, requests, on_tokens)
        if "r2" in answers and isinstance(engine.scheduler, Orca):
            answers["r2"][-1] = (answers["r2"][-1] + 1) % VOCAB
        return answers

    honest = minillm.comparison.serve
    monkeypatch.setattr(minillm.comparison, "serve", corrupted)
    result = run(*REAL, "--policies", "single,orca,vllm", "--no-timeline")
    assert result.exit_code == 1
    assert "error: r2" in result.output


def test_all_records_are_written_as_json_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    run(*VIRTUAL, "--policies", "vllm,orca", "--records", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["policy"] for line in lines if line["kind"] == "run"] == ["vllm", "orca"]
    assert sum(line["kind"] == "request" for line in lines) == 24
    assert all(line["schema"] == 1 for line in lines if line["kind"] == "run")


def test_a_page_and_a_trace_are_written(tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    run(*VIRTUAL, "--policies", "vllm,orca", "--html", str(page), "--perfetto", str(trace))
    assert "<title>12 requests, Llama-2-7B on A100-80GB, simulated</title>" in page.read_text(encoding="utf-8")
    processes = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in processes] == ["vllm", "orca"]


def test_an_interrupt_keeps_the_records_so_far(tmp_path, monkeypatch):
    def interrupted(engine):
        if len(engine.steps) == 5:
            raise KeyboardInterrupt
        return honest(engine)

    honest = Engine.step
    monkeypatch.setattr(Engine, "step", interrupted)
    path = tmp_path / "records.jsonl"
    result = run(*VIRTUAL, "--policies", "vllm", "--records", str(path))
    assert result.exit_code == 130
    assert sum(json.loads(line)["kind"] == "step" for line in path.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policies", "vllm,magic"], "no policy 'magic'; choose from single"),
        (["--virtual", "A9000"], "no virtual GPU 'A9000'; choose from A100"),
        (["--virtual-model", "GPT-9"], "no virtual model 'GPT-9'"),
        (["--model", "tiny.gguf"], "leave --model out"),
        (["--kv-tokens", "20"], "kv_tokens is 20"),
        (["--max-num-seqs", "0"], "max_num_seqs is 0"),
        (["--rate", "-1"], "rate is -1"),
        (["--lengths", "normal"], "lengths 'normal' are unknown"),
        (["--records", "no/such/folder/records.jsonl"], "give a file in an existing folder"),
        (["--html", "no/such/folder/page.html"], "the page cannot be written to no/such/folder/page.html"),
        (["--perfetto", "."], "the trace cannot be written to ."),
        (["--perfetto", "/proc/x"], "the trace cannot be written to /proc/x"),
        (["--html", "x", "--perfetto", "./x"], "the trace and the page cannot both be written to x; name two files"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_runs(arguments, named, monkeypatch):
    monkeypatch.setattr(Engine, "step", lambda engine: pytest.fail("it ran"))
    result = run(*VIRTUAL, *arguments)
    assert isinstance(result.exception, ValueError)
    assert named in str(result.exception)


REQUESTS = [request("A", 5, 6), request("B", 3, 4)]


def answers_of(model):
    return {each.id: generate(model, list(each.prompt_token_ids), each.params).token_ids for each in REQUESTS}


def test_equal_answers_have_no_difference():
    model = tiny(0)
    assert differences({"a": answers_of(model), "b": answers_of(model)}, REQUESTS, model) == []


def test_a_difference_names_the_first_token_and_how_far_it_is_from_the_best():
    model, right, wrong = tiny(0), answers_of(tiny(0)), answers_of(tiny(0))
    wrong["B"][2:] = [(token + 1) % VOCAB for token in wrong["B"][2:]]
    (found,) = differences({"a": right, "b": wrong}, REQUESTS, model)
    logits = next_logits(model, [*REQUESTS[1].prompt_token_ids, *right["B"][:2]])
    assert (found.request, found.position, found.policies) == ("B", 2, ("a", "b"))
    assert found.gap == pytest.approx(float(logits.max() - logits[wrong["B"][2]]))
    assert not found.near_tie


def test_tokens_with_equal_logits_are_a_near_tie():
    model, right, other = tiny(0), answers_of(tiny(0)), answers_of(tiny(0))
    twin = (right["A"][0] + 1) % VOCAB
    with torch.no_grad():
        model.head.weight[:, twin] = model.head.weight[:, right["A"][0]]
    other["A"][0] = twin
    (found,) = differences({"a": right, "b": other}, REQUESTS, model)
    assert found.near_tie


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_no_more_memory_than_it_is_given(name):
    capacity = capacity_for(REQUESTS, kv_tokens=32, max_num_seqs=4, token_budget=8)
    assert capacity == Capacity(32, max_length=11, max_output=6, max_num_seqs=4, token_budget=8)
    assert policy_named(name).build(capacity).memory.capacity <= 32
