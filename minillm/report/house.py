"""The house style of pictures: colours that colour-blind readers tell apart, each with a hatch that says the same.

Hues are those of Okabe and Ito, "Color Universal Design" (2008), some lightened so that greys differ in print too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.report.activity import Activity

INK = "#1a1a1a"
PAPER = "#ffffff"
FAINT = "#8a8f98"
"""Axes, outlines and whatever waits; legible on white and on black."""


@dataclass(frozen=True, slots=True)
class Look:
    """How something is filled: a colour, lines of ``ink`` across it, and the share of the row's height it takes.

    ``hatch`` is matplotlib's; ``lines`` are the same for SVG, as the path of a tile of 8 by 8.
    """

    fill: str
    hatch: str = ""
    lines: str = ""
    ink: str = INK
    height: float = 0.84


RISING, FALLING = "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4"

LOOKS: Mapping[Activity, Look] = {
    Activity.PREFILL: Look("#0072b2"),
    Activity.CHUNK: Look("#56b4e9", "///", RISING),
    Activity.DECODE: Look("#8fd3bd"),
    Activity.RECOMPUTE: Look("#e69f00", "xxx", f"{RISING} {FALLING}"),
    Activity.HELD: Look("#cc79a7", "\\\\\\", FALLING),
    Activity.PADDING: Look("#e8e8e8", "...", "M2,2 h1.6 M6,6 h1.6", "#6b6b6b"),
    Activity.HELD_BACK: Look("#f0e442", "|||", "M2,0 v8 M6,0 v8", "#7a7420", 0.5),
    Activity.SWAPPED: Look("#d8c7e8", "---", "M0,2 h8 M0,6 h8", "#6d4c8f", 0.5),
    Activity.WAITING: Look("#a0a6b0", height=0.12),
    Activity.IN_FLIGHT: Look("#8fd3bd", "///", RISING, height=0.3),
}


@dataclass(frozen=True, slots=True)
class Sign:
    """How a moment is marked: matplotlib's marker, the same as a character, and its colour."""

    marker: str
    glyph: str
    colour: str


SIGNS: Mapping[str, Sign] = {
    "preempted": Sign("X", "\u2716", "#b03a00"),
    "reset": Sign("D", "\u25c6", "#b03a00"),
    "swapped out": Sign("v", "\u25bc", "#5b2a86"),
    "swapped in": Sign("^", "\u25b2", "#5b2a86"),
}

TINTS = ("#a6cbe3", "#f6d08a", "#a8dcc9", "#e3b5cf", "#cfe8f7", "#f3b48f", "#f5ee9e", "#cfc4e3")
"""Light fills for sequences, with black text on them; after the last the first comes again."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6d4c8f", "#5a5a5a")
"""Colours of lines and points, one per policy."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
"""The shape that repeats what the colour says; one more than the colours, so that pairs differ for long."""
