"""Several policies side by side, in two tables that fit 80 columns: work and waste, then waiting."""

from collections.abc import Iterable, Sequence
from math import isnan

from rich import box
from rich.console import Group
from rich.table import Table

from minillm.metrics import Summary

LATENCY_NOTE = (
    "computed: when the first token was ready, though some policies deliver whole answers at their end. "
    "Latencies from arrival; with all requests at once they are mostly queue."
)


def comparison(summaries: Sequence[Summary], title: str) -> Group:
    """Both tables. Speed-up is in output tokens per second, against the first policy."""
    return Group(throughput_table(summaries, title), latency_table(summaries))


def throughput_table(summaries: Sequence[Summary], title: str) -> Table:
    """Work done, and what was wasted on it."""
    table = _table(
        ["time\ns", "speed-\nup", "req/s", "output\ntok/s", "mean\nbatch", "pad-\nding", "KV\nfull", "KV re-\nserved"],
        ["pre-\nempted", "done"],
    )
    table.title = title
    for summary in summaries:
        speedup = (
            summary.output_tokens_per_s / summaries[0].output_tokens_per_s if summaries[0].completed else float("nan")
        )
        shares = (summary.padding_share, summary.kv_filled, summary.kv_reserved)
        table.add_row(
            summary.policy,
            *map(_number, (summary.duration, speedup, summary.requests_per_s, summary.output_tokens_per_s)),
            _number(summary.mean_batch),
            *(f"{share:.0%}" for share in shares),
            str(summary.preemptions),
            f"{summary.completed}/{summary.requests}",
        )
    return table


def latency_table(summaries: Iterable[Summary]) -> Table:
    """How long clients waited: medians and 99th percentiles."""
    names = ["TTFT s", "TPOT ms", "ITL ms", "E2E s"]
    table = _table(
        [f"{name}\n{percentile}" for name in names for percentile in ("p50", "p99")],
        ["computed\np50"],
    )
    table.caption = LATENCY_NOTE
    for summary in summaries:
        seconds = [summary.ttft, summary.tpot, summary.itl, summary.e2e_latency]
        scaled = zip(seconds, (1, 1e3, 1e3, 1), strict=True)
        table.add_row(
            summary.policy,
            *(_number(value * scale) for spread, scale in scaled for value in (spread.p50, spread.p99)),
            _number(summary.ttft_computed.p50),
        )
    return table


def _table(*headings: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left", title_justify="left"
    )
    table.add_column("policy", no_wrap=True)
    for heading in (name for group in headings for name in group):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _number(value: float) -> str:
    """Three digits that count; a dash where nothing was measured."""
    if isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
