"""Every CUDA kernel compiles for GPUs that are not there, in float32 throughout and within its registers."""

import re
from importlib import import_module
from pkgutil import iter_modules

import pytest
from numba.cuda.dispatcher import CUDADispatcher
from typer.testing import CliRunner

from kernels import cuda, ptx
from minillm.cli import app

needs_the_compiler = pytest.mark.skipif(
    not ptx.can_compile(), reason="the CUDA compiler is not installed: pip install minillm[cuda]"
)
REGISTERS = 65536
"""Of a multiprocessor, on sm_80 and sm_90 alike (CUDA C++ Programming Guide, "Compute Capabilities")."""
MOST_THREADS = 256
"""Of a block, in every launch of ours."""


def test_every_kernel_is_among_those_that_are_compiled():
    modules = [import_module(f"{cuda.__name__}.{module.name}") for module in iter_modules(cuda.__path__)]
    written = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, CUDADispatcher) and not value.targetoptions["device"]
    }
    assert written == {kernel.py_func.__name__ for kernel, _ in ptx.KERNELS}


@needs_the_compiler
@pytest.mark.parametrize("capability", ptx.CAPABILITIES, ids="sm_{0[0]}{0[1]}".format)
@pytest.mark.parametrize("storage", ptx.STORAGE)
@pytest.mark.parametrize(("kernel", "arguments"), ptx.KERNELS, ids=lambda value: getattr(value, "__name__", value))
def test_a_kernel_compiles_without_float64_and_without_memory_of_its_own(kernel, arguments, storage, capability):
    code = ptx.intermediate(kernel, arguments, storage, capability)
    text = ptx.ptx(code, capability)
    assert f".target sm_{capability[0]}{capability[1]}" in text
    assert not re.findall(r"\.f64|\.local", text)
    taken = ptx.assembled(code, capability)
    assert (taken.stack, taken.spill_stores, taken.spill_loads) == (0, 0, 0)
    assert 0 < taken.registers * MOST_THREADS <= REGISTERS  # one block at least fits


@needs_the_compiler
def test_the_table_has_registers_in_every_variant_spills_and_shared_memory(monkeypatch):
    [tiled] = [entry for entry in ptx.KERNELS if entry[0].py_func.__name__ == "matmul_tiled_kernel"]
    monkeypatch.setattr(ptx, "KERNELS", (tiled,))
    output = CliRunner().invoke(app, ["bench", "ptx"]).output
    name, *registers, shared = re.findall(r"\w+", next(line for line in output.splitlines() if "matmul" in line))
    assert (name, shared) == ("matmul_tiled", str(2 * 16 * 16 * 4))
    assert len(registers) == 4
    assert all(0 < int(each) < 256 for each in registers)
    assert output.endswith("spills, at most: 0\n")


def test_without_the_compiler_the_table_says_what_installs_it(monkeypatch):
    monkeypatch.setattr(ptx, "can_compile", lambda: False)
    assert "'.[cuda]'" in str(CliRunner().invoke(app, ["bench", "ptx"]).exception)
