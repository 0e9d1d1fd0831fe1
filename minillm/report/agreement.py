"""Whether all policies gave the same text, in words."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from minillm.comparison import Difference
from minillm.metrics import Summary


def agreement(found: Sequence[Difference], policies: int) -> RenderableType:
    """A line for each difference, and a last one that counts them."""
    errors = sum(not difference.near_tie for difference in found)
    if not found:
        verdict = Text(f"All {policies} policies gave identical text for every request.", style="green")
    elif errors:
        verdict = Text(f"Error: {errors} of {len(found)} differences are too large for rounding.", style="bold red")
    else:
        verdict = Text(f"Identical text, except where rounding decides a near tie ({len(found)}).", style="yellow")
    return Group(*map(_line, found), verdict)


def _line(difference: Difference) -> Text:
    kind = "near tie" if difference.near_tie else "error"
    (ours, theirs), (a, b) = difference.policies, difference.token_ids
    return Text(
        f"{kind}: {difference.request}, output token {difference.position}: {ours} chose {a}, {theirs} chose {b}; "
        f"the worse logit is {difference.gap:.2g} below the best"
    )


def unfinished(summaries: Sequence[Summary]) -> RenderableType:
    """A line for each policy that did not complete every request."""
    short = [summary for summary in summaries if summary.completed < summary.requests]
    return Group(
        *(Text(f"Error: {s.policy} completed {s.completed} of {s.requests} requests.", style="bold red") for s in short)
    )
