"""What the compiler makes of the CUDA kernels, found without a GPU: PTX, and the registers that machine code takes.

Needs the package ``numba-cuda`` with its compiler wheels, the extra ``cuda``. NVIDIA's nvJitLink, which is among them,
holds the assembler.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

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

Capability = tuple[int, int]

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
    (paged_decode_attention_kernel, "x3 x4 x4 i2 i1 s x3"),
    (paged_flash_decoding_kernel, "x3 x4 x4 i2 i1 s f4 f3"),
    (combine_kernel, "f4 f3 x3"),
    (paged_prefill_attention_kernel, "x3 x4 x4 i2 i1 i1 s x3"),
    (swap_blocks_kernel, "x4 x4 x4 x4 i2"),
    (token_attention_kernel, "x3 x3 x3 i2 i1 s x3"),
)
"""Every kernel of ``kernels.cuda`` with its arguments: s is a float32; x, f and i are arrays of so many dimensions, in
the type that keys and values are stored in, in float32, and in int64."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What the assembler says of a kernel: a thread's registers, and bytes of its own memory for what found none."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


def ptx(kernel: Any, arguments: str, storage: str, capability: Capability) -> str:
    """The PTX of a kernel for a compute capability, with ``float16`` or ``float32`` storage."""
    signature = tuple(_argument_type(each, getattr(types, storage)) for each in arguments.split())
    with _device(capability):
        text, _ = cuda.compile_ptx(kernel.py_func, signature, cc=capability)
    return str(text)


def assembled(text: str, capability: Capability) -> Assembled:
    """Assemble PTX to machine code, as a driver does, and read what it took. ModuleNotFoundError without nvJitLink."""
    from cuda.bindings import nvjitlink

    options = ["-arch=sm_{}{}".format(*capability), "-Xptxas=-v"]
    linker, source = nvjitlink.create(len(options), options), text.encode()
    nvjitlink.add_data(linker, nvjitlink.InputType.PTX, source, len(source), "kernel")
    nvjitlink.complete(linker)
    log = bytearray(nvjitlink.get_info_log_size(linker))
    nvjitlink.get_info_log(linker, log)
    return _assembled(log.decode())


def _assembled(log: str) -> Assembled:
    counts = (r"Used (\d+) registers", r"(\d+) bytes stack", r"(\d+) bytes spill stores", r"(\d+) bytes spill loads")
    return Assembled(*(max(map(int, re.findall(count, log))) for count in counts))


def _argument_type(argument: str, storage: Any) -> Any:
    kind = {"s": types.float32, "x": storage, "f": types.float32, "i": types.int64}[argument[0]]
    return types.Array(kind, int(argument[1:]), "C") if argument[1:] else kind


@contextmanager
def _device(capability: Capability) -> Iterator[None]:
    """Device functions are compiled for "the current device" while their caller is: stand in for it."""
    device = SimpleNamespace(compute_capability=capability)
    with patch("numba.cuda.dispatcher.get_current_device", lambda: device):
        yield
