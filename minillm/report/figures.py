"""Pictures of runs, caches and comparisons, for notebooks and for print. They need matplotlib: the extra ``notebooks``.

Every function returns a ``Picture``, which a notebook shows when it is the last expression of a cell, or by
``display(picture)``; ``picture.savefig("name.png")`` saves it. Nothing here touches pyplot, whose ``show`` would not
know these figures. Equal records give equal PNGs, byte for byte, under the same version of matplotlib.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from minillm.metrics import Summary
from minillm.records import Recording
from minillm.report.activity import Activities, Activity, Stretch, activities, by_pass, pass_tokens, spread
from minillm.report.house import FAINT, INK, LOOKS, MARKERS, PAPER, SERIES, SIGNS, TINTS, Look

Axis = Literal["passes", "time"]
Latency = Literal["ttft", "ttft_computed", "tpot", "itl", "e2e_latency", "normalised_latency"]

WIDTH = 8.0
"""Inches; with ``DPI`` as wide as a notebook's or a book's column."""
DPI = 110
MOST_SEPARATED = 80
"""Passes up to which each has its own cell; more are drawn as bands."""
TOKENS = (Activity.PREFILL, Activity.CHUNK, Activity.DECODE, Activity.RECOMPUTE, Activity.HELD, Activity.PADDING)
LATENCIES: Mapping[Latency, str] = {
    "ttft": "time to first token, s",
    "ttft_computed": "time to first token computed, s",
    "tpot": "time per output token, s",
    "itl": "inter-token latency, s",
    "e2e_latency": "end-to-end latency, s",
    "normalised_latency": "normalised latency, s per output token",
}


class Picture(Figure):
    """A figure that notebooks show without pyplot, on white in dark pages too."""

    def __init__(self, height: float) -> None:
        """``height`` in inches."""
        super().__init__(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER, layout="constrained")
        FigureCanvasAgg(self)

    def png(self) -> bytes:
        """The picture as a file: the same bytes each time."""
        file = BytesIO()
        self.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def timeline_figure(
    recording: Recording, *, axis: Axis = "passes", passes: range | None = None, max_rows: int = 24
) -> Picture:
    """A run as sequences x passes, and below it what the tokens of every pass were for.

    axis      whether passes are equally wide or as wide as their time, in seconds on the engine's clock
    passes    draw only these
    max_rows  draw at most so many sequences, evenly spread over all

    Passes may overlap, in a pipeline. Then a bar in time covers all of its pass, and the tokens of a pass stand between
    the end of the pass before it and its own. Raises ValueError for a recording or a range without passes.
    """
    scale = _scale(recording, axis, passes)
    found = activities(recording)
    shown = spread(len(found.sequences), max_rows)
    figure = Picture(1.9 + 0.2 * len(shown))
    ratios = [max(1.0, 0.2 * len(shown)), 0.9]
    rows, tokens = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    _draw_rows(rows, found, {row: place for place, row in enumerate(shown)}, scale)
    _draw_tokens(tokens, recording, found, scale)
    count = f"{len(shown)} of {len(found.sequences)}" if len(shown) < len(found.sequences) else f"{len(shown)}"
    _head(rows, f"{recording.policy}: {count} sequences, {len(recording.steps)} passes")
    rows.set_yticks(range(len(shown)), [found.sequences[row] for row in shown], fontsize=8)
    _finish(tokens, scale, "tokens")
    _legend(figure, _seen(found, hidden={Activity.IN_FLIGHT} if axis == "time" else set()))
    return figure


def queue_figure(recording: Recording, *, axis: Axis = "passes", passes: range | None = None) -> Picture:
    """Sequences in the scheduler's queues, and the cache's places set aside and filled, when each pass was scheduled.

    Options and errors are those of ``timeline_figure``.
    """
    scale = _scale(recording, axis, passes)
    figure = Picture(3.6)
    queues, memory = figure.subplots(2, 1, sharex=True)
    steps = [recording.steps[place] for place in scale.places]
    edges = scale.all_edges
    lines = (("waiting", SERIES[1], "--"), ("running", SERIES[0], "-"), ("swapped", SERIES[6], ":"))
    for name, colour, dashes in lines:
        values = [getattr(step, name) for step in steps]
        if any(values) or name != "swapped":
            queues.stairs(values, edges, baseline=None, color=colour, linestyle=dashes, linewidth=1.6, label=name)
    reserved = [step.reserved_tokens for step in steps]
    filled = [step.filled_tokens for step in steps]
    memory.stairs(reserved, edges, fill=True, facecolor="#cfe3f1", edgecolor=SERIES[0], hatch="//", label="reserved")
    memory.stairs(filled, edges, fill=True, facecolor=SERIES[0], label="filled")
    memory.axhline(recording.capacity, color=INK, linewidth=1, linestyle="--", label="capacity")
    for panel in (queues, memory):
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
        panel.set_ylim(bottom=0)
        _plain(panel)
    _head(queues, f"{recording.policy}: queues and cache")
    queues.set_ylabel("sequences", fontsize=8)
    _finish(memory, scale, "KV tokens")
    return figure


def block_map_figure(
    tables: Mapping[str, Sequence[int]],
    num_blocks: int,
    *,
    block_size: int | None = None,
    filled: Mapping[str, int] | None = None,
    columns: int = 16,
    title: str = "",
) -> Picture:
    """Who owns which block of the cache: the block tables above, the cache's blocks in order below.

    tables      each sequence's blocks, in the order of its tokens
    block_size  tokens of a block; with ``filled``, each sequence's tokens, partly filled blocks show how far they are
    columns     blocks in a line

    A block of several sequences is hatched and names them all; a free one is empty. Raises ValueError for a block
    that is not in the cache, and for ``filled`` without ``block_size`` or with more tokens than the blocks hold.
    """
    _check_tables(tables, num_blocks, block_size, filled or {})
    tints = dict(zip(tables, cycle(TINTS), strict=False))
    shares = {name: _shares(len(table), block_size, (filled or {}).get(name)) for name, table in tables.items()}
    owners: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, table in tables.items():
        for place, block in enumerate(table):
            owners[block].append((name, place))
    lines = -(-num_blocks // columns)
    longest = max(map(len, tables.values()), default=0)
    figure = Picture(1.2 + 0.34 * len(tables) + 0.46 * lines)
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": [max(0.34, 0.34 * len(tables)), 0.46 * lines]})
    for line, (name, table) in enumerate(tables.items()):
        for place, block in enumerate(table):
            _cell(above, place, line, tints[name], shares[name][place], len(owners[block]) > 1, str(block))
    for block in range(num_blocks):
        line, column = divmod(block, columns)
        mine = owners.get(block, [])
        share = max((shares[name][place] for name, place in mine), default=0.0)
        words = "\n".join(f"{name}:{place}" for name, place in mine[:2]) + ("\n\u2026" if len(mine) > 2 else "")
        _cell(below, column, line, tints[mine[0][0]] if mine else PAPER, share, len(mine) > 1, words)
        below.text(column - 0.44, line - 0.4, str(block), fontsize=5.5, color="#5a5a5a", va="top", ha="left")
    above.set_yticks(range(len(tables)), list(tables), fontsize=8)
    below.set_yticks(range(lines), [str(line * columns) for line in range(lines)], fontsize=8)
    _grid(above, max(longest, columns), len(tables), "block tables: each sequence's blocks in the order of its tokens")
    free = num_blocks - len(owners)
    _grid(below, columns, lines, f"cache: {num_blocks} blocks, {free} free; a cell names sequence:place in its table")
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def comparison_figure(summaries: Iterable[Summary], *, latency: Latency = "normalised_latency") -> Picture:
    """Throughput against latency on a logarithmic scale: a run's median, and a line up to its 99th percentile.

    Runs of one policy, say at several rates, are joined in the order given.
    """
    runs: dict[str, list[Summary]] = defaultdict(list)
    for summary in summaries:
        runs[summary.policy].append(summary)
    figure = Picture(3.8)
    axes = figure.subplots()
    for (policy, points), colour, marker in zip(runs.items(), cycle(SERIES), cycle(MARKERS), strict=False):
        speeds = [point.output_tokens_per_s for point in points]
        spreads = [getattr(point, latency) for point in points]
        for speed, spread_of in zip(speeds, spreads, strict=True):
            axes.plot([speed, speed], [spread_of.p50, spread_of.p99], color=colour, linewidth=1, alpha=0.6)
        medians = [spread_of.p50 for spread_of in spreads]
        axes.plot(speeds, medians, color=colour, marker=marker, markeredgecolor=INK, markersize=8, label=policy)
    _head(axes, "throughput and latency: best is down and right")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlim(left=0)
    axes.set_xlabel("output tokens per second", fontsize=8)
    axes.set_ylabel(f"{LATENCIES[latency]}: p50 to p99", fontsize=8)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    _plain(axes)
    return figure


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where passes lie on the x axis. ``edges`` are the beginning and the end of every pass of the recording."""

    axis: Axis
    places: range
    edges: Sequence[tuple[float, float]]

    def span(self, first: int, last: int) -> tuple[float, float]:
        """From the beginning of the first pass to the end of the one before ``last``."""
        return self.edges[max(first, self.places.start)][0], self.edges[min(last, self.places.stop) - 1][1]

    @property
    def limits(self) -> tuple[float, float]:
        return self.span(self.places.start, self.places.stop)

    @property
    def all_edges(self) -> list[float]:
        """The beginnings of the passes drawn, and the last one's end."""
        return [*(self.edges[place][0] for place in self.places), self.limits[1]]

    def slot(self, place: int) -> tuple[float, float]:
        """The pass, without what the one before it overlaps."""
        start, end = self.edges[place]
        return max(start, self.edges[place - 1][1]) if place else start, end

    def shows(self, stretch: Stretch) -> bool:
        return stretch.first < self.places.stop and stretch.last > self.places.start


def _scale(recording: Recording, axis: Axis, passes: range | None) -> _Scale:
    places = range(len(recording.steps))
    if passes is not None:
        places = range(max(0, passes.start), min(len(places), passes.stop))
    if not places:
        raise ValueError(f"{recording.policy} has {len(recording.steps)} passes, and none of them is to be drawn")
    if axis == "time":
        return _Scale(axis, places, [(step.start, step.end) for step in recording.steps])
    return _Scale(axis, places, [(place - 0.5, place + 0.5) for place in range(len(recording.steps))])


def _draw_rows(axes: Axes, found: Activities, places: Mapping[int, int], scale: _Scale) -> None:
    """Stretches as bars; what a row computed for padding hangs from the top of its bar, as high as its share."""
    bars: dict[Activity, list[tuple[float, float, float, float]]] = defaultdict(list)
    for stretch in found.stretches:
        if stretch.row in places and scale.shows(stretch):
            left, right = scale.span(stretch.first, stretch.last)
            y, height = places[stretch.row], LOOKS[stretch.activity].height
            padded = 0.0 if stretch.activity is Activity.HELD else _padded_share(stretch)
            top, bottom = y - height / 2, y + height / 2
            cut = top + padded * height
            bars[stretch.activity].append((left, right, cut, bottom))
            if padded:
                bars[Activity.PADDING].append((left, right, top, cut))
    for activity in reversed(Activity):  # passes hide where others begin meanwhile
        if activity in bars and not (scale.axis == "time" and activity is Activity.IN_FLIGHT):
            _boxes(axes, bars[activity], LOOKS[activity])
    if len(scale.places) <= MOST_SEPARATED:
        _separate(axes, found, places, scale)
    _draw_moments(axes, found, places, scale)
    axes.set_ylim(len(places) - 0.5, -0.5)


def _separate(axes: Axes, found: Activities, places: Mapping[int, int], scale: _Scale) -> None:
    """A line between each row's passes."""
    edges = [
        (scale.edges[place][0], places[stretch.row])
        for stretch in found.stretches
        if stretch.row in places and scale.shows(stretch) and stretch.activity is not Activity.IN_FLIGHT
        for place in range(max(stretch.first, scale.places.start), min(stretch.last, scale.places.stop))
    ]
    x, y = [x for x, _ in edges], [y for _, y in edges]
    axes.vlines(x, [row - 0.5 for row in y], [row + 0.5 for row in y], color=PAPER, linewidth=0.8, zorder=3)


def _padded_share(stretch: Stretch) -> float:
    return stretch.padding / (stretch.padding + stretch.tokens) if stretch.padding else 0.0


def _draw_moments(axes: Axes, found: Activities, places: Mapping[int, int], scale: _Scale) -> None:
    for kind, sign in SIGNS.items():
        moments = [
            moment
            for moment in found.moments
            if moment.kind == kind and moment.row in places and moment.place in scale.places
        ]
        x = [sum(scale.edges[moment.place]) / 2 for moment in moments]
        y = [places[moment.row] for moment in moments]
        axes.scatter(x, y, s=34, marker=sign.marker, color=sign.colour, edgecolors=PAPER, linewidths=0.7, zorder=4)


def _draw_tokens(axes: Axes, recording: Recording, found: Activities, scale: _Scale) -> None:
    """A bar per pass, in pieces from the bottom up: what its tokens were for."""
    bars: dict[Activity, list[tuple[float, float, float, float]]] = defaultdict(list)
    stretches = by_pass(found, len(recording.steps))
    for place in scale.places:
        tokens, bottom = pass_tokens(recording.steps[place], stretches[place]), 0.0
        for activity in TOKENS:
            if tokens.get(activity):
                top = bottom + tokens[activity]
                bars[activity].append((*scale.slot(place), bottom, top))
                bottom = top
    for activity, boxes in bars.items():
        _boxes(axes, boxes, LOOKS[activity])
    if len(scale.places) <= MOST_SEPARATED:
        edges = [scale.slot(place)[0] for place in scale.places]
        axes.vlines(edges, 0, 1, transform=axes.get_xaxis_transform(), color=PAPER, linewidth=0.8, zorder=3)
    axes.autoscale_view(scalex=False)
    axes.set_ylim(bottom=0)


def _boxes(axes: Axes, boxes: Iterable[tuple[float, float, float, float]], look: Look) -> None:
    """Boxes (left, right, low, high) as one artist."""
    corners = [((left, low), (right, low), (right, high), (left, high)) for left, right, low, high in boxes]
    artist = PolyCollection(corners, facecolors=look.fill, edgecolors=look.ink, linewidths=0, hatch=look.hatch)
    artist.set_hatch_linewidth(0.6)
    axes.add_collection(artist)


def _seen(found: Activities, hidden: Set[Activity]) -> list[Any]:
    """Handles of a legend: only what occurs, and is not hidden."""
    kinds = {stretch.activity for stretch in found.stretches} - hidden
    if any(stretch.padding and stretch.activity is not Activity.HELD for stretch in found.stretches):
        kinds.add(Activity.PADDING)
    patches: list[Any] = [_swatch(LOOKS[kind], kind.value) for kind in Activity if kind in kinds]
    events = {moment.kind for moment in found.moments}
    signs = [
        Line2D([], [], linestyle="", marker=sign.marker, color=sign.colour, label=kind)
        for kind, sign in SIGNS.items()
        if kind in events
    ]
    return patches + signs


def _swatch(look: Look, label: str) -> Patch:
    patch = Patch(facecolor=look.fill, edgecolor=look.ink, linewidth=0, hatch=look.hatch, label=label)
    patch.set_hatch_linewidth(0.6)
    return patch


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    figure.legend(
        handles=handles, loc="outside lower left", ncols=min(8, max(1, len(handles))), frameon=False, fontsize=8
    )


def _head(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", color=INK)


def _finish(axes: Axes, scale: _Scale, label: str) -> None:
    axes.set_xlim(*scale.limits)
    axes.set_xlabel("pass" if scale.axis == "passes" else "time, s", fontsize=8)
    axes.set_ylabel(label, fontsize=8)
    if scale.axis == "passes":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.figure.axes:
        _plain(panel)


def _plain(axes: Axes) -> None:
    """No frame but the axes, and small labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=8, color=FAINT)


def _check_tables(
    tables: Mapping[str, Sequence[int]], num_blocks: int, block_size: int | None, filled: Mapping[str, int]
) -> None:
    if filled and block_size is None:
        raise ValueError("filled is given without block_size; give both, so that blocks can be shown as partly filled")
    for name, table in tables.items():
        outside = [block for block in table if not 0 <= block < num_blocks]
        if outside:
            raise ValueError(f"{name} owns block {outside[0]}, and the cache has blocks 0 to {num_blocks - 1}")
        if block_size is not None and filled.get(name, 0) > len(table) * block_size:
            room = len(table) * block_size
            raise ValueError(f"{name} has {filled[name]} tokens, and its {len(table)} blocks hold {room}")


def _shares(blocks: int, block_size: int | None, tokens: int | None) -> list[float]:
    """How full each of a sequence's blocks is, from 0 to 1; all are where that was not told."""
    if block_size is None or tokens is None:
        return [1.0] * blocks
    return [min(1.0, max(0.0, tokens / block_size - place)) for place in range(blocks)]


def _cell(axes: Axes, x: float, y: float, fill: str, share: float, shared: bool, words: str) -> None:
    """A block: filled from the left by its share, hatched where shared."""
    left, top, size = x - 0.46, y - 0.42, (0.92, 0.84)
    axes.add_patch(Rectangle((left, top), *size, facecolor=PAPER, edgecolor=FAINT, linewidth=0.8, zorder=1))
    if share:
        axes.add_patch(Rectangle((left, top), size[0] * share, size[1], facecolor=fill, linewidth=0, zorder=2))
    if shared:
        hatched = Rectangle((left, top), *size, fill=False, edgecolor="#7a7a7a", linewidth=0, hatch="///", zorder=2)
        hatched.set_hatch_linewidth(0.5)
        axes.add_patch(hatched)
    outline = INK if share else FAINT
    axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor=outline, linewidth=0.8, zorder=3))
    axes.text(x, y, words, fontsize=7, color=INK, ha="center", va="center", zorder=4)


def _grid(axes: Axes, columns: int, lines: int, title: str) -> None:
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(max(1, lines) - 0.5, -0.5)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    _head(axes, title)
