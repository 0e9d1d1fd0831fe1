"""A kernel's source, as a syntax tree whose lines are those of its file."""

import ast
import inspect
import textwrap
from types import FunctionType


class LabError(Exception):
    """A kernel that the lab cannot run: the sentence names the place, the rule and the remedy."""


def definition(function: FunctionType) -> ast.FunctionDef:
    """The function's definition. Raises LabError where its source is not at hand."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        raise LabError(f"{function.__name__}: the lab reads a kernel's source; put it in a file or a cell") from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef))
