"""A kernel's Python function, made to run in the lab: a copy with ``cuda`` rebound in its globals.

The kernel is not changed and may go on to be compiled.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import cuda

from kernels.lab.compiler import CUDADispatcher, as_dtype, types
from kernels.lab.instrument import DIVISOR, HITS, LOOP, POWER, TEST, TRIPS, TRUTH, Branch, Suite, counted, uncounted
from kernels.lab.intrinsics import Intrinsics
from kernels.lab.numbers import GPU_BUILTINS, GpuMath, GpuNumpy, conversion, divisor, plain, power
from kernels.lab.source import LabError

GPU_MATH, GPU_NUMPY = GpuMath(), GpuNumpy()
_ABSENT = object()
_INTRINSICS = (
    *(name for name in vars(Intrinsics) if not name.startswith("_") and name != "laneid"),
    *("syncthreads", "shared", "local", "const", "atomic", "threadIdx", "blockIdx", "blockDim", "gridDim"),
)
Recorder = Callable[[int], tuple[Callable[[int, Any], Any], ...]]
"""From the number of a function's first branch to its ``test``, ``loop`` and ``trips``, as ``instrument`` has them."""


@dataclass
class Program:
    """A kernel and the device functions that it calls, ready to run.

    ``recorder`` is None where branches and suites are not counted; ``branches``, ``suites`` and ``hits`` (how often
    each suite was entered) are empty then. ``functions`` are the originals, the kernel first.
    """

    intrinsics: Intrinsics
    constant: Callable[[Any], Any]
    """What an array becomes that the source holds as a constant."""
    recorder: Recorder | None
    functions: list[FunctionType] = field(default_factory=list)
    branches: list[tuple[Branch, int]] = field(default_factory=list)
    """Each branch, with the ``id`` of its function's code."""
    suites: list[tuple[Suite, list[int], int]] = field(default_factory=list)
    """Each suite, with the list that counts it and the number in there."""
    codes: dict[int, CodeType] = field(default_factory=dict)
    """Code objects of all functions by ``id``."""
    _copies: dict[int, FunctionType] = field(default_factory=dict)

    def rebound(self, function: Any) -> FunctionType:
        """The copy of a Python function that runs in the lab."""
        if id(function) not in self._copies:
            self.functions.append(function)
            recording: dict[str, Any] = {DIVISOR: divisor, POWER: power, TRUTH: bool}
            code = uncounted(function) if self.recorder is None else self._counted(function, recording)
            self.codes |= {id(each): each for each in _with_inner(code)}
            # The copy is known before its globals are rebound: a device function may be called by two others.
            copy = FunctionType(code, {}, function.__name__, function.__defaults__, self._cells(function, code))
            self._copies[id(function)] = copy
            named = {name: self.stand_in(function.__globals__[name]) for name in _globals_of(function)}
            copy.__globals__.update(GPU_BUILTINS | function.__globals__ | named | recording)
        return self._copies[id(function)]

    def hits(self) -> list[tuple[Suite, int]]:
        """How often each suite was entered."""
        return [(suite, counters[number]) for suite, counters, number in self.suites]

    def _counted(self, function: FunctionType, recording: dict[str, Any]) -> CodeType:
        assert self.recorder is not None
        new = counted(function)
        hits = [0] * len(new.suites)
        recording[TEST], recording[LOOP], recording[TRIPS] = self.recorder(len(self.branches))
        recording[HITS] = hits
        self.branches += [(branch, id(new.code)) for branch in new.branches]
        self.suites += [(suite, hits, number) for number, suite in enumerate(new.suites)]
        return new.code

    def _cells(self, function: FunctionType, code: CodeType) -> tuple[CellType, ...]:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        return tuple(CellType(self.stand_in(cells[name].cell_contents)) for name in code.co_freevars)

    def stand_in(self, value: Any) -> Any:
        """What the lab gives for a global: ``cuda`` becomes its own, types become conversions."""
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, CUDADispatcher):
            return self.rebound(value.py_func)
        if isinstance(value, types.Type):
            return conversion_to(value)
        if isinstance(value, np.ndarray):
            return self.constant(value)
        return self._member(value)

    def _module(self, module: ModuleType) -> Any:
        if module is cuda:
            return self.intrinsics
        if module is math:
            return GPU_MATH
        if module is np:
            return GPU_NUMPY
        return module if getattr(module, "__name__", "") in sys.stdlib_module_names else _Members(self, module)

    def _member(self, value: Any) -> Any:
        """What was imported by itself: an intrinsic, a function of ``math``, or one of numpy's types."""
        for name in _INTRINSICS:
            if getattr(cuda, name, _ABSENT) is value:
                return getattr(self.intrinsics, name)
        name = getattr(value, "__name__", "")
        if getattr(math, name, _ABSENT) is value:
            return getattr(GPU_MATH, name)
        if getattr(value, "__module__", None) == "numba.cuda.libdevice":
            raise LabError(f"the lab has no libdevice.{name}; take a function of math")
        return plain(value)


class _Members:
    """A module, numba's or one of device functions: what a kernel takes from it becomes the lab's."""

    def __init__(self, program: Program, module: ModuleType) -> None:
        self._lab_program, self._lab_module = program, module

    def __getattr__(self, name: str) -> Any:
        value = self._lab_program.stand_in(getattr(self._lab_module, name))
        setattr(self, name, value)
        return value


def conversion_to(kind: Any) -> Any:
    """What calling a numba type does in a kernel. Raises LabError for a type that is no number."""
    if not isinstance(kind, types.Boolean | types.Integer | types.Float):
        raise LabError(f"the lab has numbers only, and {kind} is none; use int32, int64, float16, float32 or float64")
    return conversion(np.dtype(as_dtype(kind)))


def _globals_of(function: FunctionType) -> set[str]:
    """Names of globals that the function, or one within it, uses."""
    names = {name for code in _with_inner(function.__code__) for name in code.co_names}
    return names & function.__globals__.keys()


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
