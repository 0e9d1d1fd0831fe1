"""What a launch may ask of a GPU, of any compute capability from 5.0 on."""

from typing import Any

import numpy as np

from kernels.lab.order import Dimensions
from kernels.lab.source import LabError

SOURCE = 'CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"'
MOST_THREADS = 1024
"""Of a block."""
MOST_IN_BLOCK: Dimensions = (1024, 1024, 64)
"""Threads in each dimension."""
MOST_IN_GRID: Dimensions = (2**31 - 1, 65535, 65535)
"""Blocks in each dimension."""
MOST_SHARED = 48 * 1024
"""Bytes of a block, static and dynamic together: what it gets without asking for more."""
MOST_SHARED_ON_REQUEST = 227 * 1024
"""Bytes on compute capability 9.0, for dynamic arrays of kernels that ask; numba and numba-cuda 0.30 cannot."""


def dimensions(sizes: Any) -> Dimensions:
    """A grid's or block's three sizes, from a number or up to three. Raises LabError for what is no size."""
    given = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    whole = all(isinstance(size, int | np.integer) and size >= 1 for size in given)
    if not 1 <= len(given) <= 3 or not whole:
        raise LabError(f"{sizes} is no size of a grid or block; give one to three whole numbers of at least 1")
    x, y, z = (*map(int, given), 1, 1)[:3]
    return x, y, z


def shared_bytes(size: Any) -> int:
    """Bytes of dynamic shared memory. Raises LabError for what is no number of bytes."""
    if not isinstance(size, int | np.integer) or size < 0:
        raise LabError(f"{size} is no size of dynamic shared memory; give whole bytes, 0 or more")
    return int(size)


def require_launchable(grid: Dimensions, block: Dimensions) -> None:
    """Raises LabError for more blocks or threads than a GPU takes."""
    x, y, z = block
    if x * y * z > MOST_THREADS:
        rule = f"a GPU takes from 1 to {MOST_THREADS} in one block"
        raise LabError(f"a block of {x} x {y} x {z} threads: {rule} ({SOURCE})")
    _require_at_most("a block", "threads", block, MOST_IN_BLOCK)
    _require_at_most("a grid", "blocks", grid, MOST_IN_GRID)


def _require_at_most(what: str, of: str, sizes: Dimensions, most: Dimensions) -> None:
    for axis, size, limit in zip("xyz", sizes, most, strict=True):
        if size > limit:
            raise LabError(f"{size} {of} in {axis}: {what} takes at most {limit} ({SOURCE})")


def require_shared(static: int, dynamic: int) -> None:
    """Raises LabError for more bytes of shared memory than a block gets."""
    if static + dynamic > MOST_SHARED:
        more = f"up to {MOST_SHARED_ON_REQUEST} are for kernels that ask for more, which numba's cannot"
        raise LabError(
            f"{static + dynamic} bytes of shared memory in a block, {dynamic} of them dynamic: it gets at most "
            f"{MOST_SHARED} ({SOURCE}; {more}); make the arrays smaller, or take them in turns"
        )
