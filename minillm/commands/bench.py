"""``minillm bench``: measure the parts that have to be fast."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich import print as show
from rich.progress import track
from rich.table import Table

from minillm.doctor import install_command

Measurement = TypeVar("Measurement")

app = typer.Typer(help="Measure the parts that have to be fast, both sides of each comparison in one run.")


@app.command()
def serving(
    *,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests, all at once.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="Mean tokens of prompts and of outputs.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the lengths.")] = 0,
    model: Annotated[Path | None, typer.Option(help="GGUF file or Hugging Face folder.")] = None,
) -> None:
    """Serve one workload one by one, in static batches and with SplitFuse; output tokens per second."""
    from minillm.bench.serving import POLICIES, measure

    speeds = list(_tracked(measure(model, requests, tokens, seed), len(POLICIES), "serving"))
    rows = [
        (
            each.policy,
            f"{each.output_tokens_per_s:.1f}",
            f"{each.output_tokens_per_s / speeds[0].output_tokens_per_s:.2f}",
            f"{each.overhead_share:.1%}",
        )
        for each in speeds
    ]
    header = ("policy", "output tok/s", f"vs {speeds[0].policy}", "outside the forward pass")
    show(_table(f"{requests} requests, lognormal around {tokens} tokens both ways", header, rows))
    fewest = min(each.weights_seconds for each in speeds)
    show(f"A sum over the weights takes {fewest * 1e3:.1f} ms here: at most {1 / fewest:.0f} passes a second.")


@app.command()
def linear() -> None:
    """Matrix products in two layouts of the weights and in bfloat16."""
    from minillm.bench.linear import ROWS, measure

    rows = [
        (
            f"{each.rows}",
            f"{each.inputs_first * 1e6:.0f}",
            f"{each.outputs_first / each.inputs_first:.2f}",
            f"{each.bfloat16 / each.inputs_first:.2f}",
        )
        for each in _tracked(measure(), len(ROWS), "products")
    ]
    header = ("rows", "inputs x outputs, us", "outputs x inputs", "bfloat16")
    show(_table("Time of one product, and that of the others relative to it", header, rows))


@app.command()
def attention(
    *,
    sequences: Annotated[int | None, typer.Option(min=1, help="Decode only so many sequences.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Decode only contexts of so many tokens.")] = None,
) -> None:
    """Paged attention: decode against sums over the same memory, and all against torch; about a minute."""
    from minillm.bench.attention import CHUNKS, DECODES, measure_decode, measure_prefill
    from minillm.serving import share_threads

    share_threads()
    shapes = list(dict.fromkeys((sequences or many, context or length) for many, length in DECODES))
    decodes = [measure_decode(*shape) for shape in _tracked(shapes, len(shapes), "decode steps")]
    decoded = [
        (
            f"{many} x {length}",
            f"{each.kv_bytes / 2**20:.0f}",
            f"{each.gigabytes_per_s:.1f}",
            _share(each.share_of_sum),
            _share(each.share_of_page_sum),
            f"{each.speed_against_torch:.2f}",
        )
        for (many, length), each in zip(shapes, decodes, strict=True)
    ]
    header = (
        "sequences\nx context",
        "K and V,\nMiB",
        "GB/s",
        "of a sum's\nspeed",
        "of a sum\nby blocks",
        "against\ntorch",
    )
    show(_table(f"Decode, {decodes[0].threads} threads", header, decoded))
    show("A dash: more than half of K and V may come from a cache, or its size is unknown.")
    show("torch's keys and values were gathered before.\n")
    chunks = [measure_prefill(*shape) for shape in _tracked(CHUNKS, len(CHUNKS), "prompt chunks")]
    rows = [
        (f"{each.rows} of {each.context}", f"{each.attention_seconds * 1e3:.2f}", f"{each.speed_against_torch:.2f}")
        for each in chunks
    ]
    show(_table("Prompt chunks", ("rows of context", "time, ms", "speed against torch"), rows))


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


@app.command()
def lab() -> None:
    """The kernel lab against numba's own simulator, without and with checks; about half a minute."""
    from minillm.bench.lab import measure

    rows = [
        (
            each.kernel,
            f"{each.simulator:.2f}",
            f"{each.bare * 1e3:.0f}",
            f"{each.simulator / each.bare:.0f}",
            f"{each.checked * 1e3:.0f}",
            f"{each.simulator / each.checked:.0f}",
        )
        for each in measure()
    ]
    header = ("kernel", "simulator, s", "lab, ms", "times as fast", "with checks, ms", "times as fast")
    show(_table("Processor time of one launch in numba's simulator and in the kernel lab", header, rows))


@app.command()
def ptx() -> None:
    """Registers and memory of the CUDA kernels, compiled for GPUs that are not there; about a minute."""
    from kernels.ptx import KERNELS, can_compile
    from minillm.bench.ptx import VARIANTS, measure

    if not can_compile():
        raise ValueError(f"the CUDA compiler is not installed; run {install_command('cuda')}")
    taken = list(_tracked(measure(), len(KERNELS), "kernels"))
    rows = [(each.kernel, *map(str, each.registers), f"{each.shared_bytes}") for each in taken]
    variants = [f"sm_{major}{minor}\n{storage}" for (major, minor), storage in VARIANTS]
    header = ("kernel", *variants, "shared,\nbytes")
    show(_table(f"Registers of a thread (numba-cuda {version('numba-cuda')})", header, rows))
    show(f"Bytes that a thread spills, at most: {max(each.spilled_bytes for each in taken)}")


def _tracked(measurements: Iterable[Measurement], total: int, what: str) -> Iterable[Measurement]:
    return track(measurements, f"measuring {what}", total=total, transient=True)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for index, column in enumerate(header):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
