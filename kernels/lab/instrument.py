"""A function's code as the lab runs it: arithmetic raises no errors, and branches and suites may be counted.

Counts tell what a warp does at a branch, and how often lines run.

Statements keep their file and lines, so a traceback shows the student's own text.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType

from kernels.lab.source import LabError, definition

DIVISOR, POWER, TRUTH = "__lab_divisor__", "__lab_power__", "__lab_truth__"
"""The names that code finds in its globals for ``numbers.divisor``, ``numbers.power`` and ``bool``."""
TEST, LOOP, TRIPS, HITS = "__lab_test__", "__lab_loop__", "__lab_trips__", "__lab_hits__"
"""Names that counted code finds in its globals: ``test(branch, outcome)``, or ``loop`` for a ``while``, returns the
outcome as a bool, ``trips(branch, iterable)`` the iterable, and ``hits`` is a list with a counter for each suite."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A test of an ``if``, ``while`` or conditional expression, or the number of a ``for`` loop's trips."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Suite:
    """An indented run of statements: all of its lines run when it is entered, unless something leaves it early."""

    file: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """A function's counted code. Branches and suites are numbered from 0 in it."""

    code: CodeType
    branches: tuple[Branch, ...]
    suites: tuple[Suite, ...]


@lru_cache(maxsize=256)
def uncounted(function: FunctionType) -> CodeType:
    """The function's code with its arithmetic guarded; as it is, where its source is not at hand."""
    try:
        node = definition(function)
    except LabError:
        return function.__code__
    node.decorator_list = []
    return _compiled_within(_Guards().visit(node), function.__code__.co_freevars, function.__code__.co_filename)


@lru_cache(maxsize=256)
def counted(function: FunctionType) -> Counted:
    """The function's code, with its branches and suites counted. Raises LabError where its source is not at hand."""
    file = function.__code__.co_filename
    node = definition(function)
    node.decorator_list = []
    counter = _Counter(file)
    code = _compiled_within(counter.visit(node), function.__code__.co_freevars, file)
    return Counted(code, tuple(counter.branches), tuple(counter.suites))


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


class _Guards(ast.NodeTransformer):
    """Gives each divisor but constants to ``DIVISOR``, powers but those by integers to ``POWER``.

    A comparison that is a value, and no test, goes to ``TRUTH``: with numpy's booleans 1 + 1 is 1.
    """

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, _DIVIDING):
            node.right = _guarded(node.right)
        if isinstance(node.op, ast.Pow) and not _is_constant_integer(node.right):
            return _call(POWER, node.left, node.right)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, _DIVIDING):
            node.value = _guarded(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return _call(TRUTH, node)

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._tested(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._tested(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._tested(node)

    def _tested(self, node: ast.If | ast.IfExp | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = _as_test(node.test)
        return node


_DIVIDING = ast.Div | ast.FloorDiv | ast.Mod


def _guarded(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.Constant) and value.value else _call(DIVISOR, value)


def _is_constant_integer(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int)


def _as_test(value: ast.expr) -> ast.expr:
    """A test, of which only the truth counts, without ``TRUTH``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == TRUTH:
        return value.args[0]
    if isinstance(value, ast.BoolOp):
        value.values = list(map(_as_test, value.values))
    return value


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(arguments), []), arguments[0])


class _Counter(_Guards):
    """Wraps the tests of branches, and counts at the head of each suite how often it is entered."""

    def __init__(self, file: str) -> None:
        self.branches: list[Branch] = []
        self.suites: list[Suite] = []
        self._file = file

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = self._headed(node.body)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self._tested(node)
        node.test = self._noted(TEST, node.test, "if")
        node.body, node.orelse = self._headed(node.body), node.orelse and self._headed(node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self._tested(node)
        node.test = self._noted(TEST, node.test, "if")
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self._tested(node)
        node.test = self._noted(LOOP, node.test, "while")
        node.body = self._headed(node.body)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._noted(TRIPS, node.iter, "for")
        node.body = self._headed(node.body)
        return node

    def _noted(self, how: str, value: ast.expr, what: str) -> ast.expr:
        self.branches.append(Branch(value.lineno, what))
        call = ast.Call(ast.Name(how, ast.Load()), [ast.Constant(len(self.branches) - 1), value], [])
        return ast.copy_location(call, value)

    def _headed(self, body: list[ast.stmt]) -> list[ast.stmt]:
        lines = sorted({line for statement in body for line in _own_lines(statement)})
        self.suites.append(Suite(self._file, tuple(lines)))
        hit = ast.parse(f"{HITS}[{len(self.suites) - 1}] += 1").body[0]
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
