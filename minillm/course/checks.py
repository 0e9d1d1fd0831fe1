"""``check``: how a lesson's test compares what the code did with what is due.

A bare ``assert a == b`` believes whatever ``==`` the code under test brings along, and shows two arrays to whoever
fails it. ``check`` turns both sides into plain data first, and names the first place where they differ.
"""

import base64
import hashlib
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from minillm.course.failures import NEARLY_DUE
from minillm.course.grades import CheckDigest
from minillm.course.side_by_side import are_lines, is_trace, side_by_side

Plain = Any
"""None, bool, int, float, str, and lists and dicts of them."""

Packed = Any
"""Plain data for a JSON file, with arrays as compressed bytes."""

TOLERANCE = 1e-9

_SHORT = 60
"""Characters of a value that is shown whole."""

_FEW = 5
"""Lines that are shown where none was due."""

_SCALARS = frozenset(np.sctypeDict.values())


class CheckFailed(AssertionError):
    """What the code did is not what was due."""


class NotPlain(TypeError):
    """A value that is no plain data, so that its ``==`` cannot be trusted."""


def plain(value: Any) -> Plain:
    """The value as plain data: tensors and arrays become nested lists, tuples lists, sets sorted lists.

    Types are taken exactly: a subclass may bring its own ``==`` or ``tolist``. Raises NotPlain for an object of any
    other type.
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
    if (kind is np.ndarray or kind in _SCALARS) and value.dtype.kind in "biufU":
        return value.tolist()
    if _is_tensor(value):
        return value.detach().cpu().tolist()
    raise NotPlain(
        f"a value of type {kind.__name__}, where numbers, texts, tensors, or lists and dicts of these were expected"
    )


def _key(key: Any) -> str:
    return key if type(key) is str else repr(plain(key))


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever made a tensor has imported it
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def pack(value: Any) -> Packed:
    """``plain(value)`` in a form that JSON holds and that stays small: ``unpack`` gives it back."""
    kind = type(value)
    if kind in (list, tuple):
        return [pack(each) for each in value]
    if kind is dict:
        return {"dict": {_key(key): pack(each) for key, each in value.items()}}
    if _is_tensor(value) and not value.dtype.itemsize < 4:
        value = value.detach().cpu().numpy()
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode()
        return {"array": [value.dtype.str, list(value.shape), data]}
    return plain(value)


def unpack(packed: Packed) -> Plain:
    """The plain data that ``pack`` was given."""
    if isinstance(packed, list):
        return [unpack(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if "dict" in packed:
        return {key: unpack(each) for key, each in packed["dict"].items()}
    dtype, shape, data = packed["array"]
    return np.frombuffer(zlib.decompress(base64.b64decode(data)), dtype).reshape(shape).tolist()


def digest(value: Plain) -> str:
    """Equal for values whose floats agree in six significant digits: hexadecimal, 12 characters."""
    return hashlib.sha256(json.dumps(_rounded(value), sort_keys=True).encode()).hexdigest()[:12]


def _rounded(value: Plain) -> Plain:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return f"{value + 0.0:.6g}" if isinstance(value, float) else value  # + 0.0: minus zero is zero


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ: ``path`` leads there, by indices and keys."""

    path: tuple[int | str, ...]
    actual: Plain
    expected: Plain

    def place(self, axes: Sequence[str]) -> str:
        """``request A, position 3`` for axes ("request", "position"); the indices alone where axes are missing."""
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
            yield Difference(path, Entries(actual), Entries(expected))
    elif isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key in actual and key in expected:
                yield from _differences(actual[key], expected[key], tolerance, (*path, key))
            else:
                yield Difference((*path, key), actual.get(key, NOTHING), expected.get(key, NOTHING))
    elif not _same(actual, expected, tolerance):
        yield Difference(path, actual, expected)


class Entries:
    """Stands for a list of another length than its counterpart, and shows its length."""

    def __init__(self, entries: Sequence[Plain]) -> None:
        self.count = len(entries)

    def __repr__(self) -> str:
        return f"{self.count} {'entry' if self.count == 1 else 'entries'}"


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
"""Stands for the value of a key that is not there."""


def _same(actual: Plain, expected: Plain, tolerance: float) -> bool:
    numbers = (int, float)
    if type(actual) in numbers and type(expected) in numbers and float in (type(actual), type(expected)):
        both_nan = math.isnan(actual) and math.isnan(expected)
        return both_nan or actual == expected or abs(actual - expected) <= tolerance
    return type(actual) is type(expected) and bool(actual == expected)


def compare(what: str, actual: Any, expected: Any, axes: Sequence[str] = (), tolerance: float = TOLERANCE) -> None:
    """Raise CheckFailed in words if ``actual`` differs from what is due, and NotPlain if it cannot be compared."""
    __tracebackhide__ = True  # a debugger stops in the test, not here
    due = plain(expected() if callable(expected) else expected)
    compare_plain(what, plain(actual), due, axes, tolerance)


def compare_plain(what: str, actual: Plain, due: Plain, axes: Sequence[str], tolerance: float) -> None:
    """The same for plain data: the first difference, and how many values differ. Traces are shown side by side.

    Lines where none was due, such as the faults of a kernel, are shown themselves.
    """
    __tracebackhide__ = True
    found = list(differences(actual, due, tolerance))
    if not found:
        return
    if is_trace(due) and are_lines(actual):
        raise CheckFailed(side_by_side(what, actual, due, axes[0] if axes else "pass"))
    if due == [] and are_lines(actual):
        raise CheckFailed("\n".join(_undue(what, actual)))
    raise CheckFailed("\n".join(_words(what, actual, due, found, axes)))


def _undue(what: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"{what}: there should be none, but there {'is one' if len(lines) == 1 else f'are {len(lines)}'}"
    yield from (f"  {line}" for line in lines[:_FEW])
    if len(lines) > _FEW:
        yield f"  and {len(lines) - _FEW} more"


def _words(what: str, actual: Plain, due: Plain, found: Sequence[Difference], axes: Sequence[str]) -> Iterator[str]:
    first = found[0]
    place = f" at {first.place(axes)}" if first.path else ""
    yield f"{what}{place}: {_shown(first)}"
    if not first.path and not isinstance(first.actual, Entries):
        return
    values, all_values = sum(not isinstance(each.expected, Entries) for each in found), _leaves(due)
    if values and all_values > 1:
        yield f"{values} of {all_values} values {'differs' if values == 1 else 'differ'}"
    if max(len(repr(actual)), len(repr(due))) <= _SHORT:
        yield f"  yours: {actual!r}"
        yield f"  due:   {due!r}"


def _shown(difference: Difference) -> str:
    """Floats with six digits, where these tell them apart."""
    pair = difference.actual, difference.expected
    texts = [f"{value:.6g}" if isinstance(value, float) else _cut(repr(value)) for value in pair]
    actual, due = texts if texts[0] != texts[1] else map(repr, pair)
    return f"{actual}, but {due} {'were' if isinstance(difference.expected, Entries) else 'was'} due"


def _cut(text: str, width: int = 2 * _SHORT) -> str:
    return text if len(text) <= width else f"{text[:width]}... ({len(text)} characters)"


def _leaves(value: Plain) -> int:
    if isinstance(value, dict | list):
        return sum(map(_leaves, value.values() if isinstance(value, dict) else value))
    return 1


Due = Callable[[str, str, Any], Plain]
"""What is due as plain data, for the id of a test, the key of a check in it and the test's own ``expected``."""


def called(test: str, key: str, expected: Any) -> Plain:
    """As the test says."""
    return plain(expected() if callable(expected) else expected)


@dataclass(frozen=True, slots=True)
class Recording:
    """As the test says, and written down: test id -> key of the check -> what is due."""

    due: dict[str, dict[str, Packed]] = field(default_factory=dict)

    def __call__(self, test: str, key: str, expected: Any) -> Plain:
        """What the test says is due."""
        packed = pack(expected() if callable(expected) else expected)
        self.due.setdefault(test, {})[key] = packed
        return unpack(packed)


@dataclass(frozen=True, slots=True)
class Recorded:
    """As a Recording has it; ``expected`` is never looked at, for it may come from the code under test."""

    due: Mapping[str, Mapping[str, Packed]]

    def __call__(self, test: str, key: str, expected: Any) -> Plain:
        """What was recorded. Raises CheckFailed for a check that the reference never made."""
        recorded = self.due.get(test, {})
        if key not in recorded:
            raise CheckFailed(f"{key}: was compared although the reference never comes to that point")
        return unpack(recorded[key])


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of one test, and the digests of what they met."""

    test: str
    due: Due = called
    log: list[CheckDigest] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def __call__(
        self,
        what: str,
        actual: Any,
        expected: Any,
        axes: Sequence[str] = (),
        tolerance: float = TOLERANCE,
        alike: Any = None,
    ) -> None:
        """As ``check`` below."""
        __tracebackhide__ = True
        self._counts[what] += 1
        key = what if self._counts[what] == 1 else f"{what} #{self._counts[what]}"
        due = self.due(self.test, key, expected)
        done = self._plain(key, what, actual)
        self.log.append(CheckDigest(key, digest(done if alike is None else self._plain(key, what, alike))))
        try:
            compare_plain(what, done, due, axes, tolerance)
        except CheckFailed:
            if alike is None and digest(due) == digest(done):
                self.log[-1] = CheckDigest(key, NEARLY_DUE)
            raise

    def _plain(self, key: str, what: str, actual: Any) -> Plain:
        try:
            return plain(actual)
        except NotPlain as error:
            self.log.append(CheckDigest(key, f"type {type(actual).__name__}"))
            raise NotPlain(f"{what}: {error}") from None


DUE = pytest.StashKey[Due]()
"""Set in pytest's configuration where what is due is recorded, or was."""

CHECKS = pytest.StashKey[Checks]()
"""Set in a test's item by the fixture."""

Check = Callable[..., None]


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Check:
    """``check(what, actual, expected, axes=(), tolerance=1e-9, alike=None)`` fails unless both are equal.

    ``what`` names the thing compared, in words a student reads ("blocks of the child"). ``expected`` may be a function
    without arguments, which is only called where no pristine process has recorded what is due. ``axes`` names the
    dimensions of nested values, outermost first. ``alike`` is what ``actual`` has in common with that of whoever made
    the same mistake, where ``actual`` holds line numbers and the like: by it mistakes are recognised.
    """
    checks = Checks(request.node.nodeid, request.config.stash.get(DUE, called))
    request.node.stash[CHECKS] = checks
    return checks
