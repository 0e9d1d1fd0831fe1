"""What the compiler makes of the CUDA kernels, found without a GPU: PTX, and what its machine code takes.

Kernels are compiled as ``numba-cuda`` does for a launch: NVVM leaves an intermediate code, and NVIDIA's nvJitLink
optimizes that while it links, and assembles it. Assembled from NVVM's own PTX the same kernels take many more
registers. Both tools come with the extra ``cuda``.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from numba import cuda, types

from kernels.cuda.copy_blocks import swap_blocks_kernel
from kernels.cuda.flash_attention import flash_attention_kernel
from kernels.cuda.map import axpy_grid_stride_kernel, axpy_kernel
from kernels.cuda.matmul import matmul_naive_kernel, matmul_tiled_kernel
from kernels.cuda.paged_decode_attention import paged_decode_attention_kernel
from kernels.cuda.paged_flash_decoding import combine_kernel, paged_flash_decoding_kernel
from kernels.cuda.paged_prefill_attention import paged_prefill_attention_kernel
from kernels.cuda.reduction import sum_rows_shared_kernel, sum_rows_shuffle_kernel
from kernels.cuda.reshape_and_cache import reshape_and_cache_kernel
from kernels.cuda.softmax import softmax_online_kernel, softmax_two_pass_kernel
from kernels.cuda.token_attention import token_attention_kernel
from kernels.target import Capability, compiling_for

CAPABILITIES: tuple[Capability, ...] = ((8, 0), (9, 0))
"""A100 and H100."""
STORAGE = ("float16", "float32")

KERNELS: tuple[tuple[Any, str], ...] = (
    (axpy_kernel, "s x1 x1 x1"),
    (axpy_grid_stride_kernel, "s x1 x1 x1"),
    (sum_rows_shared_kernel, "x2 f1"),
    (sum_rows_shuffle_kernel, "x2 f1"),
    (matmul_naive_kernel, "x2 x2 f2"),
    (matmul_tiled_kernel, "x2 x2 f2"),
    (softmax_two_pass_kernel, "x2 x2"),
    (softmax_online_kernel, "x2 x2"),
    (flash_attention_kernel, "x3 x3 x3 s x3 f2"),
    (reshape_and_cache_kernel, "x3 x3 x4 x4 i1"),
    (reshape_and_cache_kernel, "v3 v3 x4 x4 i1"),
    (paged_decode_attention_kernel, "x3 x4 x4 i2 i1 s x3"),
    (paged_flash_decoding_kernel, "x3 x4 x4 i2 i1 s f4 f3"),
    (combine_kernel, "f4 f3 x3"),
    (paged_prefill_attention_kernel, "x3 x4 x4 i2 i1 i1 s x3"),
    (swap_blocks_kernel, "x4 x4 x4 x4 i2"),
    (token_attention_kernel, "x3 x3 x3 i2 i1 s x3"),
)
"""Every kernel of ``kernels.cuda`` with its arguments: s is a float32; x, f and i are arrays of so many dimensions, in
the type that keys and values are stored in, in float32, and in int64; v is an x with any strides."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What the assembler says of a kernel: a thread's registers, and memory in bytes.

    A thread has stack and spills, slow memory of its own for what found no register; a block has shared memory, dynamic
    arrays not counted.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


def can_compile() -> bool:
    """Whether numba-cuda and NVIDIA's libraries are found; the libraries alone come with other packages too."""
    if find_spec("numba_cuda") is None:
        return False
    from cuda import pathfinder

    try:
        for library in ("nvvm", "nvJitLink"):
            pathfinder.load_nvidia_dynamic_lib(library)
    except pathfinder.DynamicLibNotFoundError:
        return False
    return True


def intermediate(kernel: Any, arguments: str, storage: str, capability: Capability) -> bytes:
    """NVVM's intermediate code of a kernel for a compute capability, with ``float16`` or ``float32`` storage."""
    signature = tuple(_argument_type(each, getattr(types, storage)) for each in arguments.split())
    with compiling_for(capability):
        code, _ = cuda.compile(kernel.py_func, signature, device=False, abi="numba", cc=capability, output="ltoir")
    return bytes(code)


def ptx(code: bytes, capability: Capability) -> str:
    """The PTX that the assembler is given for intermediate code."""
    from cuda.bindings import nvjitlink

    with _linked(code, capability, "-ptx") as linker:
        text = bytearray(nvjitlink.get_linked_ptx_size(linker))
        nvjitlink.get_linked_ptx(linker, text)
    return text.decode()


def assembled(code: bytes, capability: Capability) -> Assembled:
    """Assemble intermediate code to machine code, as for a launch, and read what that takes."""
    from cuda.bindings import nvjitlink

    with _linked(code, capability, "-Xptxas=-v") as linker:
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    return _assembled(log.decode())


@contextmanager
def _linked(code: bytes, capability: Capability, option: str) -> Iterator[int]:
    """A linker that is done with the code."""
    from cuda.bindings import nvjitlink

    options = ["-arch=sm_{}{}".format(*capability), "-lto", option]
    linker = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, code, len(code), "kernel")
        nvjitlink.complete(linker)
        yield linker
    finally:
        nvjitlink.destroy(linker)


def _assembled(log: str) -> Assembled:
    counts = (
        r"Used (\d+) registers",
        *(rf"(\d+) bytes {what}" for what in ("stack", "spill stores", "spill loads", "smem")),
    )
    return Assembled(*(max(map(int, re.findall(count, log)), default=0) for count in counts))


def _argument_type(argument: str, storage: Any) -> Any:
    kind = {"s": types.float32, "x": storage, "v": storage, "f": types.float32, "i": types.int64}[argument[0]]
    return types.Array(kind, int(argument[1:]), "A" if argument[0] == "v" else "C") if argument[1:] else kind
