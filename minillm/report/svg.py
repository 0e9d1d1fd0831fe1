"""The house style as SVG: fills with their hatches, and the escaping that names from outside need."""

from collections.abc import Iterator
from html import escape

from minillm.report.activity import Activity
from minillm.report.house import LOOKS


def patterns(prefix: str) -> str:
    """Definitions ``{prefix}{place}`` of how each activity is filled, in the order of ``Activity``."""
    return "".join(_patterns(prefix))


def _patterns(prefix: str) -> Iterator[str]:
    for place, activity in enumerate(Activity):
        look = LOOKS[activity]
        lines = f'<path d="{look.lines}" stroke="{look.ink}" stroke-width=".8"/>' if look.lines else ""
        yield (
            f'<pattern id="{prefix}{place}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<path d="M0,0h8v8h-8z" fill="{look.fill}"/>{lines}</pattern>'
        )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """A line of text, whatever characters it has."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
