"""``minillm doctor``: what this machine can run."""

import typer
from rich import print as show
from rich.markup import escape
from rich.table import Table

from minillm.doctor import Finding, examine

COLOURS = {"ok": "green", "limit": "yellow", "missing": "red"}


def doctor() -> None:
    """Say what this machine can run, what minillm chose, and how to get the rest.

    The exit code is 0 when all that the course needs is there.
    """
    missing = False
    for finding in examine():
        show(row(finding))
        missing = missing or finding.verdict == "missing"
    raise typer.Exit(1 if missing else 0)


def row(finding: Finding) -> Table:
    """A finding as a line, its text wrapped in its own column and followed by the remedy."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=7, style=COLOURS[finding.verdict])
    grid.add_column(width=8)
    grid.add_column()
    grid.add_row(finding.verdict, finding.subject, escape(finding.text))
    if finding.remedy:
        grid.add_row("", "", escape(finding.remedy))
    return grid
