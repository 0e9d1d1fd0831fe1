"""A kernel's source and code: its syntax tree with the lines of its file, and the places of its instructions."""

import ast
import dis
import inspect
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType


class LabError(Exception):
    """A kernel that the lab cannot run: the sentence names the place, the rule and the remedy."""


def definition(function: FunctionType) -> ast.FunctionDef:
    """The function's definition. Raises LabError where its source is not at hand."""
    try:
        lines, first = inspect.getsourcelines(function)
        indented = lines[0][:1].isspace()
        # Strings and comments may begin further left than the function, so lines are not moved to the left.
        tree = ast.parse("".join(["if True:\n", *lines] if indented else lines))
        found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    except (OSError, SyntaxError, StopIteration):
        rule = "the lab reads a kernel's source; define it by def, in a file or a cell"
        raise LabError(f"{function.__name__}: {rule}") from None
    ast.increment_lineno(tree, first - 1 - indented)
    return found


def function_name(code: CodeType, kernel: CodeType) -> str:
    """Of a device function's code, with its file where that is not the kernel's; empty for the kernel itself."""
    if code is kernel:
        return ""
    elsewhere = code.co_filename != kernel.co_filename
    return f"{code.co_name} in {Path(code.co_filename).name}" if elsewhere else code.co_name


def place(line: int, function: str) -> str:
    """``line 3``, or ``line 3 of f`` for a device function."""
    return f"line {line} of {function}" if function else f"line {line}"


@lru_cache(maxsize=256)  # each thread asks it anew for its local array
def assigned_name(code: CodeType, offset: int, default: str) -> str:
    """The variable that keeps the result of the call at an instruction's offset."""
    after = (each for each in dis.get_instructions(code) if each.offset > offset)
    store = next(after, None)
    return str(store.argval) if store is not None and store.opname in ("STORE_FAST", "STORE_DEREF") else default


def line_of(code: CodeType, offset: int) -> int:
    """The line in which an instruction's source stands."""
    return list(code.co_positions())[offset // 2][0] or code.co_firstlineno


def variables_at(code: CodeType, offset: int) -> list[str]:
    """Variables that are read in the lines of the expression to which an instruction belongs, in their order."""
    positions = list(code.co_positions())
    first, last = positions[offset // 2][:2]
    read = [each for each in dis.get_instructions(code) if each.opname in ("LOAD_FAST", "LOAD_DEREF")]
    lines = [(positions[each.offset // 2][0], str(each.argval)) for each in read]
    return list(dict.fromkeys(name for line, name in lines if line and first and last and first <= line <= last))
