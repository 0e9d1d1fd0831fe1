"""A run as a notebook's output that needs no kernel: a picture, and a slider through its passes where scripts run."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

from minillm.records import Recording
from minillm.report.activity import Activities, Activity, Stretch, activities, spread
from minillm.report.house import FAINT, INK, LOOKS, PAPER, SIGNS
from minillm.report.svg import patterns, text

WIDTH, MARGIN, ROW, HEAD, FOOT = 860, 72, 18, 22, 40
"""Pixels: the picture's width, the names' before the rows, and the heights of a row and of what stands around them."""
PREFIX = "minillm-id"
"""Begins every id in a picture, until it is known by its content."""
MOST_SEPARATED = 80
"""Passes up to which lines part them."""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A run as sequences x passes; the last expression of a cell shows it.

    Viewers that run no scripts, such as an untrusted notebook, show all passes as an image. Equal recordings give equal
    outputs, and several of them may stand on one page. At most ``max_rows`` sequences are drawn, evenly spread.
    Raises ValueError for a recording without passes.
    """

    recording: Recording
    max_rows: int = 24

    def __post_init__(self) -> None:
        if not self.recording.steps:
            raise ValueError(f"{self.recording.policy} has no passes to draw; run the engine first")

    def __repr__(self) -> str:
        return f"TimelineView({self.recording.policy}, {len(self.recording.steps)} passes)"

    def svg(self) -> str:
        """The picture alone, on white."""
        return "".join(_Drawing(self.recording, activities(self.recording), self.max_rows).parts())

    def _repr_html_(self) -> str:
        svg = self.svg()
        name = "minillm-" + hashlib.sha256(svg.encode()).hexdigest()[:12]
        passes = len(self.recording.steps)
        label = f"{self.recording.policy}: what each of {passes} passes did with each sequence"
        return (
            f'<div data-minillm="{name}" style="max-width:{WIDTH}px">'
            '<div style="display:none;gap:.6em;align-items:center">'
            '<button type="button" aria-label="play or pause">&#9654;</button>'
            f'<input type="range" min="0" max="{passes - 1}" value="{passes - 1}" style="flex:1" aria-label="pass">'
            "<output></output></div>"
            f'<img alt="{escape(label)}" style="max-width:100%" '
            f'src="data:image/svg+xml,{quote(svg.replace(PREFIX, name))}"></div>'
            f"<script>{_script().replace('NAME', name)}</script>"
        )


@cache
def _script() -> str:
    return (files("minillm.report") / "assets" / "view.js").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Pieces of the SVG. All passes are drawn faintly, and those up to the slider's again in full."""

    recording: Recording
    found: Activities
    max_rows: int

    def parts(self) -> Iterator[str]:
        rows = spread(len(self.found.sequences), self.max_rows)
        places = {row: place for place, row in enumerate(rows)}
        bottom = HEAD + ROW * len(rows)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + FOOT}" width="{WIDTH}" '
            f'height="{bottom + FOOT}" style="background:{PAPER};color:{INK};max-width:100%;height:auto" '
            'font-family="sans-serif" font-size="11" fill="currentColor">'
        )
        yield f'<defs>{patterns(PREFIX + "-fill")}<clipPath id="{PREFIX}-seen">'
        yield f'<rect x="{MARGIN}" y="0" width="{WIDTH - MARGIN}" height="{bottom}" data-seen=""/></clipPath></defs>'
        yield text(MARGIN, 14, self._title(len(rows)))
        for row, place in places.items():
            yield text(MARGIN - 6, HEAD + ROW * place + 13, _short(self.found.sequences[row]), "end")
        yield f'<g data-all=""><g id="{PREFIX}-all">'
        yield from (
            self._bar(stretch, places[stretch.row]) for stretch in self.found.stretches if stretch.row in places
        )
        yield from self._signs(places)
        yield f'</g></g><use href="#{PREFIX}-all" clip-path="url(#{PREFIX}-seen)" pointer-events="none"/>'
        yield from self._axis(bottom)
        yield from self._legend(bottom + 34)
        yield "</svg>"

    def _title(self, shown: int) -> str:
        count = len(self.found.sequences)
        of = f"{shown} of {count}" if shown < count else f"{count}"
        return f"{self.recording.policy}: {of} sequences, {len(self.recording.steps)} passes"

    def _x(self, place: float) -> float:
        return round(MARGIN + (WIDTH - MARGIN) * place / len(self.recording.steps), 2)

    def _bar(self, stretch: Stretch, place: int) -> str:
        """A stretch with its words, the share of its row that is padding on top."""
        height = (ROW - 2) * LOOKS[stretch.activity].height
        top = HEAD + ROW * place + (ROW - height) / 2
        words = f"<title>{escape(describe(stretch, self.found.sequences[stretch.row]))}</title>"
        padded = 0.0
        if stretch.padding and stretch.activity is not Activity.HELD:
            padded = height * stretch.padding / (stretch.padding + stretch.tokens)
        boxes = [(stretch.activity, top + padded, height - padded), (Activity.PADDING, top, padded)]
        left, right = self._x(stretch.first), self._x(stretch.last)
        drawn = "".join(_rect(left, y, right, tall, kind) for kind, y, tall in boxes if tall)
        return f"<g>{words}{drawn}{self._separators(stretch, top, height)}</g>"

    def _separators(self, stretch: Stretch, top: float, height: float) -> str:
        if len(self.recording.steps) > MOST_SEPARATED:
            return ""
        lines = "".join(f"M{self._x(place):g},{top:g}v{height:g}" for place in range(stretch.first, stretch.last))
        return f'<path d="{lines}" stroke="{PAPER}" stroke-width="1"/>'

    def _signs(self, places: dict[int, int]) -> Iterator[str]:
        for moment in self.found.moments:
            if moment.row in places:
                x, y = self._x(moment.place + 0.5), HEAD + ROW * places[moment.row] + 13
                sign = SIGNS[moment.kind]
                yield (
                    f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="{sign.colour}" stroke="{PAPER}" '
                    f'stroke-width="2" paint-order="stroke">{sign.glyph}<title>{moment.kind}, pass {moment.place}'
                    "</title></text>"
                )

    def _axis(self, bottom: int) -> Iterator[str]:
        passes = len(self.recording.steps)
        yield f'<path d="M{MARGIN},{bottom + 0.5}H{WIDTH}" stroke="{FAINT}"/>'
        for place in range(0, passes, max(1, -(-passes // 12))):
            yield text(self._x(place + 0.5), bottom + 14, str(place), "middle")
        yield text(MARGIN - 6, bottom + 14, "pass", "end")

    def _legend(self, y: int) -> Iterator[str]:
        """What occurs, in words."""
        kinds = {stretch.activity for stretch in self.found.stretches}
        if any(stretch.padding and stretch.activity is not Activity.HELD for stretch in self.found.stretches):
            kinds.add(Activity.PADDING)
        x = MARGIN
        for kind in Activity:
            if kind in kinds:
                yield _rect(x, y - 9, x + 14, 10, kind) + text(x + 18, y, kind.value)
                x += 34 + 6 * len(kind.value)
        events = {moment.kind for moment in self.found.moments}
        for name, sign in SIGNS.items():
            if name in events:
                yield f'<g fill="{sign.colour}">{text(x, y, sign.glyph)}</g>{text(x + 14, y, name)}'
                x += 34 + 6 * len(name)


def describe(stretch: Stretch, sequence: str) -> str:
    """A stretch in words."""
    passes = f"pass {stretch.first}" if stretch.passes == 1 else f"passes {stretch.first} to {stretch.last - 1}"
    tokens = f", tokens {stretch.start} to {stretch.end - 1}" if stretch.tokens else ""
    padding = f", {stretch.padding} of padding a pass" if stretch.padding else ""
    return f"{sequence}: {stretch.activity.value}, {passes}{tokens}{padding}"


def _rect(left: float, top: float, right: float, height: float, kind: Activity) -> str:
    fill = f"url(#{PREFIX}-fill{list(Activity).index(kind)})"
    return f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{height:g}" fill="{fill}"/>'


def _short(name: str, most: int = 11) -> str:
    return name if len(name) <= most else name[: most - 1] + "\u2026"
