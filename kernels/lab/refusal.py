"""What the CUDA compiler refuses, in a sentence: the line, the rule and the remedy, in a student's words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import FunctionType
from typing import Any

from kernels.lab.compiler import NO_MIN_MAX, CUDADispatcher
from kernels.lab.source import LabError, definition, function_name, place

_PLACE = re.compile(r'File "(.*)", line (\d+)')
_ARRAY = re.compile(r"\b(shared|local)\.array.*?>>> array\(([^\n]*)\)", re.DOTALL)
_INTEGER = re.compile(r"\bu?int\d+")
_WORDS = (
    (re.compile(r"Function\(<(?:built-in )?function (\S+?)(?: at 0x\w+)?>\)"), r"\1"),
    (re.compile(r"<(?:built-in )?function (\S+?)(?: at 0x\w+)?>"), r"\1"),
    (re.compile(r"Module\(<module '(\S+)'.*?>\)"), r"\1"),
    (re.compile(r"Literal\[\w+\]\((.*?)\)"), r"\1"),
    (re.compile(r" for '[^']*', defined at .*"), ""),
)
"""How numba writes functions, modules and constants, and how a student does."""
_HEADS = ("Failed in", "During:")
_NAME = re.compile(r"\bname '(\w+)' is not defined")


def refusal(error: Exception, kernel: FunctionType) -> LabError:
    """The error that stands for one of the compiler's."""
    where, text = _line(error, kernel), str(error)
    at = f" in {where}" if where else ""
    return LabError(f"{kernel.__name__}: the CUDA compiler refuses it{at}: {_array_rule(text) or _gist(text)}")


def _array_rule(text: str) -> str:
    """The rule for an array's shape or type, where that is what is refused."""
    found = _ARRAY.search(text)
    if not found:
        return ""
    space, arguments = found.groups()
    shape = arguments.partition("class(")[0]
    if _INTEGER.search(shape):
        rule = "numbers or constants of the module, and nothing computed from them"
        return (
            f"the shape of a {space} array must be {rule}; write PADDED = SIDE + 1 outside the kernel, and PADDED here"
        )
    return f"a {space} array takes a shape and a type such as float32"


def _gist(text: str) -> str:
    """The lines of numba's message that say what is wrong. From the first place on it repeats the source."""
    lines = [line.strip().removeprefix(">>> ") for line in _PLACE.split(text)[0].splitlines()]
    said = [line for line in lines if line and not line.startswith(_HEADS)][:2]
    gist = (" " if said and said[0].endswith(":") else "; ").join(said)
    for pattern, words in _WORDS:
        gist = pattern.sub(words, gist)
    return gist


def _line(error: Exception, kernel: FunctionType) -> str:
    """``line 3``, where the error says in which, or its cause is found in the source."""
    named = _PLACE.findall(str(error)) or list(_typed_places(error))
    if named:
        file, line = named[-1]
        elsewhere = Path(file).name != Path(kernel.__code__.co_filename).name
        return f"line {line} of {Path(file).name}" if elsewhere else f"line {line}"
    wanted = {"min", "max"} if NO_MIN_MAX in str(error) else set(_NAME.findall(str(error)))
    return next(_lines_with(wanted, kernel), "")


def _typed_places(error: Exception) -> Iterator[tuple[str, int]]:
    """File and line of each statement that was being typed: numba-cuda leaves them out of some of its errors."""
    for frame, _ in walk_tb(error.__traceback__):
        location: Any = getattr(frame.f_locals.get("self"), "loc", None)
        if hasattr(location, "filename"):
            yield location.filename, location.line


def _lines_with(names: set[str], kernel: FunctionType) -> Iterator[str]:
    """Lines of a kernel, and then of its device functions, in which one of these names stands."""
    for function in _with_called(kernel):
        for node in ast.walk(definition(function)):
            if isinstance(node, ast.Name) and node.id in names:
                yield place(node.lineno, function_name(function.__code__, kernel.__code__))


def _with_called(kernel: FunctionType) -> list[FunctionType]:
    """The kernel and all device functions among the globals that it and they name."""
    found = [kernel]
    for function in found:
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        called = (each.py_func for each in named if isinstance(each, CUDADispatcher))
        found += [each for each in called if each not in found]
    return found
