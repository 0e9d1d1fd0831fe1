"""What the lab takes from numba's insides, from the package ``numba-cuda`` where that stands for ``numba.cuda``."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import cuda
from numba.core import types as numba_types
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.cuda.compiler import compile_cuda
from numba.cuda.dispatcher import CUDADispatcher
from numba.np import numpy_support

from kernels.target import compiling_for

try:
    from numba.cuda.core import ir
    from numba.cuda.core.errors import NumbaError as NumbaCudaError
except ModuleNotFoundError:
    from numba.core import ir

    NumbaCudaError = NumbaError

types: Any = numba_types
as_dtype: Any = numpy_support.as_dtype
from_dtype: Any = numpy_support.from_dtype

COMPUTE_CAPABILITY = (8, 0)
"""The types do not depend on it, but the compiler wants one."""
ERRORS = (NumbaError, NumbaCudaError, UnsupportedBytecodeError, NameError)
"""What the compiler raises for a kernel that it refuses."""
SHUFFLES = (cuda.shfl_sync, cuda.shfl_up_sync, cuda.shfl_down_sync, cuda.shfl_xor_sync)
"""Device functions for numba, and for numba-cuda functions of its own kind, by which its types name them."""

NO_MIN_MAX = (
    "numba without numba-cuda knows no min() and max() of two numbers; write a if a > b else b, or install numba-cuda"
)

__all__ = [
    "ERRORS",
    "NO_MIN_MAX",
    "SHUFFLES",
    "CUDADispatcher",
    "as_dtype",
    "device_types",
    "from_dtype",
    "ir",
    "kernel_types",
    "types",
]


def kernel_types(function: FunctionType, signature: tuple[Any, ...]) -> Any:
    """numba's annotation of a kernel with the types of all its variables, for arguments of these types.

    Raises one of ERRORS.
    """
    return _annotation(lambda: compile_cuda(function, types.void, signature, cc=COMPUTE_CAPABILITY))


def device_types(function: CUDADispatcher, signature: tuple[Any, ...]) -> Any:
    """That of a device function, which numba keeps when it has compiled a caller."""
    return _annotation(lambda: function.compile_device(signature))


def _annotation(compiled: Callable[[], Any]) -> Any:
    with compiling_for(COMPUTE_CAPABILITY):
        try:
            return compiled().type_annotation
        except TypeError as error:
            if "Signature mismatch" not in str(error):
                raise
            raise NumbaError(NO_MIN_MAX) from error
