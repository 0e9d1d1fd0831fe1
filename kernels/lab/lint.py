"""What Python allows and a kernel does not, found in the source before numba fails at it with a longer message."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType

from kernels.lab.source import definition, function_name

_NODES = {
    ast.List: "a list",
    ast.ListComp: "a list",
    ast.Dict: "a dict",
    ast.DictComp: "a dict",
    ast.Set: "a set",
    ast.SetComp: "a set",
    ast.GeneratorExp: "a generator",
    ast.JoinedStr: "an f-string",
    ast.Try: "a try",
    ast.With: "a with",
    ast.Yield: "a yield",
    ast.YieldFrom: "a yield",
    ast.Lambda: "a lambda",
    ast.ClassDef: "a class",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
}
_CALLS = ("sum", "sorted", "list", "dict", "set", "str", "open", "input", "map", "filter", "any", "all", "reversed")


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that no kernel can hold, the line where it stands, and the device function, as ``function_name``."""

    line: int
    what: str
    function: str


def refused(function: FunctionType, kernel: FunctionType) -> Iterator[Refused]:
    """Everything of that kind in the source of a function of a kernel, from top to bottom."""
    name = function_name(function.__code__, kernel.__code__)
    nodes = [node for statement in definition(function).body for node in ast.walk(statement)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        what = _what(node)
        if what:
            yield Refused(getattr(node, "lineno", 0), what, name)


def _what(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return f"{node.func.id}()"
    return _NODES.get(type(node))
