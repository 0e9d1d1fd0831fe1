"""``minillm compare``: one workload, several policies, side by side."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import print as show

from minillm.commands.files import see_writable
from minillm.records import Recording, write_jsonl
from minillm.report.progress import progress_bar

if TYPE_CHECKING:
    from minillm.comparison import Stage
    from minillm.policies import Capacity, Policy
    from minillm.request import Request
    from minillm.simulator.workload import Length

DEFAULT_POLICIES = "single,naive-static,static,dynamic,ragged,orca,vllm,splitfuse"
DEFAULT_KV_TOKENS = 1024
"""Few enough that memory is what the policies must economise on."""


def compare(
    *,
    policies: Annotated[str, typer.Option(help="Names of policies, separated by commas.")] = DEFAULT_POLICIES,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 48,
    lengths: Annotated[
        str, typer.Option(help="lognormal, fixed, or a CSV or JSONL file of prompt_tokens and output_tokens.")
    ] = "lognormal",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Mean tokens of a prompt.")] = 40,
    output_tokens: Annotated[int, typer.Option(min=1, help="Mean tokens of an output.")] = 16,
    rate: Annotated[float, typer.Option(help="Requests per second; inf sends all at once.")] = float("inf"),
    burstiness: Annotated[float, typer.Option(help="Shape of the Gamma gaps between arrivals; 1 is Poisson.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of lengths and arrivals.")] = 0,
    kv_tokens: Annotated[
        int | None, typer.Option(help=f"Tokens of cache for every policy. [default: {DEFAULT_KV_TOKENS}, or the GPU's]")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in a pass.")] = 16,
    token_budget: Annotated[int, typer.Option(help="Most tokens in a pass, where prompts are cut.")] = 64,
    model: Annotated[Path | None, typer.Option(help="GGUF file or Hugging Face folder.")] = None,
    virtual: Annotated[str | None, typer.Option(help="Simulate this GPU, such as A100-80GB; no model runs.")] = None,
    virtual_model: Annotated[str, typer.Option(help="The model to simulate.")] = "Llama-2-7B",
    records: Annotated[Path | None, typer.Option(help="Write all records to this file, as JSON lines.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file: the runs, pass by pass.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write a trace to this file, for ui.perfetto.dev.")] = None,
    timeline: Annotated[bool, typer.Option(help="Draw each policy's passes.")] = True,
) -> None:
    """Serve one workload under several policies, and show what each makes of the same model and memory.

    Outputs are greedy, and as long as fixed beforehand: all do equal work.
    They must give the same text, and that is checked.
    A real run is measured on this machine; a virtual one is simulated, and says so.
    """
    from minillm.comparison import differences, real_stage
    from minillm.metrics import summarise
    from minillm.policies import capacity_for, policy_named
    from minillm.report.agreement import agreement, unfinished
    from minillm.report.table import comparison
    from minillm.simulator.workload import arrival_times, build_workload, lengths_named

    chosen = [policy_named(name.strip()) for name in policies.split(",")]
    sizes = lengths_named(lengths, requests, prompt_tokens, output_tokens, seed)
    arrivals = arrival_times(len(sizes), rate, seed, burstiness)
    if virtual and model:
        raise ValueError("--virtual runs no model and simulates the one that --virtual-model names; leave --model out")
    if virtual is None:
        stage = real_stage(model, sizes, DEFAULT_KV_TOKENS)
    else:
        stage = _virtual_stage(virtual, virtual_model, sizes, seed)
    workload = build_workload(sizes, stage.prompts, arrivals)
    capacity = capacity_for(workload, stage.kv_tokens if kv_tokens is None else kv_tokens, max_num_seqs, token_budget)

    title = f"{len(workload)} requests, {stage.title}"
    with _saved(_Files(records, perfetto, html), title) as recordings:
        answers = _serve_all(stage, chosen, capacity, workload, recordings)

    if timeline:
        _show_timelines(chosen, recordings)
    summaries = [summarise(recording) for recording in recordings]
    show(comparison(summaries, title))
    show(unfinished(summaries))
    found = []
    if stage.model:
        found = differences(answers, workload, stage.model)
        show(agreement(found, len(answers)))
    complete = all(summary.completed == summary.requests for summary in summaries)
    raise typer.Exit(0 if complete and all(difference.near_tie for difference in found) else 1)


def _virtual_stage(gpu: str, model: str, sizes: "list[Length]", seed: int) -> "Stage":
    from minillm.comparison import virtual_stage
    from minillm.simulator.gpus import gpu_named, model_shape_named

    return virtual_stage(gpu_named(gpu), model_shape_named(model), sizes, seed)


def _serve_all(
    stage: "Stage",
    policies: "list[Policy]",
    capacity: "Capacity",
    workload: "list[Request]",
    recordings: list[Recording],
) -> dict[str, dict[str, list[int]]]:
    """Each policy's output token ids by request. Whatever ran, to its end or not, is added to ``recordings``."""
    from minillm.comparison import serve, warm_up

    answers = {}
    with progress_bar() as bar:
        for policy in policies:
            task = bar.add_task(policy.name, total=sum(request.params.max_tokens for request in workload))
            warm_up(stage, policy.build(capacity), workload[:2])
            engine = stage.engine(policy.build(capacity))
            try:
                answers[policy.name] = serve(engine, workload, partial(bar.advance, task))
            finally:
                recordings.append(replace(engine.recording(policy.name), capacity=capacity.kv_tokens))
    return answers


def _show_timelines(policies: "list[Policy]", recordings: list[Recording]) -> None:
    from minillm.report.timeline import Timeline, legend

    for policy, recording in zip(policies, recordings, strict=True):
        show(f"[italic]{policy.summary}[/]", Timeline(recording), "", sep="\n")
    show(legend(), "")


@dataclass(frozen=True, slots=True)
class _Files:
    """Where to leave what: nowhere, where a path is None."""

    records: Path | None
    perfetto: Path | None
    html: Path | None

    def check(self) -> None:
        """Raises ValueError for a path that could not be written to, or is given twice."""
        see_writable((("records", self.records), ("the trace", self.perfetto), ("the page", self.html)))

    def write(self, recordings: list[Recording], title: str) -> None:
        """The page comes last: it may turn out to be too large. There is none where nothing ran."""
        from minillm.report.page import page
        from minillm.report.perfetto import trace

        if self.records is not None:
            write_jsonl(self.records, recordings)
        if self.perfetto is not None:
            self.perfetto.write_text(trace(recordings), encoding="utf-8")
        if self.html is not None and any(recording.steps for recording in recordings):
            self.html.write_text(page(recordings, title), encoding="utf-8")


@contextmanager
def _saved(files: _Files, title: str) -> Iterator[list[Recording]]:
    """A list whose recordings are written to the files, however the block ends."""
    files.check()
    recordings: list[Recording] = []
    try:
        yield recordings
    finally:
        files.write(recordings, title)
