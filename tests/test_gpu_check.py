"""``make gpu-check`` on a machine without a GPU: what can be checked is, and what cannot is said."""

import subprocess
import sys
from math import nan

import pytest
import torch

from kernels import lab
from minillm.bench import gpu

BLOCKER = """
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("tokenizers", "gguf", "jinja2", "safetensors", "typer", "transformers"):
            raise ModuleNotFoundError(name)
import importlib.util
sys.meta_path.insert(0, Missing())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("tokenizers", "gguf", "jinja2") else real(name)
import torch
from minillm.bench import gpu
on = gpu.machine()
with on.launching():
    print(next(gpu.serve(on, torch.float32)).equal)
"""


def test_without_a_gpu_the_checks_run_in_the_lab_and_the_report_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "TOLERANCE", {torch.float32: 1e-4})
    report = gpu.Report("today", "the lab", {}, gpu.missing())
    gpu.measure(gpu.machine(), report)
    text = "\n".join(gpu.lines(report))
    assert report.passed
    assert "missing: torch sees no CUDA GPU" in text
    assert "unmeasured: bandwidth and speed" in text
    assert {check.kernel.split()[0] for check in report.checks} >= {"axpy", "flash_attention", "paged_flash_decoding"}


def test_the_engine_is_checked_where_only_torch_numba_and_numpy_are_installed():
    run = subprocess.run([sys.executable, "-c", BLOCKER], capture_output=True, text=True, check=False)
    assert run.stdout == "2\n", run.stderr


@pytest.mark.parametrize("error", [1.0, nan])
def test_a_wrong_number_and_nan_pass_no_check(error):
    report = gpu.Report("today", "the lab", {}, [], checks=[gpu.Check("axpy", "float32", error, 1e-4)])
    assert not report.passed
    assert "WRONG axpy" in "\n".join(gpu.lines(report))


def test_a_step_that_fails_is_reported_and_the_others_go_on(monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")
        yield

    monkeypatch.setattr(gpu, "TOLERANCE", {torch.float32: 1e-4})
    for step in ("_cache_checks", "_attention_checks", "serve"):
        monkeypatch.setattr(gpu, step, broken)
    report, noted = gpu.Report("today", "the lab", {}, []), []
    on = gpu.Machine(torch.device("cpu"), torch.Tensor.numpy, lab.run, large=False)
    gpu.measure(on, report, lambda: noted.append(len(report.checks)))
    assert not report.passed
    assert len(report.failures) == 3
    assert noted == [8] * 4
    assert "failed: cache checks in float32: RuntimeError: no such kernel" in "\n".join(gpu.lines(report))


@pytest.mark.parametrize("storage", gpu.TOLERANCE)
def test_a_right_result_rounded_to_its_storage_passes_at_every_size(storage):
    """A softmax over thousands, whose largest elements are far above their root mean square."""
    right = torch.randn(100, 5001, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    assert gpu._check(gpu.softmax_online, storage, right.to(storage), right).passed
    wrong = right.clone()
    wrong[0] *= 1 + 3 * gpu.TOLERANCE[storage]
    assert not gpu._check(gpu.softmax_online, storage, wrong, right).passed
