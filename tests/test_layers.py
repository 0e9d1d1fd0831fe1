"""Who may import whom: never back, and never in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom up; a module may import from its own layer and from those before it.
LAYERS = (
    ("kernels",),
    (
        "minillm.request",
        "minillm.sequence",
        "minillm.batch",
        "minillm.records",
        "minillm.clock",
        "minillm.course.grades",
    ),
    ("minillm.model",),
    ("minillm.cache",),
    ("minillm.scheduler", "minillm.schedulers", "minillm.runner", "minillm.stopping"),
    ("minillm.executor", "minillm.engine", "minillm.metrics"),
    ("minillm.policies", "minillm.serving", "minillm.outputs", "minillm.llm"),
    ("minillm.simulator",),
    ("minillm.comparison",),
    ("minillm.report",),
    ("minillm.bench", "minillm.course", "minillm.doctor"),
    ("minillm.commands", "minillm.cli", "minillm.__main__"),
)


def modules():
    files = sorted([*(ROOT / "minillm").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


MODULES = modules()


def imports(file: Path) -> set[str]:
    """The project's modules that a file imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{file}: import by full names"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= submodules & MODULES.keys() or {node.module}
    return found & MODULES.keys()


def layer(module: str) -> int:
    """The layer whose entry is the module or a package that it is in."""
    entries = [
        index for index, names in enumerate(LAYERS) for name in names if module == name or module.startswith(name + ".")
    ]
    assert entries, f"{module} is in no layer; say where it belongs"
    return entries[0]


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"minillm"}))
def test_a_module_imports_only_from_its_layer_and_those_below(module):
    above = {other for other in imports(MODULES[module]) - {"minillm"} if layer(other) > layer(module)}
    assert not above


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter({module: imports(file) for module, file in MODULES.items()}).prepare()


def test_policies_run_without_tensors():
    """Neither a policy nor the engine's plain data needs torch: importing them is quick, and they cannot touch one."""
    code = "import sys, minillm.schedulers.vllm, minillm.schedulers.ragged; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
