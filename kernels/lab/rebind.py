"""A kernel's Python function, made to run in the lab: ``cuda`` rebound in its globals, its branches and suites counted.

The kernel is not changed and may go on to be compiled. Statements keep their file and lines, so a traceback shows the
student's own text.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda.dispatcher import CUDADispatcher

from kernels.lab.source import LabError, definition

BRANCH, HITS = "__lab_branch__", "__lab_hits__"


@dataclass(frozen=True, slots=True)
class Branch:
    """A test of an ``if``, ``while`` or conditional expression. ``loops`` is true for ``while``."""

    file: str
    line: int
    loops: bool


@dataclass(frozen=True, slots=True)
class Suite:
    """An indented run of statements: all of its lines run when it is entered, unless something leaves it early."""

    file: str
    lines: tuple[int, ...]


class Program:
    """A kernel and the device functions that it calls, ready to run.

    ``run`` is the kernel as a plain function. ``branches`` and ``suites`` are counted by index: the first through
    ``branch(index, outcome)``, the second in the list ``hits``. Both stay empty where ``counted`` is false.
    """

    def __init__(
        self, kernel: CUDADispatcher, intrinsics: SimpleNamespace, branch: Callable[[int, Any], bool] | None
    ) -> None:
        self.branches: list[Branch] = []
        self.suites: list[Suite] = []
        self.hits: list[int] = []
        self.codes: dict[int, CodeType] = {}
        self._intrinsics = intrinsics
        self._branch = branch
        self._functions: dict[int, FunctionType] = {}
        self.run = self._rebound(kernel.py_func)
        self.hits += [0] * len(self.suites)

    def _rebound(self, function: Any) -> FunctionType:
        """The copy of a Python function that runs in the lab."""
        if id(function) not in self._functions:
            code = function.__code__ if self._branch is None else self._counted(function)
            self._register(code)
            # The copy is known before its globals are rebound: a device function may call itself.
            copy = FunctionType(code, {}, function.__name__, function.__defaults__, self._cells(function, code))
            self._functions[id(function)] = copy
            copy.__globals__.update(function.__globals__)
            copy.__globals__.update(
                {name: self._stand_in(function.__globals__[name]) for name in _globals_of(function)}
            )
            copy.__globals__.update({BRANCH: self._branch, HITS: self.hits})
        return self._functions[id(function)]

    def _register(self, code: CodeType) -> None:
        self.codes[id(code)] = code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._register(constant)

    def _cells(self, function: FunctionType, code: CodeType) -> tuple[CellType, ...]:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        return tuple(CellType(self._stand_in(cells[name].cell_contents)) for name in code.co_freevars)

    def _stand_in(self, value: Any) -> Any:
        """What the lab gives for a global: ``cuda`` becomes its own, numba's types become conversions."""
        if value is cuda:
            return self._intrinsics
        if value is numba:
            members = {name: self._stand_in(getattr(numba, name)) for name in ("cuda", *_NUMBERS)}
            return SimpleNamespace(**members)
        if isinstance(value, CUDADispatcher):
            return self._rebound(value.py_func)
        if isinstance(value, types.Type):
            return conversion(value)
        return value

    def _counted(self, function: FunctionType) -> CodeType:
        """The function's code, with its branches and suites counted."""
        file = function.__code__.co_filename
        node = definition(function)
        node.decorator_list = []
        counted = _Counter(file, self.branches, self.suites).visit(node)
        return _compiled_within(counted, function.__code__.co_freevars, file)


def _compiled_within(function: ast.FunctionDef, free: tuple[str, ...], file: str) -> CodeType:
    """The function's code, compiled where the names in ``free`` are an enclosing function's."""
    outer = ast.parse("def enclosing(): pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    binds: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in free]
    outer.body = [*binds, function]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    code = compile(module, file, "exec", dont_inherit=True)
    for name in ("enclosing", function.name):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code


class _Counter(ast.NodeTransformer):
    """Wraps the tests of branches, and counts at the head of each suite how often it is entered."""

    def __init__(self, file: str, branches: list[Branch], suites: list[Suite]) -> None:
        self._file, self._branches, self._suites = file, branches, suites

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = self._headed(node.body)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._tested(node.test, loops=False)
        node.body, node.orelse = self._headed(node.body), node.orelse and self._headed(node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._tested(node.test, loops=False)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = self._tested(node.test, loops=True)
        node.body = self._headed(node.body)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.body = self._headed(node.body)
        return node

    def _tested(self, test: ast.expr, loops: bool) -> ast.expr:
        self._branches.append(Branch(self._file, test.lineno, loops))
        call = ast.Call(ast.Name(BRANCH, ast.Load()), [ast.Constant(len(self._branches) - 1), test], [])
        return ast.copy_location(call, test)

    def _headed(self, body: list[ast.stmt]) -> list[ast.stmt]:
        lines = sorted({line for statement in body for line in _own_lines(statement)})
        self._suites.append(Suite(self._file, tuple(lines)))
        hit = ast.parse(f"{HITS}[{len(self._suites) - 1}] += 1").body[0]
        for node in ast.walk(hit):
            ast.copy_location(node, body[0])
        return [hit, *body]


def _own_lines(statement: ast.stmt) -> Iterator[int]:
    """Lines of a statement that belong to no suite within it."""
    inner = [
        part for field in ("body", "orelse") for part in getattr(statement, field, []) if isinstance(part, ast.stmt)
    ]
    first_inner = min((part.lineno for part in inner), default=(statement.end_lineno or statement.lineno) + 1)
    return iter(range(statement.lineno, max(first_inner, statement.lineno + 1)))


def _globals_of(function: FunctionType) -> set[str]:
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names & function.__globals__.keys()


class Integer:
    """Conversion to an integer of so many bits, which wraps as the GPU's does and gives a plain int."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._bits = 8 * dtype.itemsize
        self._signed = dtype.kind == "i"

    def __call__(self, value: Any) -> int:
        """``value`` truncated to an integer and wrapped."""
        wrapped = int(value) & ((1 << self._bits) - 1)
        return wrapped - (1 << self._bits) if self._signed and wrapped >> (self._bits - 1) else wrapped


def conversion(kind: types.Type) -> Any:
    """What calling a numba type does in a kernel: floats become numpy's scalars, integers wrap.

    Raises LabError for a type that is no number.
    """
    if isinstance(kind, types.Boolean):
        return bool
    if not isinstance(kind, types.Integer | types.Float):
        raise LabError(f"the lab has numbers only, and {kind} is none; use int32, int64, float16, float32 or float64")
    dtype = np.dtype(numba.np.numpy_support.as_dtype(kind))
    return Integer(dtype) if isinstance(kind, types.Integer) else dtype.type


_NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "boolean"),
)
