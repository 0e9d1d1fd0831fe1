"""Two traces beside each other, around the place where they part: 80 columns in a report that indents them."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

WIDTH = 76
BEFORE, AFTER = 2, 5
"""Passes shown before and after the first difference."""

_GAP = 2


def is_trace(value: Any) -> bool:
    """Whether a plain value is a list of lines such as ``A7 B1``, one for each pass of a scheduler."""
    return are_lines(value) and (len(value) > 3 or any(" " in line for line in value))


def are_lines(value: Any) -> bool:
    """Whether a plain value is a list of texts."""
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def side_by_side(what: str, yours: Sequence[str], due: Sequence[str], axis: str = "pass") -> str:
    """Both traces from two passes before the first difference to five after it; passes count from 0, as lists do.

    Raises ValueError for equal traces.
    """
    pairs = list(zip_longest(yours, due, fillvalue=None))
    first = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        raise ValueError(f"{what}: the traces are equal, so nothing tells them apart")
    return "\n".join(_lines(what, pairs, first, axis))


def _lines(what: str, pairs: Sequence[tuple[str | None, str | None]], first: int, axis: str) -> Iterator[str]:
    start, end = max(0, first - BEFORE), min(len(pairs), first + AFTER + 1)
    number_width = max(len(axis), len(str(end - 1))) + 2
    width = (WIDTH - number_width - 2 * _GAP) // 2
    yield f"{what}: the first difference is in {axis} {first}"
    yield f"{axis:>{number_width}}  {'yours':<{width}}  due"
    for number in range(start, end):
        a, b = (_cell(text, other, width) for text, other in (pairs[number], pairs[number][::-1]))
        mark = ">" if number == first else " "
        yield f"{mark}{number:>{number_width - 1}}  {a:<{width}}  {b}".rstrip()
    if end < len(pairs):
        yield f"{'...':>{number_width}}  and {len(pairs) - end} more"


def _cell(text: str | None, other: str | None, width: int) -> str:
    """The line, cut so that the first character in which it differs from the other is seen."""
    if text is None:
        return "(ended)"
    if len(text) <= width:
        return text
    parts = [a != b for a, b in zip_longest(text, other or "")]
    differs = parts.index(True) if True in parts else 0
    start = 0 if differs < width - 6 else max(0, min(differs - width // 2, len(text) - width + 3))
    head = "..." if start else ""
    end = start + width - len(head)
    if end < len(text):
        return f"{head}{text[start : end - 3]}..."
    return f"{head}{text[start:]}"
