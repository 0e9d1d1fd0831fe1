"""What the package promises to those who import it, and to its neighbours."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.import_utils import is_kernels_available

import minillm

ROOT = Path(minillm.__file__).parents[1]


def imported_by(code: str) -> set[str]:
    """The packages that a fresh interpreter has imported after this code."""
    code += "\nimport sys\nprint('modules', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {module.partition(".")[0] for module in run.stdout.split("modules ")[-1].split()}


@pytest.mark.parametrize("module", ["minillm", "minillm.scheduler, minillm.records, minillm.metrics", "minillm.cli"])
def test_what_computes_nothing_imports_no_tensors(module):
    assert not imported_by(f"import {module}") & {"torch", "numba", "transformers"}


@pytest.mark.parametrize("name", sorted(set(minillm.__all__) - {"__version__"}))
def test_every_name_that_the_package_offers_is_there(name):
    assert getattr(minillm, name).__name__ == name


def test_a_name_that_it_does_not_offer_is_an_error_that_lists_those_that_it_does():
    with pytest.raises(AttributeError, match=r"'vLLM'; it offers .*LLM"):
        minillm.vLLM  # noqa: B018


def test_our_kernels_belong_to_minillm_by_their_metadata():
    assert set(packages_distributions()["kernels"]) == {"minillm"}


def test_transformers_builds_a_llama_and_does_not_take_our_kernels_for_the_package_of_that_name():
    sizes = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    assert LlamaForCausalLM(LlamaConfig(**sizes)).config.hidden_size == 8
    assert not is_kernels_available()


def distribution_names(lines) -> set[str]:
    return {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines if line[0] != "#"}


def test_every_package_that_minillm_needs_is_pinned():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert all("==" in pin or pin[0] == "#" for pin in pins)
    assert distribution_names(requires("minillm")) <= distribution_names(pins)
