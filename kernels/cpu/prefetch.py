"""Asking for memory before it is needed."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.checks import Floats
from kernels.cpu.compiled import compiled_inline

CACHE_LINE = 64
"""Bytes that the CPU moves from memory at once."""

CHUNK = 4 * CACHE_LINE
READ, ALL_CACHES, DATA = 0, 3, 1


def _emit_prefetch(_typing_context: Any, array: Any, row: Any, chunk: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, row, chunk = arguments
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        row_bytes, chunk_bytes = builder.extract_value(struct.strides, 0), context.get_constant(types.intp, CHUNK)
        start = builder.add(builder.mul(row, row_bytes), builder.mul(chunk, chunk_bytes))
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        )
        for line in range(0, CHUNK, CACHE_LINE):
            offset = builder.add(start, context.get_constant(types.intp, line))
            address = builder.gep(builder.bitcast(struct.data, pointer), [offset])
            builder.call(prefetch, [address, *(flag(value) for value in (READ, ALL_CACHES, DATA))])
        return context.get_dummy_value()

    return types.void(array, row, chunk), generate


# numba has no prefetch of its own. This is llvm.prefetch (LLVM Language Reference) on four cache lines of a row, for a
# loop over single lines costs as much as it saves.
prefetch_chunk: Any = intrinsic(_emit_prefetch)


@compiled_inline
def prefetch_row(array: Floats, row: int) -> None:
    """Start loading ``array[row]`` of an array ``[rows, columns]``, and wait for nothing.

    A CPU foresees contiguous reading, but not where the next block lies: without a hint each block begins with a stall.
    """
    for chunk in range((array.shape[1] * array.itemsize + CHUNK - 1) // CHUNK):
        prefetch_chunk(array, row, chunk)
