"""Asking for memory before it is needed."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.checks import Floats
from kernels.cpu.compiled import compiled

CACHE_LINE = 64
"""Bytes that the CPU moves from memory at once."""

READ, ALL_CACHES, DATA = 0, 3, 1


@compiled
def prefetch_row(array: Floats, row: int) -> None:
    """Start loading ``array[row]`` of an array ``[rows, columns]``, and wait for nothing.

    The CPU foresees contiguous reading, but not where the next block lies: without a hint each block begins with a stall.
    """
    for line in range((array.shape[1] * array.itemsize + CACHE_LINE - 1) // CACHE_LINE):
        prefetch_line(array, row, line)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_line(_typing_context: Any, array: Any, row: Any, line: Any) -> Any:
    """``prefetch_line(array, row, line)``: one cache line of a row, by LLVM's ``llvm.prefetch`` (numba has no such call)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        struct = context.make_array(array_type)(context, builder, arguments[0])
        first_column = context.get_constant(types.intp, 0)
        start = cgutils.get_item_pointer(
            context, builder, array_type, struct, [arguments[1], first_column], wraparound=False
        )
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        offset = builder.mul(arguments[2], context.get_constant(types.intp, CACHE_LINE))
        address = builder.gep(builder.bitcast(start, byte), [offset])
        hint = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        builder.call(function, [address, *(flag(value) for value in (READ, ALL_CACHES, DATA))])
        return context.get_dummy_value()

    return types.void(array, row, line), generate
