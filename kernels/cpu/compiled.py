"""How the CPU kernels are compiled."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")

# Sums may be reordered, as vector instructions need it; NaN and infinity keep their meaning (no "nnan", no "ninf").
_OPTIONS: dict[str, Any] = {
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Machine code at the first call, kept on disk for the next process."""
    return njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_inline(function: Callable[P, R]) -> Callable[P, R]:
    """The same, in place of each call: passing an array takes a dozen instructions, which a short loop would feel."""
    return njit(forceinline=True, **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_parallel(function: Callable[P, R]) -> Callable[P, R]:
    """The same, with ``prange`` loops spread over numba's threads."""
    return njit(parallel=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
