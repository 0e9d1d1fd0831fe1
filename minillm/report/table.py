"""Several policies side by side, in two tables that fit 80 columns: work and waste, then waiting."""

from collections.abc import Iterable, Sequence
from math import isnan, nan

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
    return Group(throughput_table(summaries, title), "", latency_table(summaries), "")


def throughput_table(summaries: Sequence[Summary], title: str) -> Table:
    """Work done, and what was wasted on it."""
    work = ["time\ns", "speed-\nup", "req/s", "output\ntok/s"]
    waste = ["mean\nbatch", "pad-\nding", "KV\nfull", "KV re-\nserved", "pre-\nempted", "done"]
    table = _table(*work, *waste)
    table.title = title
    baseline = summaries[0].output_tokens_per_s
    for summary in summaries:
        speed_up = summary.output_tokens_per_s / baseline if baseline else nan
        figures = (summary.duration, speed_up, summary.requests_per_s, summary.output_tokens_per_s, summary.mean_batch)
        shares = (summary.padding_share, summary.kv_filled, summary.kv_reserved)
        table.add_row(
            summary.policy,
            *map(_number, figures),
            *(f"{share:.0%}" for share in shares),
            str(summary.preemptions),
            f"{summary.completed}/{summary.requests}",
        )
    return table


def latency_table(summaries: Iterable[Summary]) -> Table:
    """How long clients waited: medians and 99th percentiles."""
    names = ("TTFT s", "TPOT ms", "ITL ms", "E2E s")
    table = _table(*(f"{name}\n{percentile}" for name in names for percentile in ("p50", "p99")), "computed\np50")
    table.caption = LATENCY_NOTE
    for summary in summaries:
        spreads = ((summary.ttft, 1), (summary.tpot, 1e3), (summary.itl, 1e3), (summary.e2e_latency, 1))
        figures = [value * scale for spread, scale in spreads for value in (spread.p50, spread.p99)]
        table.add_row(summary.policy, *map(_number, figures), _number(summary.ttft_computed.p50))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, caption_justify="left", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _number(value: float) -> str:
    """Three significant digits; a dash where nothing was measured."""
    if isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
