"""In which order threads take turns, and how threads and blocks are numbered."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Literal

from kernels.lab.source import LabError

Dimensions = tuple[int, int, int]
Order = Literal["ascending", "descending"] | int
"""In which order threads take turns; a number seeds a random one."""
InTurn = Callable[[list[int]], Sequence[int]]
"""Puts threads, given in ascending order, in the order in which they take turns."""


def in_turn(order: Order) -> InTurn:
    """Raises LabError for an order that is neither a name nor a seed."""
    if order == "ascending":
        return lambda threads: threads
    if order == "descending":
        return lambda threads: threads[::-1]
    if not isinstance(order, int):
        raise LabError(f"the order {order!r} is unknown; use ascending, descending, or a number as seed")
    generator = random.Random(order)
    return lambda threads: generator.sample(threads, len(threads))


def indices(shape: Dimensions) -> Iterator[Dimensions]:
    """(x, y, z) of all threads of a block, or blocks of a grid, in the order of their numbers: x first."""
    for z, y, x in product(*map(range, reversed(shape))):
        yield x, y, z


def point(number: int, shape: Dimensions) -> Dimensions:
    """(x, y, z) of a thread in its block, or of a block in the grid, numbered x first."""
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def named(at: Dimensions, shape: Dimensions) -> str:
    """A thread of a block of this shape, or a block of a grid: ``3``, or ``(3, 0)`` where there are two dimensions."""
    dimensions = max((axis for axis, size in enumerate(shape, 1) if size > 1), default=1)
    return str(at[:dimensions]) if dimensions > 1 else str(at[0])


def numbered(shape: Dimensions) -> Callable[[int], str]:
    """What names a thread of a block of this shape by its number."""
    return lambda number: named(point(number, shape), shape)
