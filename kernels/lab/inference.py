"""The types that the CUDA compiler gives a kernel's values, found without a GPU: numba's own inference is asked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np

from kernels.lab.compiler import ERRORS, SHUFFLES, CUDADispatcher, device_types, from_dtype, ir, kernel_types, types
from kernels.lab.refusal import refusal
from kernels.lab.source import function_name

Line = tuple[str, int]
"""A file and a line in it."""

_ARITHMETIC = ("binop", "inplace_binop", "unary", "call")


@dataclass(frozen=True, slots=True)
class Float64:
    """What becomes float64 in a kernel that is given no float64; ``function`` is a device function, or empty."""

    function: str
    line: int
    expression: str


@dataclass(frozen=True, slots=True)
class Typing:
    """What inference found: each variable's types in the order of its assignments, where float64 was born, and how
    many arithmetic operations on floats each line holds, device functions' included (not in ``variables``)."""

    variables: dict[str, str]
    float64: tuple[Float64, ...]
    float_operations: dict[Line, int]
    operand_bits: dict[tuple[str, int, str], set[int]]
    """Sizes of the integers to which a line applies one of ``BITWISE``."""


BITWISE = ("popc", "brev", "clz")
"""Intrinsics whose results depend on their operand's size."""
UNKNOWN = Typing({}, (), {}, {})
"""What is known of a kernel that was not compiled."""


def infer(kernel: Any, arguments: Sequence[Any]) -> Typing:
    """Compile the kernel for these arguments, as far as a machine without GPU can.

    Raises LabError for what the CUDA compiler refuses.
    """
    return _infer(kernel.py_func, tuple(map(numba_type, arguments)))


@lru_cache(maxsize=256)
def _infer(function: FunctionType, signature: tuple[Any, ...]) -> Typing:
    kernel, *called = _all_functions(function, signature)
    allowed = any(_is_float64(_element(each)) for each in signature)
    births = [birth for each in (kernel, *called) for birth in each.births(function)]
    operations: dict[Line, int] = {}
    bits: dict[tuple[str, int, str], set[int]] = {}
    for each in (kernel, *called):
        for line, count in each.operations().items():  # of several signatures the one that does most
            operations[line] = max(count, operations.get(line, 0))
        for at, size in each.operand_bits():
            bits.setdefault(at, set()).add(size)
    return Typing(kernel.variables(), () if allowed else tuple(dict.fromkeys(births)), operations, bits)


def _all_functions(function: FunctionType, signature: tuple[Any, ...]) -> list["_Typed"]:
    """The kernel first, then each device function that is called, once for each signature."""
    kernel = _typed(kernel_types, function, function, signature)
    found: dict[tuple[Any, ...], _Typed] = {}
    waiting = list(kernel.calls())
    while waiting:
        key = called, types_given = waiting.pop(0)
        if key not in found:
            found[key] = _typed(device_types, called.py_func, called, types_given)
            waiting += found[key].calls()
    return [kernel, *found.values()]


def _typed(typed: Callable[..., Any], function: FunctionType, compiled: Any, signature: tuple[Any, ...]) -> "_Typed":
    try:
        annotation = typed(compiled, signature)
    except ERRORS as error:
        raise refusal(error, function) from None
    body = [each for _, block in sorted(annotation.blocks.items()) for each in block.body]
    assigned = tuple(each for each in body if isinstance(each, ir.Assign))
    to: dict[str, list[Any]] = {}
    for each in assigned:
        to.setdefault(each.target.name, []).append(each)
    return _Typed(function, assigned, to, annotation.typemap, annotation.calltypes)


@dataclass(frozen=True, slots=True)
class _Typed:
    """A function's assignments, in numba's intermediate representation, and the types of their variables.

    ``to`` has the assignments by the names of their targets.
    """

    function: FunctionType
    assigned: tuple[Any, ...]
    to: dict[str, list[Any]]
    typemap: dict[str, Any]
    calltypes: Any

    def variables(self) -> dict[str, str]:
        """The types of each of the student's variables."""
        found: dict[str, list[str]] = {}
        for statement in self.assigned:
            name, kind = statement.target.unversioned_name, self.typemap[statement.target.name]
            kinds = found.setdefault(name, [])
            written = str(getattr(kind, "literal_type", kind))
            if not name.startswith("$") and written not in kinds:
                kinds.append(written)
        return {name: ", ".join(kinds) for name, kinds in found.items() if kinds}

    def births(self, kernel: FunctionType) -> Iterator[Float64]:
        """What is float64 whatever its own variables become: an operation, an array, a variable that begins so."""
        found: list[Any] = []
        for statement in sorted(self.assigned, key=lambda each: self._has_float64(self._operands(each.value))):
            if self._bears(statement) and not self._descends(statement, found):
                found.append(statement)
        name = function_name(self.function.__code__, kernel.__code__)
        for statement in sorted(found, key=lambda each: int(each.loc.line)):
            yield Float64(name, statement.loc.line, self._expression(statement))

    def _expression(self, statement: Any) -> str:
        name = statement.target.unversioned_name
        if isinstance(statement.value, ir.Expr):
            return self._written(statement.value)
        return "a Python float" if name.startswith("$") else f"{name} = a Python float"

    def _bears(self, statement: Any) -> bool:
        """Whether a statement makes a float64 that it would also make of float32 variables."""
        value = statement.value
        if isinstance(value, ir.Expr) and value.op in _ARITHMETIC:
            operands = self._operands(value)
            if value.op == "call" and self._device_function(value) is not None:
                return any(self._is_constant(var) for var in operands)
            if not _is_float64(_element(self.calltypes[value].return_type)):
                return False
            return not self._has_float64(operands) or self._bears_anyway(value, operands)
        name = statement.target.unversioned_name
        kept = not name.startswith("$") or name.startswith("$phi")
        is_float64 = self._is_constant(value) if isinstance(value, ir.Var) else _is_constant_float64(value)
        return kept and is_float64 and self._computed_with(name)

    def _bears_anyway(self, value: Any, operands: Sequence[Any]) -> bool:
        """Whether an operation would give a float64 were its variables of that type float32."""
        if any(self._is_constant(var) for var in operands):
            return True
        if value.op == "call":
            return isinstance(self.typemap[value.func.name], types.NumberClass)
        integers = [kind for kind in self._types(value) if isinstance(kind, types.Integer)]
        return self._sign(value) != "**" and any(kind.bitwidth > 16 for kind in integers)

    def _descends(self, statement: Any, found: Sequence[Any]) -> bool:
        """Whether one of those found is where a statement's operands got to be float64."""
        waiting, seen = [var.name for var in self._operands(statement.value)], set()
        while waiting:
            name = waiting.pop()
            if name in seen or not _is_float64(_element(self.typemap[name])):
                continue
            seen.add(name)
            for each in self.to.get(name, ()):
                if any(each is other for other in found):
                    return True
                waiting += [var.name for var in _variables(each.value)] if each is not statement else []
        return False

    def _operands(self, value: Any) -> list[Any]:
        return _operands(value) if isinstance(value, ir.Expr) and value.op in _ARITHMETIC else []

    def _is_constant(self, var: Any) -> bool:
        """Whether a variable is a name for a constant that is float64."""
        return all(_is_constant_float64(each.value) for each in self.to[var.name])

    def _has_float64(self, operands: Sequence[Any]) -> bool:
        """Whether an operand, or what it holds, is float64 and no constant."""
        return any(_is_float64(_element(self.typemap[var.name])) and not self._is_constant(var) for var in operands)

    def _computed_with(self, name: str) -> bool:
        """Whether a variable goes into arithmetic: one that is only stored or converted does no harm."""
        expressions = [s.value for s in self.assigned if isinstance(s.value, ir.Expr) and s.value.op in _ARITHMETIC]
        used = (value for value in expressions if not self._converts(value))
        names = {name, *(s.target.unversioned_name for s in self.assigned if _is_copy_of(s.value, name))}
        return any(var.unversioned_name in names for value in used for var in _operands(value))

    def _converts(self, value: Any) -> bool:
        return value.op == "call" and isinstance(self.typemap[value.func.name], types.NumberClass)

    def calls(self) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Device functions that are called, and the types of the arguments."""
        for statement in self.assigned:
            value = statement.value
            if isinstance(value, ir.Expr) and value.op == "call":
                function = self._device_function(value)
                if function is not None:
                    yield function, tuple(self.calltypes[value].args)

    def operand_bits(self) -> Iterator[tuple[tuple[str, int, str], int]]:
        """File, line and name of each call of ``BITWISE``, and its operand's size."""
        for statement in self.assigned:
            value = statement.value
            if isinstance(value, ir.Expr) and value.op == "call":
                name = getattr(getattr(self.typemap[value.func.name], "typing_key", None), "__name__", "")
                if name in BITWISE:
                    file = self.function.__code__.co_filename
                    yield (file, statement.loc.line, name), self.calltypes[value].args[0].bitwidth

    def _device_function(self, call: Any) -> Any:
        """The dispatcher of the device function that is called, if it is one."""
        dispatcher = getattr(self.typemap[call.func.name], "dispatcher", None)
        is_ours = isinstance(dispatcher, CUDADispatcher) and isinstance(dispatcher.py_func, FunctionType)
        return dispatcher if is_ours else None

    def _written(self, value: Any) -> str:
        """``float32 * float64``: the expression by its operator and the types of its operands."""
        operands = [str(getattr(kind, "literal_type", kind)) for kind in map(self._unspoilt, _operands(value))]
        if value.op == "call":
            called = getattr(self.typemap[value.func.name], "typing_key", None)
            return f"{getattr(called, '__name__', 'a call')}({', '.join(operands)})"
        sign = self._sign(value)
        return f" {sign} ".join(operands) if len(operands) > 1 else f"{sign} {operands[0]}"

    def _unspoilt(self, var: Any) -> Any:
        """A variable's type, or what it would be but for the float64 that is born here."""
        kind = self.typemap[var.name]
        return types.float32 if _is_float64(kind) and not self._is_constant(var) else kind

    def _sign(self, value: Any) -> str:
        function = value.immutable_fn if value.op == "inplace_binop" else value.fn
        name: str = function.__name__
        return _SIGNS.get(name, name)

    def _types(self, value: Any) -> list[Any]:
        return [self.typemap[var.name] for var in _operands(value)]

    def operations(self) -> dict[Line, int]:
        """Arithmetic operations on floats in each line: no conversions, shuffles or calls of device functions."""
        counts: dict[Line, int] = {}
        for statement in self.assigned:
            if self._is_operation(statement):
                line = (self.function.__code__.co_filename, statement.loc.line)
                counts[line] = counts.get(line, 0) + 1
        return counts

    def _is_operation(self, statement: Any) -> bool:
        value = statement.value
        if not isinstance(value, ir.Expr) or value.op not in _ARITHMETIC:
            return False
        if not isinstance(self.typemap[statement.target.name], types.Float):
            return False
        if value.op != "call":
            return True
        function = self.typemap[value.func.name]
        moves = isinstance(function, types.NumberClass) or getattr(function, "typing_key", None) in SHUFFLES
        return not moves and self._device_function(value) is None


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "neg": "-"}


def _operands(value: Any) -> list[Any]:
    if value.op == "call":
        return list(value.args)
    return [value.value] if value.op == "unary" else [value.lhs, value.rhs]


def _variables(value: Any) -> list[Any]:
    """All variables in the right-hand side of an assignment."""
    return [value] if isinstance(value, ir.Var) else list(getattr(value, "list_vars", list)())


def _is_copy_of(value: Any, name: str) -> bool:
    return isinstance(value, ir.Var) and value.unversioned_name == name


def _is_constant_float64(value: Any) -> bool:
    return isinstance(value, ir.Const | ir.Global | ir.FreeVar) and isinstance(value.value, float)


def numba_type(argument: Any) -> Any:
    """The type by which an argument is compiled: an array's, a numpy scalar's, or a Python number's."""
    if isinstance(argument, np.ndarray):
        layout = "C" if argument.flags.c_contiguous else "A"
        return types.Array(from_dtype(argument.dtype), argument.ndim, layout, readonly=not argument.flags.writeable)
    if isinstance(argument, bool | np.bool_):
        return types.boolean
    if isinstance(argument, np.generic):
        return from_dtype(argument.dtype)
    if isinstance(argument, int):
        return types.int64 if argument < 2**63 else types.uint64
    return types.float64


def _element(kind: Any) -> Any:
    return kind.dtype if isinstance(kind, types.Array) else kind


def _is_float64(kind: Any) -> bool:
    return bool(kind == types.float64)
