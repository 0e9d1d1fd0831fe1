"""What a lab may hold, found out before it runs: definitions, constants, and imports of what a task can need.

This is no wall against an attack, but it catches what a lab should not do by accident, and it says where.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ALLOWED = frozenset(
    (
        "__future__",
        "abc",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "numbers",
        "operator",
        "random",
        "statistics",
        "string",
        "types",
        "typing",
        "numba",
        "numpy",
        "torch",
        "minillm",
        "kernels",
    )
)
"""Packages that a lab may import from, their modules included."""

FORBIDDEN = ("minillm.course", "minillm.commands", "minillm.cli")
"""Packages and modules that it may not: the grader and what starts it."""

BUILTINS = frozenset(
    (
        "__import__",
        "__builtins__",
        "breakpoint",
        "compile",
        "eval",
        "exec",
        "globals",
        "input",
        "open",
    )
)
"""Names that reach around the imports, or beyond the process."""

HIDDEN = frozenset(
    (
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "__code__",
        "f_globals",
        "f_locals",
        "f_back",
        "tb_frame",
        "_getframe",
        "modules",
        "os",
        "sys",
    )
)
"""Attributes that do, some by way of a library that has imported such a module."""

PURE = frozenset(
    (
        "frozenset",
        "set",
        "tuple",
        "list",
        "dict",
        "range",
        "float",
        "int",
        "TypeVar",
        "ParamSpec",
        "namedtuple",
    )
)
"""What may be called for a constant."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Refused(ValueError):
    """A lab that is not run: the sentence names the line, the rule and the remedy."""


def read_lab(lab: Path) -> str:
    """A lab's text. Raises Refused for a file that cannot be read or is no Python, with the line where there is one."""
    try:
        text = lab.read_text(encoding="utf-8-sig")  # some editors begin a text with a mark that nobody sees
        if "\0" in text:
            raise ValueError("it holds null bytes")  # the compiler would say so without a line
        compile(text, str(lab), "exec", dont_inherit=True)  # finds more errors than parsing does
    except OSError as error:
        raise Refused(f"{lab.name} cannot be read: {error.strerror}; there must be a text file of this name") from None
    except SyntaxError as error:
        raise Refused(f"{lab.name}:{error.lineno}: {error.msg}; correct this line first") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise Refused(f"{lab.name} is no Python text: {error}; save it as UTF-8") from None
    except (RecursionError, MemoryError):
        raise Refused(f"{lab.name} is nested too deeply to be read; write it flatter") from None
    return text


def screen(lab: Path) -> ast.Module:
    """The lab's syntax tree. Raises Refused for a file that is no Python or holds what no lab needs."""
    tree = ast.parse(read_lab(lab))
    complaint = next(_complaints(tree), None)
    if complaint:
        line, words = complaint
        raise Refused(f"{lab.name}:{line}: {words}")
    return tree


def _complaints(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for statement in tree.body:
        if not _may_stand_on_top(statement):
            yield statement.lineno, "a lab holds imports, constants, functions and classes; move this into a function"
    for node in ast.walk(tree):
        yield from ((getattr(node, "lineno", 0), words) for words in _about(node))


def _may_stand_on_top(statement: ast.stmt) -> bool:
    if isinstance(statement, (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(statement, ast.If):  # if TYPE_CHECKING:
        return isinstance(statement.test, ast.Name) and all(map(_may_stand_on_top, statement.body + statement.orelse))
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and (value is None or _is_constant(value))


def _is_constant(value: ast.expr) -> bool:
    """Whether an expression has no effect but its value."""
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
    return all(isinstance(call.func, ast.Name) and call.func.id in PURE for call in calls)


def _about(node: ast.AST) -> Iterator[str]:
    """What is wrong with a node."""
    for module in _imported(node):
        if module.partition(".")[0] not in ALLOWED:
            yield f"a lab does not import {module}; it may import from {', '.join(sorted(ALLOWED - {'__future__'}))}"
        elif any(module == each or module.startswith(each + ".") for each in FORBIDDEN):
            yield f"a lab does not import {module}, which runs the labs"
    if isinstance(node, ast.Name) and node.id in BUILTINS:
        yield f"a lab does not use {node.id}; a task never needs it"
    if isinstance(node, ast.Attribute) and node.attr in HIDDEN:
        yield f"a lab does not use {node.attr}; a task never needs it"


def _imported(node: ast.AST) -> Sequence[str]:
    """Modules that a statement imports, and names that may be modules."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [module, *(f"{module}.{name.name}" for name in node.names)]
    return []
