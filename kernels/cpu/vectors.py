"""Vectors of eight numbers in registers, for loops that a compiler does not turn into good vector instructions itself.

numba has no such type. This adds one, with the few operations that the attention kernel needs; LLVM maps them to
whatever the processor has (LLVM Language Reference, "Vector Type"): one AVX2 register holds eight float32.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

LANES = 8
"""Numbers in a vector."""

_INDEX = ir.IntType(32)


class VectorType(types.Type):
    """numba's type of a vector of ``LANES`` numbers, float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector is one LLVM value."""

    def __init__(self, manager: Any, vector: VectorType) -> None:
        number = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(number, LANES))  # type: ignore[no-untyped-call]


def _emit_load(_typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        return builder.load(pointer, align=_itemsize(signature.args[0]))

    return VectorType(array.dtype)(array, types.intp, types.intp), generate


def _emit_store(_typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        builder.store(arguments[3], pointer, align=_itemsize(signature.args[0]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


def _emit_broadcast(_typing_context: Any, number: Any) -> Any:
    vector = VectorType(number)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        undefined = ir.Constant(context.get_value_type(vector), ir.Undefined)
        return _shuffled(builder, builder.insert_element(undefined, arguments[0], _INDEX(0)), undefined, [0] * LANES)

    return vector(number), generate


def _emit_multiply_add(_typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        name = f"llvm.fmuladd.v{LANES}f{signature.args[0].dtype.bitwidth}"
        function = get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, arguments)

    return a(a, b, c), generate


def _emit_larger(_typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, b = arguments
        return builder.select(builder.fcmp_ordered(">", b, a), b, a)

    return a(a, b), generate


def _emit_largest_lane(_typing_context: Any, vector: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        best, lanes = arguments[0], LANES
        while lanes > 1:
            lanes //= 2
            lower, upper = (_shuffled(builder, best, best, range(first, first + lanes)) for first in (0, lanes))
            best = builder.select(builder.fcmp_ordered(">", upper, lower), upper, lower)
        return builder.extract_element(best, _INDEX(0))

    return vector.dtype(vector), generate


def _emit_store_sums(_typing_context: Any, array: Any, row: Any, column: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        def pairs(x: Any, y: Any) -> Any:  # x0+x1, x2+x3, y0+y1, y2+y3, and the same of the upper halves
            even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
            return builder.fadd(_shuffled(builder, x, y, even), _shuffled(builder, x, y, odd))

        a, b, c, d = arguments[3:]
        halves = pairs(pairs(a, b), pairs(c, d))
        lower, upper = (_shuffled(builder, halves, halves, range(first, first + 4)) for first in (0, 4))
        sums = builder.fadd(lower, upper)
        pointer = _pointer(context, builder, signature, arguments)
        builder.store(sums, builder.bitcast(pointer, sums.type.as_pointer()), align=_itemsize(signature.args[0]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, a, b, c, d), generate


def _pointer(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
    """Where ``array[row, column]`` lies; rows are contiguous."""
    array = signature.args[0]
    struct = context.make_array(array)(context, builder, arguments[0])
    row_start = builder.mul(arguments[1], builder.extract_value(struct.strides, 0))
    offset = builder.add(row_start, builder.mul(arguments[2], context.get_constant(types.intp, _itemsize(array))))
    address = builder.gep(builder.bitcast(struct.data, ir.IntType(8).as_pointer()), [offset])
    return builder.bitcast(address, context.get_value_type(VectorType(array.dtype)).as_pointer())


def _itemsize(array: Any) -> int:
    return int(array.dtype.bitwidth) // 8


def _shuffled(builder: ir.IRBuilder, a: Any, b: Any, lanes: Any) -> Any:
    indices = [_INDEX(lane) for lane in lanes]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INDEX, len(indices)), indices))


load: Any = intrinsic(_emit_load)
"""``load(array, row, column)``: the vector ``array[row, column : column + LANES]``."""
store: Any = intrinsic(_emit_store)
"""``store(array, row, column, vector)``: write it to the same place."""
broadcast: Any = intrinsic(_emit_broadcast)
"""``broadcast(number)``: the number in every lane."""
multiply_add: Any = intrinsic(_emit_multiply_add)
"""``multiply_add(a, b, c)``: ``a * b + c`` in every lane, by one instruction where the processor has it."""
larger: Any = intrinsic(_emit_larger)
"""``larger(a, b)``: in every lane b where b > a, else a; what is not a number in b is passed over, as in ``max``."""
largest_lane: Any = intrinsic(_emit_largest_lane)
"""``largest_lane(vector)``: the largest of its numbers."""
store_sums: Any = intrinsic(_emit_store_sums)
"""``store_sums(array, row, column, a, b, c, d)``: the four sums over lanes, to ``array[row, column : column + 4]``."""
