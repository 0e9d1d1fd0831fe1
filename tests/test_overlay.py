"""Functions of a module replaced by those of another file, before anything has imported the module."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minillm.cache.blocks as already_imported
from minillm.course.overlay import Overlay, may_be_compiled
from minillm.course.splice import OverlayError

ROOT = Path(__file__).parent.parent
BLOCKS = already_imported.__name__
TASK = {BLOCKS: ["BlockManager.append"]}


def installing(folder, tasks):
    """The program that overlays ``folder/lab.py`` on these tasks."""
    return f"""
from pathlib import Path
from minillm.course.overlay import Overlay
Overlay(Path({str(folder)!r}, "lab.py"), {tasks!r}).install()
"""


def start(program, folder, tasks):
    """A fresh process that overlays ``folder/lab.py`` on these tasks, if there are any, and then runs the program."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "COLUMNS": "200",
    }
    command = [sys.executable, "-c", (installing(folder, tasks) if tasks else "") + program]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def result(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output)


APPEND = """
class BlockManager:
    def append(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
        needed = self.blocks_to_append(table, start, end)
        if needed > self.num_free:
            raise OutOfBlocks("too few")
        copies = [self._own(table, index) for index in self._shared(table, start, end)]
        while len(table) < self.blocks_for(end):
            table.append(self.device.take())
        return copies

    def _shared(self, table, start, end):
        indices = range(start // self.block_size, min(len(table), self.blocks_for(end)))
        return [index for index in indices if self.device.shared(table[index])]

    def _own(self, table, index):
        old, table[index] = table[index], self.device.take()
        self.device.release(old)
        return old, table[index]
"""
GOLDEN = "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/test_golden_traces.py']))"


def test_the_golden_traces_pass_with_a_students_right_function_and_fail_a_check_with_a_wrong_one(tmp_path):
    takes_blocks_too_early = APPEND.replace("self.blocks_for(end):", "self.blocks_for(end + 1) and self.num_free:")
    processes = {}
    for version, lab in {"right": APPEND, "wrong": takes_blocks_too_early}.items():
        folder = tmp_path / version
        folder.mkdir()
        (folder / "lab.py").write_text(lab)
        processes[version] = start(GOLDEN, folder, TASK)
    right, wrong = (process.communicate(timeout=300)[0] for process in processes.values())
    assert "passed" in right
    assert "failed" not in right
    failures = [line for line in wrong.splitlines() if line.startswith("FAILED")]
    assert any("w0_vllm_watermark_1" in line and "AssertionError" in line for line in failures)
    assert "error" not in wrong.splitlines()[-1]


TOY = '''"""A module of many kinds of functions."""

from dataclasses import dataclass
from functools import cache

REGISTRY = {}


def register(function):
    REGISTRY[function.__name__] = function
    return function


class Base:
    def name(self):
        return "base"


class Child(Base):
    def name(self):
        return "reference"

    def owner(self):
        return None

    @property
    def size(self):
        return 0

    @staticmethod
    def double(x):
        return 0

    @classmethod
    def kind(cls):
        return ""

    def __secret(self):
        return "reference"

    def secret(self):
        return self.__secret()


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 4

    def norm(self):
        return 0


@register
def listed():
    return "reference"


def rate():
    return 1


def price(of=rate):
    return of()


calls = []


@cache
def square(
    x,
):
    return 0


def divide(x):
    return 0
'''

LAB = '''"""A student's solution."""

from __future__ import annotations

import math
import operator

import unused_and_missing
from toy import calls

WORD = "lab"


def worded(text: str) -> ANameThatIsNowhere:
    return f"{text} {WORD}"


class Child:
    """Only the tasks and what they need."""

    def name(self):
        return self._joined(super().name())

    def _joined(self, text):
        return worded(text)

    def owner(self):
        return __class__.__name__

    def size(self):
        return 3

    def double(x):
        return 2 * x

    def kind(cls):
        return cls.__name__

    def __secret(self):
        return WORD


class Point:
    def norm(self):
        return math.hypot(self.x, self.y)


@register
def listed():
    return WORD


def rate():
    return 2


def square(x):
    calls.append(x)
    return x * x


def divide(x):
    return inner(x) + (lambda y: y)(1)


def inner(x):
    return operator.truediv(1, x)
'''

TASKS = ["Child.name", "Child.owner", "Child.size", "Child.double", "Child.kind", "Child.__secret", "Point.norm"]
TASKS += ["listed", "rate", "square", "divide"]

PROGRAM = """
import inspect, json, sys, traceback
before = [name for name in sys.modules if name.startswith("minillm")]
import toy

child = toy.Child()
try:
    toy.divide(0)
except ZeroDivisionError as error:
    frames = [[frame.filename, frame.lineno, frame.line] for frame in traceback.extract_tb(error.__traceback__)[1:]]
square = [toy.square(5), toy.square(5), toy.calls]
print(json.dumps({
    "name": child.name(), "owner": child.owner(), "size": child.size, "double": toy.Child.double(4),
    "kind": toy.Child.kind(), "secret": child.secret(), "norm": toy.Point(3).norm(),
    "registry": toy.REGISTRY["listed"](), "price": toy.price(), "square": square, "frames": frames, "doc": toy.__doc__,
    "before": before,
    "source": inspect.getsource(toy.square.__wrapped__), "reference_source": inspect.getsource(toy.price),
}))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.py").write_text(TOY)
    (folder / "lab.py").write_text(LAB)
    return result(start(PROGRAM, folder, {"toy": TASKS})) | {"lab": str(folder / "lab.py")}


@pytest.mark.parametrize(
    ("what", "value"),
    {
        "name": "base lab",  # super(), a helper method, a helper function and a constant
        "owner": "Child",  # the __class__ cell
        "size": 3,  # a property
        "double": 8,  # a static method
        "kind": "Child",  # a class method
        "secret": "lab",  # a name that its class mangles
        "norm": 5.0,  # a frozen dataclass with slots, and an import of the lab
        "registry": "lab",  # bound by a decorator
        "price": 2,  # bound by a default argument
        "square": [25, 25, [5]],  # wrapped by a cache, and an import from the module itself
    }.items(),
)
def test_whatever_holds_a_function_meets_the_labs(toy, what, value):
    assert toy[what] == value


def test_tracebacks_show_the_labs_file_and_lines(toy):
    lines = {line: number for number, line in enumerate(map(str.strip, LAB.splitlines()), 1)}
    texts = ["return inner(x) + (lambda y: y)(1)", "return operator.truediv(1, x)"]
    assert toy["frames"] == [[toy["lab"], lines[text], text] for text in texts]


def test_source_is_found_in_the_file_that_a_function_came_from(toy):
    assert toy["source"] == "def square(x):\n    calls.append(x)\n    return x * x\n"
    assert toy["reference_source"] == "def price(of=rate):\n    return of()\n"
    assert toy["doc"] == "A module of many kinds of functions."


def test_the_overlay_imports_nothing_that_could_hold_a_task(toy):
    assert {".".join(name.split(".")[:2]) for name in toy["before"]} == {"minillm", "minillm.course"}


def test_a_module_that_its_package_imports_is_overlaid(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.inner import rate\n")
    (package / "inner.py").write_text("def rate():\n    return 1\n")
    (tmp_path / "lab.py").write_text("def rate():\n    return 2\n")
    program = "import package; print(package.rate())"
    assert result(start(program, tmp_path, {"package.inner": ["rate"]})) == 2


MODULES = {
    "lower.py": "def rate():\n    return 1\n\n\nclass Base:\n    def name(self):\n        return 'base'\n",
    "upper.py": (
        "from lower import Base\n\n\nclass Child(Base):\n    def name(self):\n        return 'reference'\n\n"
        "    def named(self, rate):\n        return rate\n"
    ),
}
ONE_FILE = """
class Child:
    def name(self):
        return f"{Base.name(self)} {rated()}"

    def named(self, rate):
        return rate


class Base:
    def name(self):
        return "lab"


def rated():
    return rate() + 10


def rate():
    return 2
"""


@pytest.mark.parametrize(
    ("others", "name"), [({}, "lab 12"), ({"lower": ["Base.name"]}, "base 12"), ({"lower": ["rate"]}, "lab 11")]
)
def test_a_task_may_use_the_labs_tasks_of_other_modules(tmp_path, others, name):
    for file, text in (MODULES | {"lab.py": ONE_FILE}).items():
        (tmp_path / file).write_text(text)
    left_out = others.get("lower", [])
    tasks = {"upper": ["Child.name", "Child.named"], "lower": [t for t in ("Base.name", "rate") if t not in left_out]}
    install = f"""
from pathlib import Path
from minillm.course.overlay import Overlay
Overlay(Path({str(tmp_path)!r}, "lab.py"), {tasks!r}, {others!r}).install()
"""
    program = "import json, upper; print(json.dumps([upper.Child().name(), upper.Child().named(3)]))"
    assert result(start(install + program, tmp_path, None)) == [name, 3]


KERNELS = {
    "callee.py": "from numba import njit\n\n\n@njit(cache=True)\ndef step(x):\n    return x + 1\n",
    "caller.py": (
        "from numba import njit\n\nfrom callee import step\n\n\n@njit(cache=True)\ndef twice(x):\n"
        "    return step(step(x))\n"
    ),
}
RUN_KERNEL = (
    "import json; from caller import twice; print(json.dumps([twice(1), sum(twice.stats.cache_hits.values())]))"
)


def test_a_compiled_caller_that_was_cached_with_another_callee_is_compiled_anew(tmp_path):
    for name, text in KERNELS.items():
        (tmp_path / name).write_text(text)
    lab = tmp_path / "lab.py"
    lab.write_text("def step(x):\n    return x + 10\n")
    tasks = {"callee": ["step"]}
    assert result(start(RUN_KERNEL, tmp_path, None)) == [3, 0]
    assert result(start(RUN_KERNEL, tmp_path, tasks)) == [21, 0]
    assert result(start(RUN_KERNEL, tmp_path, tasks)) == [21, 1]


def test_only_an_overlay_that_may_be_compiled_has_a_cache_of_its_own():
    assert may_be_compiled(["minillm.cache.blocks", "kernels.cpu.attention"])
    assert not may_be_compiled(["minillm.cache.blocks", "minillm.engine"])


def test_numba_compiles_nothing_of_minillm_but_a_bench():
    files = {file for file in (ROOT / "minillm").rglob("*.py") if file.parts[-2] not in ("course", "bench")}
    assert not [file for file in files if {"njit", "compiled_parallel"} & set(re.findall(r"\w+", file.read_text()))]


FITS = """class BlockManager:
    def append(self, table, start, end):
        pass
"""
HAS_ALREADY = r"minillm\.cache\.blocks has a {} already; choose another name"
WRONG = {
    "no such function": (
        FITS.replace("append", "extend"),
        r"lab\.py has no function BlockManager\.append; a task needs",
    ),
    "two of them": (FITS + FITS, r"lab\.py has 2 functions BlockManager\.append; a task needs exactly one"),
    "other names": (
        FITS.replace("start", "first"),
        r"lab\.py:2: append is `def append\(self, table, first, end\)`, but must stay `def append\(self, table, sta",
    ),
    "other kinds": (
        FITS.replace("start", "*, start"),
        r"is `def append\(self, table, \*, start, end\)`, but must stay `def",
    ),
    "other defaults": (
        FITS.replace("end)", "end=0)"),
        r"is `def append\(self, table, start, end=0\)`, but must stay `def",
    ),
    "a coroutine": (
        FITS.replace("def", "async def"),
        r"append is `async def append\(.*\)`, but must stay `def append\(",
    ),
    "other decorators": (
        FITS.replace("    def", "    @staticmethod\n    def"),
        r"lab\.py:3: append has other decorators than the reference; leave decorators out",
    ),
    "a method's name": (
        FITS + "\n    def free(self, table):\n        pass\n",
        r"lab\.py:5: BlockManager has a free already; choose another name",
    ),
    "an attribute": (FITS + "\n    limit = 3\n", r"lab\.py:5: a lab's class BlockManager holds functions only"),
    "a function's name": (
        "def _move():\n    pass\n" + FITS.replace("pass", "_move()"),
        r"lab\.py:1: " + HAS_ALREADY.format("_move"),
    ),
    "a constant's name": ("BlockTable = tuple\n" + FITS, r"lab\.py:1: " + HAS_ALREADY.format("BlockTable")),
    "an import's name": (
        "from os import path as Counter\n" + FITS.replace("pass", "Counter()"),
        r"lab\.py:1: " + HAS_ALREADY.format("Counter"),
    ),
    "a star": ("from math import *\n" + FITS, r"lab\.py:1: a lab imports names one by one; replace the \* by names"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_lab_that_does_not_fit_is_refused_in_one_sentence(tmp_path, text, message):
    (tmp_path / "lab.py").write_text(text)
    with pytest.raises(OverlayError, match=message):
        Overlay(tmp_path / "lab.py", TASK)


def test_a_task_that_the_module_lacks_is_refused(tmp_path):
    (tmp_path / "lab.py").write_text("def grow():\n    pass\n")
    with pytest.raises(OverlayError, match=r"minillm\.cache\.blocks has no function grow; a task needs exactly one"):
        Overlay(tmp_path / "lab.py", {BLOCKS: ["grow"]})


def test_a_module_that_does_not_exist_is_refused(tmp_path):
    (tmp_path / "lab.py").write_text("")
    with pytest.raises(OverlayError, match=r"there is no module minillm\.nowhere to overlay"):
        Overlay(tmp_path / "lab.py", {"minillm.nowhere": ["grow"]})


def test_a_lab_that_python_cannot_compile_is_shown_with_its_line(tmp_path):
    (tmp_path / "lab.py").write_text(FITS.replace("pass", "break"))
    with pytest.raises(SyntaxError) as error:
        Overlay(tmp_path / "lab.py", TASK)
    assert (error.value.filename, error.value.lineno) == (str(tmp_path / "lab.py"), 3)


def test_an_overlay_on_a_module_that_is_imported_already_is_refused(tmp_path):
    (tmp_path / "lab.py").write_text(APPEND)
    finders = list(sys.meta_path)
    with pytest.raises(OverlayError, match="is imported already; install an overlay first thing in a fresh process"):
        Overlay(tmp_path / "lab.py", TASK).install()
    assert sys.meta_path == finders


def test_an_overlay_after_numba_is_imported_has_a_cache_of_its_own_as_well(tmp_path):
    for name, text in (KERNELS | {"lab.py": "def step(x):\n    return x + 10\n"}).items():
        (tmp_path / name).write_text(text)
    assert result(start(RUN_KERNEL, tmp_path, None)) == [3, 0]
    for hits in (0, 1):
        overlaid = installing(tmp_path, {"callee": ["step"]}) + RUN_KERNEL
        assert result(start(f"import numba\n{overlaid}", tmp_path, None)) == [21, hits]
