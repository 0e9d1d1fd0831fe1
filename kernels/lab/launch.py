"""Running kernels in the lab: ``with check(): kernel[grid, block](...)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from kernels.lab.allocation import FastArrays
from kernels.lab.arrays import CheckedArray, PlainIntegers, unchecked
from kernels.lab.block import Block
from kernels.lab.checked import CheckedLaunch
from kernels.lab.compiler import ERRORS, CUDADispatcher, from_dtype
from kernels.lab.inference import BITWISE, infer
from kernels.lab.intrinsics import Intrinsics
from kernels.lab.limits import dimensions, require_launchable
from kernels.lab.limits import shared_bytes as whole_bytes
from kernels.lab.numbers import plain_number
from kernels.lab.order import Dimensions, InTurn, Order, in_turn, indices, numbered
from kernels.lab.rebind import Program
from kernels.lab.report import Report
from kernels.lab.source import LabError

Launch = Callable[[Any, list[Any], Dimensions, Dimensions, int], None]
"""Of a kernel: its arguments, blocks of the grid, threads of a block, and bytes of dynamic shared memory."""
THREADS = 128
"""Of a block, where ``forall`` is left to choose."""


@contextmanager
def check(order: Order = "ascending", late_stores: bool = True) -> Iterator[list[Report]]:
    """Within the block kernels run in the lab, with all checks; each launch adds a report to the list.

    With ``late_stores`` a thread's stores are seen by others only after the next barrier, so that a missing barrier
    is wrong every time. Raises what the kernel raises, with kernel, block, thread and values noted, and LabError for
    what no GPU could run.
    """
    reports: list[Report] = []
    turns = in_turn(order)

    def launch(kernel: Any, arguments: list[Any], grid: Dimensions, block: Dimensions, shared_bytes: int) -> None:
        launched = CheckedLaunch(kernel, grid, block, str(order), turns, late_stores)
        reports.append(launched.run(arguments, shared_bytes))

    with _launching(launch):
        yield reports


@contextmanager
def run(order: Order = "ascending") -> Iterator[None]:
    """Within the block kernels run in the lab as fast as it can, without any check."""
    turns = in_turn(order)

    def launch(kernel: Any, arguments: list[Any], grid: Dimensions, block: Dimensions, shared_bytes: int) -> None:
        with np.errstate(all="ignore"):
            _run_unchecked(kernel, arguments, grid, block, shared_bytes, turns)

    with _launching(launch):
        yield


def _run_unchecked(
    kernel: Any, arguments: list[Any], grid: Dimensions, shape: Dimensions, shared_bytes: int, turns: InTurn
) -> None:
    arrays = FastArrays(shared_bytes)
    intrinsics = Intrinsics(grid, shape, arrays)
    program = Program(intrinsics, arrays.constant, recorder=None)
    function = program.rebound(kernel.py_func)
    if any(name in BITWISE for code in program.codes.values() for name in code.co_names):
        with suppress(LabError):  # a kernel that the compiler refuses runs all the same, without checks
            intrinsics.operand_bits = infer(kernel, arguments).operand_bits
    given = [unchecked(value) if isinstance(value, np.ndarray) else plain_number(value) for value in arguments]
    at = list(indices(shape))
    enter, named = intrinsics.entering(at), numbered(shape)
    for index in indices(grid):
        intrinsics.enter_block(index)
        Block(len(at), turns, enter, lambda block: None, lambda warp, mask: None, named).run(function, given)


_SWITCHING = Lock()
_labs: list[Launch] = []
"""Open labs of all threads, the latest last; ``numba.cuda`` is patched as long as there is one."""
_own_lab: ContextVar[Launch | None] = ContextVar("own_lab", default=None)
"""The innermost lab that was opened in the running thread or task."""


@contextmanager
def _launching(launch: Launch) -> Iterator[None]:
    """Within the block ``kernel[grid, block]`` and ``kernel.forall(n)`` launch so, without numba or a GPU.

    A thread that has opened no lab launches in the one opened last.
    """
    with _SWITCHING:
        _labs.append(launch)
        if len(_labs) == 1:
            _PATCH.start()
    before = _own_lab.get()
    _own_lab.set(launch)
    try:
        yield
    finally:
        _own_lab.set(before)
        with _SWITCHING:
            _labs.remove(launch)
            if not _labs:
                _PATCH.stop()


def _configure(kernel: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> "_Configured":
    own = _own_lab.get()
    launch = own if own in _labs else _labs[-1]
    return _Configured(kernel, launch, dimensions(griddim), dimensions(blockdim), whole_bytes(sharedmem))


def _forall(kernel: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> "_Configured":
    threads = tpb or THREADS
    return _configure(kernel, -(-ntasks // threads), threads, stream, sharedmem)


def _call(kernel: Any, arguments: Any, *configuration: Any) -> None:
    """What was configured outside: numba gives grid, block, stream and bytes, numba-cuda an object with them."""
    named = [getattr(configuration[0], each, None) for each in ("griddim", "blockdim", "stream", "sharedmem")]
    _configure(kernel, *(named if len(configuration) == 1 else configuration))(*arguments)


_PATCH: Any = patch.multiple(CUDADispatcher, configure=_configure, forall=_forall, call=_call)


@dataclass(frozen=True, slots=True)
class _Configured:
    """A kernel with its grid: calling it launches it."""

    kernel: Any
    launch: Launch
    grid: Dimensions
    block: Dimensions
    shared_bytes: int

    def __call__(self, *arguments: Any) -> None:
        takes = self.kernel.py_func.__code__.co_argcount
        if len(arguments) != takes:
            raise LabError(f"{self.kernel.py_func.__name__} takes {takes} arguments and is given {len(arguments)}")
        require_launchable(self.grid, self.block)
        try:
            self.launch(self.kernel, list(map(argument, arguments)), self.grid, self.block, self.shared_bytes)
        except AttributeError as error:
            # Not by the arrays' own __getattr__, with which CPython reads all their attributes more slowly.
            if isinstance(error.obj, CheckedArray | PlainIntegers):
                rule = "index it, slice it or reshape it"
                raise LabError(f"the lab has no {error.name} of an array; {rule}") from error
            if error.obj is not cuda and not isinstance(error.obj, Intrinsics):
                raise
            raise LabError(f"the lab has no cuda.{error.name}; kernels/README.md lists what it has") from error


def argument(value: Any) -> Any:
    """An argument as the lab takes it: tensors on the CPU share their memory, and numbers are typed as a GPU's.

    Raises LabError for what a kernel cannot be given.
    """
    if isinstance(value, np.ndarray):
        _require_typed(value.dtype)
        _require_aligned(value)
        return value if value.size else np.empty(value.shape, value.dtype)
    if isinstance(value, np.generic):
        _require_typed(value.dtype)
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise LabError(f"{value} is no argument for a kernel, whose integers have 64 bits at most")
        return value
    if isinstance(value, float):
        return np.float64(value)
    if hasattr(value, "__array__") and hasattr(value, "shape"):
        return argument(_as_array(value))
    raise LabError(f"a {type(value).__name__} is no argument for a kernel; give arrays and numbers")


def _as_array(value: Any) -> NDArray[Any]:
    """A tensor as an array that shares its memory."""
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:
        kind = type(value).__name__
        raise LabError(f"a {kind} that numpy refuses is no argument for a kernel in the lab: {error}") from None


def _require_typed(dtype: np.dtype[Any]) -> None:
    try:
        known = dtype.kind in "biufc" and from_dtype(dtype)
    except ERRORS:
        known = False
    if not known:
        rule = "are no argument for a kernel; give arrays and numbers of the machine's own types"
        raise LabError(f"numbers of type {dtype} {rule}")


def _require_aligned(array: NDArray[Any]) -> None:
    """Raises LabError for elements that no GPU could read, because they begin between the multiples of their size."""
    if not array.flags.aligned or any(stride % array.itemsize for stride in array.strides):
        raise LabError(
            f"elements of {array.dtype} with strides {array.strides} are not aligned; give the kernel a copy"
        )
