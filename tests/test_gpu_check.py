"""``make gpu-check`` on a machine without a GPU: what can be checked is, and what cannot is said."""

import subprocess
import sys
from math import nan

import pytest
import torch

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
    print(gpu.serve(on, torch.float32).equal)
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
