"""Compiling for a GPU that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from unittest.mock import patch

Capability = tuple[int, int]
"""Major and minor number of a compute capability."""

_COMPILING = Lock()
"""The current device is one for all threads."""


@contextmanager
def compiling_for(capability: Capability) -> Iterator[None]:
    """Stand in, within the block, for "the current device": numba compiles a kernel's device functions for it."""
    device = SimpleNamespace(compute_capability=capability)
    with _COMPILING, patch("numba.cuda.dispatcher.get_current_device", lambda: device):
        yield
