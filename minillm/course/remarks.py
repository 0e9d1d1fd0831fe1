"""What helps with an exception beyond its text: the names that an object has, and functions without a ``return``."""

import ast
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

WIDTH = 76
"""Characters of a line, which reports indent by four."""

MOST_NAMES = 40
"""An object with more names, such as a tensor, is none of the lesson's."""


def remarks(error: BaseException, text: str, lab: str | None) -> Iterator[str]:
    """Lines to be shown below the text of an exception that the code in ``lab`` has met."""
    found: list[str] = []
    try:
        if isinstance(error, AttributeError):
            found += _names(error)
        checked = ": None, but " in text
        if lab is not None and (checked or "NoneType" in text):
            found += list(_without_return(Path(lab).read_text(encoding="utf-8-sig"))) or (_ENDED if checked else [])
    except Exception:  # the code under test may have made the object, and may have written the file anew
        found = []
    for remark in found:
        yield from textwrap.wrap(remark, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _names(error: AttributeError) -> Iterator[str]:
    """What can be asked for instead, private names only where one was asked for."""
    owner = error.obj if isinstance(error.obj, type) else type(error.obj)
    if error.name is None or owner.__module__ == "builtins":
        return
    every = [name for name in _attributes(error.obj, owner) if not name.startswith("__")]
    names = [name for name in every if error.name.startswith("_") or not name.startswith("_")]
    if 0 < len(names) <= MOST_NAMES:
        close = get_close_matches(error.name, every, 1)
        yield (f"Do you mean {close[0]}? " if close else "") + f"{owner.__name__} has: {', '.join(names)}"


def _attributes(obj: object, owner: type) -> dict[str, None]:
    """Names of an object, in the order in which they were defined."""
    found: dict[str, None] = {}
    for base in reversed(owner.__mro__[:-1]):
        found |= dict.fromkeys([*vars(base).get("__annotations__", {}), *vars(base)])
    return found | dict.fromkeys(getattr(obj, "__dict__", {}))


def _without_return(source: str) -> Iterator[str]:
    """Functions that are to return something, and never do."""
    for name, function in _functions(ast.parse(source).body):
        if _promises(function) and not _answers(function):
            yield f"Your {name} has no `return` with a value, and so it returns None."


_ENDED = ["None is what a function returns that ends without a `return`."]

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, _Function]]:
    for node in body:
        if isinstance(node, _Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _promises(function: _Function) -> bool:
    """Whether its annotation says that it returns something."""
    return function.returns is not None and ast.unparse(function.returns) != "None"


def _answers(function: _Function) -> bool:
    """Whether it returns or yields something, or does nothing but raise, as what is not written yet."""
    own = list(_own(function.body))
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in own)
    return (
        returns
        or isinstance(function.body[-1], ast.Raise)
        or any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own)
    )


def _own(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes below these statements, those of functions in them left out."""
    nodes: list[ast.AST] = [*body]
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
