"""Every CUDA kernel compiles for GPUs that are not there, in float32 throughout and within its registers."""

import re

import pytest

from kernels import ptx

pytest.importorskip(
    "cuda.bindings.nvjitlink", reason="the compiler wheels are not installed: pip install minillm[cuda]"
)

TARGETS = [("float16", (8, 0)), ("float32", (9, 0))]


@pytest.mark.parametrize(("storage", "capability"), TARGETS, ids=["float16-sm_80", "float32-sm_90"])
@pytest.mark.parametrize(("kernel", "arguments"), ptx.KERNELS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_kernel_compiles_without_float64_and_without_memory_of_its_own(kernel, arguments, storage, capability):
    text = ptx.ptx(kernel, arguments, storage, capability)
    assert f".target sm_{capability[0]}{capability[1]}" in text
    assert not re.findall(r"\.f64|\.local", text)
    taken = ptx.assembled(text, capability)
    assert (taken.stack, taken.spill_stores, taken.spill_loads) == (0, 0, 0)
    assert taken.registers * 256 <= 65536  # of a multiprocessor: one block at least fits
