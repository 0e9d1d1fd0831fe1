"""The types that the CUDA compiler gives a kernel's values, found without a GPU: numba's own inference is asked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from numba import types
from numba.core import ir
from numba.core.errors import NumbaError
from numba.cuda.compiler import compile_cuda
from numba.cuda.dispatcher import CUDADispatcher
from numba.np.numpy_support import from_dtype

from kernels.lab.source import LabError

COMPUTE_CAPABILITY = (8, 0)
"""The types do not depend on it, but the compiler wants one."""


@dataclass(frozen=True, slots=True)
class Float64:
    """An expression of a kernel without float64 arguments that becomes float64."""

    line: int
    expression: str


@dataclass(frozen=True, slots=True)
class Typing:
    """What inference found: each variable's types in the order of its assignments, where float64 was born, and how
    many arithmetic operations on floats each line holds."""

    variables: dict[str, str]
    float64: tuple[Float64, ...]
    float_operations: dict[int, int]


def infer(kernel: CUDADispatcher, arguments: Sequence[Any]) -> Typing:
    """Compile the kernel for these arguments, as far as a machine without GPU can.

    Raises LabError for what the CUDA compiler refuses.
    """
    return _infer(kernel.py_func, tuple(map(numba_type, arguments)))


@lru_cache(maxsize=256)
def _infer(function: FunctionType, signature: tuple[Any, ...]) -> Typing:
    try:
        with _device():
            compiled = compile_cuda(function, types.void, signature, cc=COMPUTE_CAPABILITY)
    except NumbaError as error:
        raise LabError(f"{function.__name__}: the CUDA compiler refuses it: {_gist(error)}") from None
    annotation = compiled.type_annotation
    assigned = [
        statement
        for _, block in sorted(annotation.blocks.items())
        for statement in block.body
        if isinstance(statement, ir.Assign)
    ]
    typemap = annotation.typemap
    allowed = any(_is_float64(_element(each)) for each in signature)
    return Typing(
        variables=_variables(assigned, typemap),
        float64=() if allowed else tuple(_births(assigned, typemap)),
        float_operations=_operations(assigned, typemap),
    )


def numba_type(argument: Any) -> Any:
    """The type by which an argument is compiled. Raises LabError for what a kernel cannot be given."""
    if hasattr(argument, "dtype") and hasattr(argument, "shape") and argument.shape != ():
        layout = "C" if argument.flags.c_contiguous else "A"
        return types.Array(from_dtype(argument.dtype), argument.ndim, layout)  # type: ignore[call-overload]
    if isinstance(argument, bool):
        return types.boolean
    if isinstance(argument, int):
        return types.int64
    if isinstance(argument, float) and not hasattr(argument, "dtype"):
        return types.float64
    if hasattr(argument, "dtype"):
        return from_dtype(argument.dtype)
    raise LabError(f"a {type(argument).__name__} is no argument for a kernel; give arrays and numbers")


@contextmanager
def _device() -> Iterator[None]:
    """Device functions are compiled for "the current device" while their caller is: stand in for it."""
    device = SimpleNamespace(compute_capability=COMPUTE_CAPABILITY)
    with patch("numba.cuda.dispatcher.get_current_device", lambda: device):
        yield


def _variables(assigned: Sequence[ir.Assign], typemap: dict[str, Any]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for statement in assigned:
        name = statement.target.unversioned_name
        kinds = found.setdefault(name, [])
        kind = str(getattr(typemap[statement.target.name], "literal_type", typemap[statement.target.name]))
        if not name.startswith(("$", "__lab")) and kind not in kinds:
            kinds.append(kind)
    return {name: ", ".join(kinds) for name, kinds in found.items() if kinds}


def _births(assigned: Sequence[ir.Assign], typemap: dict[str, Any]) -> Iterator[Float64]:
    """Expressions that are float64 though none of their operands is, constants aside."""
    constants = {s.target.name for s in assigned if isinstance(s.value, ir.Const | ir.Global | ir.FreeVar)}
    for statement in assigned:
        value = statement.value
        if not isinstance(value, ir.Expr) or value.op not in ("binop", "inplace_binop", "unary", "call"):
            continue
        operands = [typemap[var.name] for var in _operands(value) if var.name not in constants]
        if _is_float64(typemap[statement.target.name]) and not any(map(_is_float64, operands)):
            yield Float64(statement.loc.line, _written(value))


def _operands(value: ir.Expr) -> list[ir.Var]:
    if value.op == "call":
        return list(value.args)
    return [value.value] if value.op == "unary" else [value.lhs, value.rhs]


def _written(value: ir.Expr) -> str:
    """``float32 * float64``: what stands in the expression, by its operator."""
    if value.op == "call":
        return "a call"
    function = value.fn if value.op != "inplace_binop" else value.immutable_fn
    return f"operator {getattr(function, '__name__', function)}"


def _operations(assigned: Sequence[Any], typemap: dict[str, Any]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for statement in assigned:
        value = statement.value
        arithmetic = isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop", "unary", "call")
        if (
            arithmetic
            and isinstance(typemap[statement.target.name], types.Float)
            and not _is_conversion(value, typemap)
        ):
            counts[statement.loc.line] = counts.get(statement.loc.line, 0) + 1
    return counts


def _is_conversion(value: ir.Expr, typemap: dict[str, Any]) -> bool:
    return value.op == "call" and isinstance(typemap[value.func.name], types.NumberClass)


def _element(kind: types.Type) -> types.Type:
    return kind.dtype if isinstance(kind, types.Array) else kind


def _is_float64(kind: types.Type) -> bool:
    return bool(kind == types.float64)


def _gist(error: NumbaError) -> str:
    """The lines of numba's message that say what is wrong and where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = [line for line in lines if not line.startswith(("Failed in", "During:", "File"))]
    where = [line for line in lines if line.startswith("File")]
    return "; ".join([*chosen[:2], *where[-1:]])
