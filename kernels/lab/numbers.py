"""Numbers as a GPU has them: integers that wrap when they are kept, floats that overflow to infinity."""

import math
from collections.abc import Callable
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Convert = Callable[[Any], Any]

_FLOATS = frozenset((np.float16, np.float32, np.float64))
_NAMES_IN_NUMPY = {"pow": "power", "acos": "arccos", "asin": "arcsin", "atanh": "arctanh", "acosh": "arccosh"}
"""Functions of ``math`` that raise errors and have another name in numpy."""


class Integer:
    """Conversion to an integer type, to a plain int. Integers wrap; floats are cut off and saturate, NaN becomes 0.

    So says the PTX ISA of ``cvt`` from floating point to integers.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._least, self._most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def __call__(self, value: Any) -> int:
        """The integer that is kept."""
        if not isinstance(value, int | np.integer):
            return self._saturated(value)
        number = int(value)
        if self._least <= number <= self._most:
            return number
        return (number - self._least) % (self._most - self._least + 1) + self._least

    def _saturated(self, value: Any) -> int:
        if math.isnan(value):
            return 0
        return int(min(max(value, self._least), self._most))


@lru_cache
def conversion(dtype: np.dtype[Any]) -> Convert:
    """What makes of a value what an array of this type keeps."""
    if dtype.kind in "iu":
        return Integer(dtype)
    return bool if dtype.kind == "b" else dtype.type


def poisoned(shape: Any, dtype: Any) -> NDArray[Any]:
    """An array of NaN, or of -1 or large numbers where the type has no NaN."""
    values = np.full(size_in_bytes(shape, dtype), 255, np.uint8).view(np.dtype(dtype))
    return np.asarray(values.reshape(shape))


def size_in_bytes(shape: Any, dtype: Any) -> int:
    """Of an array."""
    return int(np.dtype(dtype).itemsize) * (prod(shape) if isinstance(shape, tuple) else int(shape))


def plain_number(value: Any) -> Any:
    """numpy's integers as plain ints, which overflow nowhere; anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def divisor(value: Any) -> Any:
    """What to divide by in the place of ``value``: a Python zero becomes numpy's, which raises no error.

    numba compiles kernels with its error model "numpy": by zero, floats give infinity or NaN, and integers 0.
    """
    return value if value or value.__class__ not in _ZEROS else _ZEROS[value.__class__](value)


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` as numba compiles it: integers stay integers, floats become infinity or NaN."""
    if isinstance(base, int | np.integer) and isinstance(exponent, int | np.integer):
        return base**exponent if exponent >= 0 else int(base == 1) if base != -1 else 1 - exponent % 2 * 2
    if base.__class__ in _PYTHONS and exponent.__class__ in _PYTHONS:
        return float(np.float64(base) ** np.float64(exponent))
    return base**exponent


_PYTHONS = (int, float, bool)
_ZEROS: dict[type, Convert] = {int: np.int64, bool: np.int64, float: np.float64}


def poison_like(value: Any) -> Any:
    """What stands for a value that is undefined: NaN, or -1 for integers."""
    return -1 if isinstance(value, int | np.integer) else type(value)("nan")


def integer(value: Any = 0) -> int:
    """``int(value)``: NaN is 0, and what is too large the largest."""
    return int(value) if isinstance(value, int | np.integer | np.bool_) else conversion(np.dtype(np.int64))(value)


def rounded(value: Any, digits: int | None = None) -> Any:
    """``round(value)``, likewise; with digits a float."""
    if digits is None and not isinstance(value, int | np.integer):
        return integer(np.rint(value))
    return round(value, digits)


def divided(value: Any, by: Any) -> tuple[Any, Any]:
    """``divmod(value, by)`` without an error for a zero."""
    by = divisor(by)
    return value // by, value % by


GPU_BUILTINS: dict[str, Any] = {"int": integer, "round": rounded, "divmod": divided, "pow": power}
"""What kernels get for these builtins of Python."""


class GpuMath(SimpleNamespace):
    """The module ``math`` as kernels have it: float32 stays float32, and there are infinities instead of errors."""

    def __init__(self) -> None:
        functions = {name: value for name, value in vars(math).items() if callable(value) and name[0] != "_"}
        guarded = {name: _without_errors(name, value) for name, value in functions.items()}
        super().__init__(**vars(math) | guarded | {"trunc": integer})


def _without_errors(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the result in the first argument's type, and numpy's result where ``math`` raises an error."""
    in_numpy: Any = getattr(np, _NAMES_IN_NUMPY.get(name, name), None)

    def called(first: Any, *others: Any) -> Any:
        try:
            value = function(first, *others)
        except (OverflowError, ValueError):
            if in_numpy is None:
                raise
            value = float(in_numpy(float(first), *map(float, others)))
        kind = first.__class__
        return kind(value) if kind in _FLOATS and value.__class__ is float else value

    return called


class GpuNumpy:
    """The module ``numpy`` as kernels have it: calling an integer type gives a plain int, which overflows nowhere."""

    def __getattr__(self, name: str) -> Any:
        return plain(getattr(np, name))


def plain(value: Any) -> Any:
    """The conversion in place of one of numpy's integer or boolean types; anything else as it is."""
    if isinstance(value, type) and issubclass(value, np.integer | np.bool_) and value not in (np.integer,):
        return conversion(np.dtype(value))
    return value
