"""What each CUDA kernel takes of a GPU, by the assembler, for GPUs that are not there."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kernels import ptx

VARIANTS = tuple(product(ptx.CAPABILITIES, ptx.STORAGE))


@dataclass(frozen=True, slots=True)
class Taken:
    """A thread's registers in each of ``VARIANTS``, and at most in any: a thread's spills, a block's shared memory."""

    kernel: str
    registers: tuple[int, ...]
    spilled_bytes: int
    shared_bytes: int


def measure() -> Iterator[Taken]:
    """Compile every kernel in every variant; a second for each."""
    for kernel, arguments in ptx.KERNELS:
        every = [
            ptx.assembled(ptx.intermediate(kernel, arguments, storage, capability), capability)
            for capability, storage in VARIANTS
        ]
        name = kernel.py_func.__name__.removesuffix("_kernel") + (", strided" if "v" in arguments else "")
        spilled = max(each.spill_stores + each.spill_loads for each in every)
        yield Taken(name, tuple(each.registers for each in every), spilled, max(each.shared for each in every))
