"""Asking for memory before it is needed."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.checks import Floats
from kernels.cpu.compiled import compiled

CACHE_LINE = 64
"""Bytes that the CPU moves from memory at once."""

READ, ALL_CACHES, DATA = 0, 3, 1


def _emit_prefetch(_typing_context: Any, array: Any, row: Any, line: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        row_bytes = builder.extract_value(struct.strides, 0)
        line_bytes = context.get_constant(types.intp, CACHE_LINE)
        offset = builder.add(builder.mul(arguments[1], row_bytes), builder.mul(arguments[2], line_bytes))
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.gep(builder.bitcast(struct.data, pointer), [offset])
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        )
        builder.call(prefetch, [address, *(flag(value) for value in (READ, ALL_CACHES, DATA))])
        return context.get_dummy_value()

    return types.void(array, row, line), generate


# numba has no prefetch of its own; this is llvm.prefetch (LLVM Language Reference) on one cache line of a row.
prefetch_line: Any = intrinsic(_emit_prefetch)


@compiled
def prefetch_row(array: Floats, row: int) -> None:
    """Start loading ``array[row]`` of an array ``[rows, columns]``, and wait for nothing.

    A CPU foresees contiguous reading, but not where the next block lies: without a hint each block begins with a stall.
    """
    for line in range((array.shape[1] * array.itemsize + CACHE_LINE - 1) // CACHE_LINE):
        prefetch_line(array, row, line)
