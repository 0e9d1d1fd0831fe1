"""What this machine can run, what minillm chooses on it, and how to get what is missing."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import Literal

PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at, what was found, and the remedy where it will not do.

    While something is "missing" nothing works; a "limit" stops only what its text names.
    """

    subject: str
    verdict: Literal["ok", "limit", "missing"]
    text: str
    remedy: str = ""


def install_command(extra: str) -> str:
    """What installs minillm with an extra's packages, in the versions that it was tested with."""
    return f"pip install --constraint constraints.txt --editable '.[{extra}]'"


def examine() -> Iterator[Finding]:
    """Every finding in turn. What packages are needed for is looked at when all of them are there."""
    yield python(sys.version_info[:2])
    yield processor()
    yield make(shutil.which("make"))
    yield test_packages()
    yield foreign_kernels()
    packages = runtime_packages()
    yield packages
    if packages.verdict == "ok":
        yield default_model()
        yield device()
        yield dtype()
        yield trial()
        yield threads()


def python(found: tuple[int, int]) -> Finding:
    """Whether this is the Python that the tests run on."""
    text = f"Python {found[0]}.{found[1]} on {platform.system()}"
    if found == PYTHON:
        return Finding("python", "ok", text)
    return Finding("python", "missing", text, f"install Python {PYTHON[0]}.{PYTHON[1]}, on which minillm is tested")


def processor() -> Finding:
    """Cores that this process may use, and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{platform.machine()}, {cores} cores"
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        text += f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB of memory"
    return Finding("machine", "ok", text)


def make(path: str | None) -> Finding:
    """Whether the Makefile can be used."""
    if path:
        return Finding("make", "ok", "found")
    return Finding("make", "limit", "not found: no make targets", "use minillm test and minillm demo instead")


def runtime_packages() -> Finding:
    """Whether everything that minillm imports is installed."""
    missing = _not_installed("")
    if missing:
        return Finding("packages", "missing", f"not installed: {', '.join(missing)}", install_command("test"))
    return Finding("packages", "ok", f"torch {_version('torch')}, numba {_version('numba')}, numpy {_version('numpy')}")


def test_packages() -> Finding:
    """Whether the tests can run."""
    missing = _not_installed("test")
    if missing:
        return Finding("tests", "limit", f"minillm test needs {', '.join(missing)}", install_command("test"))
    return Finding("tests", "ok", "all packages that they need are installed")


def foreign_kernels() -> Finding:
    """Whether Hugging Face's ``kernels`` is installed: of two packages of one name Python imports only one."""
    try:
        distribution("kernels")
    except PackageNotFoundError:
        return Finding("kernels", "ok", "minillm's own")
    text = "Hugging Face's package of the same name is installed as well, and one hides the other"
    return Finding("kernels", "missing", text, "install minillm in an environment of its own")


def default_model() -> Finding:
    """Whether the default weights are installed."""
    from minillm.model.checkpoint import ModelError
    from minillm.model.weights import default_model_path

    try:
        path = default_model_path()
    except ModelError as error:
        return Finding("model", "missing", "no default weights", str(error))
    return Finding("model", "ok", f"{path.name}, {path.stat().st_size / 1e6:.0f} MB")


def device() -> Finding:
    """What computes: the CPU, whatever else there is."""
    import torch

    level = torch.backends.cpu.get_cpu_capability()
    extras = [name for name in ("amx_bf16", "avx512_bf16") if torch.cpu.get_capabilities().get(name)]
    text = f"cpu ({', '.join([level, *extras])})"
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        return Finding("device", "limit", f"{text}; {gpu} stays idle until device=cuda is asked for")
    return Finding("device", "ok", f"{text}; no CUDA GPU, and none is needed")


def dtype() -> Finding:
    """The dtype that "auto" stands for, and what this machine's matrix products say about bfloat16."""
    from minillm.bench.linear import measure
    from minillm.serving import dtype_named

    ratios = {times.rows: times.inputs_first / times.bfloat16 for times in measure((1, 16))}
    speeds = " and ".join(f"{ratio:.1f} times as fast for a batch of {rows}" for rows, ratio in ratios.items())
    chosen = str(dtype_named("auto")).removeprefix("torch.")
    return Finding("dtype", "ok", f"{chosen}; products in bfloat16 are {speeds}, and rounded to 8 bits")


def trial() -> Finding:
    """Whether a tiny random model, served by the engine, gives the tokens of the loop without cache and engine."""
    from minillm.llm import LLM
    from minillm.model.naive import generate
    from minillm.model.tiny import tiny
    from minillm.model.tokenizer import ByteTokenizer
    from minillm.request import SamplingParams
    from minillm.serving import LanguageModel

    model, prompt, params = tiny(), [1, 2, 3], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    [output] = LLM(LanguageModel(model, ByteTokenizer())).generate([prompt], params)
    if output.outputs[0].token_ids == tuple(generate(model, prompt, params).token_ids):
        return Finding("trial", "ok", "the engine generates the tokens of the plain loop")
    return Finding(
        "trial", "missing", "the engine's tokens differ from the plain loop's", "run the tests, and report it"
    )


def threads() -> Finding:
    """Threads of the two libraries that compute; never both at once."""
    import torch
    from numba import get_num_threads
    from numba.np.ufunc import threading_layer

    text = f"{torch.get_num_threads()} for torch, {get_num_threads()} for numba ({threading_layer()})"
    return Finding("threads", "ok", text)


def _not_installed(extra: str) -> list[str]:
    """The packages that minillm's metadata names under an extra, or under none, and that are not there."""
    lines = [line.partition(";") for line in requires("minillm") or []]
    named = [name for name, _, marker in lines if (f'extra == "{extra}"' if extra else "") == marker.strip()]
    names = [re.split(r"[^\w.-]", name)[0] for name in named]
    return [name for name in names if not _version(name)]


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None
