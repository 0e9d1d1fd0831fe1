"""``check``: how a lesson's test compares what the code did with what is due.

A bare ``assert a == b`` believes whatever ``==`` the code under test brings along, and shows two arrays to whoever
fails it. ``check`` turns both sides into plain data first, and names the first place where they differ.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

Plain = Any
"""None, bool, int, float, str, and lists and dicts of them."""

TOLERANCE = 1e-9


class CheckFailed(AssertionError):
    """What the code did is not what was due."""


class NotPlain(TypeError):
    """A value that is no plain data, so that its ``==`` cannot be trusted."""


def plain(value: Any) -> Plain:
    """The value as plain data: tensors and arrays become nested lists, tuples lists, sets sorted lists.

    Raises NotPlain for an object of any other type.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [plain(each) for each in value]
    if kind in (set, frozenset):
        return sorted((plain(each) for each in value), key=repr)
    if kind is dict:
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return value.detach().cpu().tolist()
    raise NotPlain(f"a {kind.__name__}, where numbers, texts, tensors, or lists and dicts of these were expected")


def _key(key: Any) -> str:
    return key if type(key) is str else repr(plain(key))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ: ``path`` leads there, by indices and keys."""

    path: tuple[int | str, ...]
    actual: Plain
    expected: Plain

    def place(self, axes: Sequence[str]) -> str:
        """``request 'A', position 3`` for axes ("request", "position"); the indices alone where axes are missing."""
        named = zip_longest(self.path, axes[: len(self.path)])
        return ", ".join(f"{axis} {step}" if axis else f"[{step!r}]" for step, axis in named)


def differences(actual: Plain, expected: Plain, tolerance: float = TOLERANCE) -> Iterator[Difference]:
    """Where two plain values differ, in order. Floats within ``tolerance`` of each other are equal, NaN is to NaN."""
    return _differences(actual, expected, tolerance, ())


def _differences(actual: Plain, expected: Plain, tolerance: float, path: tuple[int | str, ...]) -> Iterator[Difference]:
    if isinstance(actual, list) and isinstance(expected, list):
        for index, pair in enumerate(zip(actual, expected, strict=False)):
            yield from _differences(*pair, tolerance, (*path, index))
        if len(actual) != len(expected):
            yield Difference(path, f"{len(actual)} entries", f"{len(expected)} entries")
    elif isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key in actual and key in expected:
                yield from _differences(actual[key], expected[key], tolerance, (*path, key))
            else:
                yield Difference((*path, key), actual.get(key, "missing"), expected.get(key, "not there"))
    elif not _same(actual, expected, tolerance):
        yield Difference(path, actual, expected)


def _same(actual: Plain, expected: Plain, tolerance: float) -> bool:
    numbers = (int, float)
    if type(actual) in numbers and type(expected) in numbers and float in (type(actual), type(expected)):
        both_nan = math.isnan(actual) and math.isnan(expected)
        return both_nan or actual == expected or abs(actual - expected) <= tolerance
    return type(actual) is type(expected) and bool(actual == expected)


Check = Callable[..., None]


def compare(what: str, actual: Any, expected: Any, axes: Sequence[str] = (), tolerance: float = TOLERANCE) -> None:
    """Raise CheckFailed with the first difference, in words, if there is one."""
    due = plain(expected() if callable(expected) else expected)
    done = plain(actual)
    first = next(differences(done, due, tolerance), None)
    if first is not None:
        place = f" at {first.place(axes)}" if first.path else ""
        raise CheckFailed(f"{what}{place}: {first.actual!r}, but {first.expected!r} was due")


@pytest.fixture
def check() -> Check:
    """``check(what, actual, expected, axes=(), tolerance=1e-9)`` fails unless both are equal.

    ``what`` names the thing compared, in words a student reads ("blocks of the child"). ``expected`` may be a function
    without arguments, which is only called where no pristine process has recorded what is due. ``axes`` names the
    dimensions of nested values, outermost first.
    """
    return compare
