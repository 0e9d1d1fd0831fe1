"""Runs as one HTML page: a slider through the passes, what each did, queues and memory. Needs no server and no network.

The page holds its data as JSON and draws it with the script in ``assets/page.js``. Columns of figures are stored as
differences from pass to pass, and what sequences did as stretches of equal passes, so that thousands of passes fit.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Any

from minillm.metrics import Summary, branch_names, summarise
from minillm.records import Recording, RequestRecord
from minillm.report.activity import MOMENTS, Activities, Activity, activities, by_pass, pass_tokens, spread
from minillm.report.house import LOOKS, SIGNS
from minillm.report.svg import patterns

MAX_BYTES = 2_000_000
"""Largest page: what a browser opens at once and a mail takes."""
MAX_ROWS = 200
"""Most sequences drawn per run."""

SPENT = (Activity.PREFILL, Activity.CHUNK, Activity.DECODE, Activity.RECOMPUTE, Activity.HELD, Activity.PADDING)
"""What a pass spends tokens on, in the order of the page's columns."""
COUNTS = (
    "waiting",
    "running",
    "swapped",
    "reserved_tokens",
    "filled_tokens",
    "context_tokens",
    "swapped_out",
    "swapped_in",
    "copied",
)
"""Figures of ``StepRecord`` that the page shows for each pass."""
HEADINGS = (
    "policy",
    "completed",
    "time, s",
    "output tok/s",
    "TTFT p50, s",
    "TTFT p99, s",
    "E2E p50, s",
    "mean batch",
    "padding",
    "KV filled",
    "preemptions",
)


def page(recordings: Sequence[Recording], title: str = "minillm: runs side by side") -> str:
    """A whole HTML document about these runs, in their order.

    Of more than ``MAX_ROWS`` sequences as many are drawn, evenly spread over all; figures per pass count all.
    Raises ValueError where no run has a pass, and where the page would be larger than ``MAX_BYTES``.
    """
    runs = [recording for recording in recordings if recording.steps]
    if not runs:
        raise ValueError("no run has a pass to draw; serve at least one request")
    data = {
        "runs": [run_data(recording) for recording in runs],
        "activities": [[activity.value, LOOKS[activity].height] for activity in Activity],
        "spent": [list(Activity).index(activity) for activity in SPENT],
        "moments": [[kind, SIGNS[kind].glyph, SIGNS[kind].colour] for kind in MOMENTS],
    }
    document = Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        patterns=patterns("fill"),
        summary=_table([summarise(recording) for recording in runs]),
        data=embedded(data),
        script=_asset("page.js"),
    )
    size = len(document.encode())
    if size > MAX_BYTES:
        raise ValueError(
            f"the page would take {size / 1e6:.1f} MB, and its limit is {MAX_BYTES / 1e6:g} MB; "
            "compare fewer policies, or serve fewer requests"
        )
    return document


def embedded(data: object) -> str:
    """JSON that may stand in a script element, whatever its strings say."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def run_data(recording: Recording, max_rows: int = MAX_ROWS) -> Mapping[str, Any]:
    """A run as the script reads it: columns of differences from pass to pass, and times in microseconds.

    start      of each pass; length is what it took, spent its tokens by what they were for, as in ``SPENT``
    counts     columns of the records' figures, as in ``COUNTS``
    rows       name, arrival, prompt tokens and most output tokens of each sequence drawn
    stretches  row, passes since the row's last stretch ended, passes, activity, start, tokens, padding; one list
    moments    pass, row, kind; one list
    ends       row and reason of each sequence that finished
    """
    found = activities(recording)
    shown = {row: place for place, row in enumerate(spread(len(found.sequences), max_rows))}
    steps = recording.steps
    stretches = by_pass(found, len(steps))
    spent = [pass_tokens(step, mine) for step, mine in zip(steps, stretches, strict=True)]
    return {
        "policy": recording.policy,
        "capacity": recording.capacity,
        "sequences": len(found.sequences),
        "rows": _rows(recording.requests, found.sequences, shown),
        "passes": len(steps),
        "padded": _differences([int(step.layout == "padded") for step in steps]),
        "start": _differences([_us(step.start) for step in steps]),
        "length": _differences([_us(step.end) - _us(step.start) for step in steps]),
        "spent": [_differences([tokens.get(activity, 0) for tokens in spent]) for activity in SPENT],
        "counts": {name: _differences([getattr(step, name) for step in steps]) for name in COUNTS},
        "stretches": _stretches(found, shown),
        "moments": _moments(found, shown),
        "ends": _ends(recording, found.sequences, shown),
    }


def _rows(requests: Iterable[RequestRecord], names: Sequence[str], shown: Mapping[int, int]) -> list[list[Any]]:
    owners = {name: request for request in requests if not request.refused for name in branch_names(request)}
    drawn = [(names[row], owners[names[row]]) for row in shown]
    return [[name, _us(request.arrival), request.prompt_tokens, request.max_tokens] for name, request in drawn]


def _stretches(found: Activities, shown: Mapping[int, int]) -> list[int]:
    """Seven numbers for each stretch of the rows drawn."""
    kinds = {activity: place for place, activity in enumerate(Activity)}
    numbers: list[int] = []
    last = dict.fromkeys(shown, 0)
    for stretch in found.stretches:
        if stretch.row in shown:
            place, gap = shown[stretch.row], stretch.first - last[stretch.row]
            last[stretch.row] = stretch.last
            tokens = (stretch.start, stretch.tokens, stretch.padding)
            numbers += (place, gap, stretch.passes, kinds[stretch.activity], *tokens)
    return numbers


def _moments(found: Activities, shown: Mapping[int, int]) -> list[int]:
    """Three numbers for each moment of the rows drawn."""
    numbers: list[int] = []
    for moment in found.moments:
        if moment.row in shown:
            numbers += (moment.place, shown[moment.row], MOMENTS.index(moment.kind))
    return numbers


def _ends(recording: Recording, names: Sequence[str], shown: Mapping[int, int]) -> list[list[Any]]:
    places = {names[row]: place for row, place in shown.items()}
    return [[places[name], reason] for step in recording.steps for name, reason in step.finished if name in places]


def _differences(values: Sequence[int]) -> list[int]:
    """From each value to the next, the first from 0; nothing for a column of zeros."""
    return [after - before for before, after in pairwise((0, *values))] if any(values) else []


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _table(summaries: Iterable[Summary]) -> str:
    """The runs' figures, as rows of an HTML table."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in HEADINGS)
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(map(_table_row, summaries))}</tbody>"


def _table_row(summary: Summary) -> str:
    speeds = (summary.duration, summary.output_tokens_per_s)
    latencies = (summary.ttft.p50, summary.ttft.p99, summary.e2e_latency.p50)
    cells = (
        f"{summary.completed}/{summary.requests}",
        *(f"{figure:.3g}" for figure in (*speeds, *latencies, summary.mean_batch)),
        f"{summary.padding_share:.0%}",
        f"{summary.kv_filled:.0%}",
        f"{summary.preemptions}",
    )
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(summary.policy)}</th>{row}</tr>'


def _asset(name: str) -> str:
    return (files("minillm.report") / "assets" / name).read_text(encoding="utf-8")
