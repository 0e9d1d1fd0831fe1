"""What a lab may hold: said before it runs, with the line."""

import ast
from pathlib import Path

import pytest

from minillm.course.lesson import lessons
from minillm.course.screening import Refused, screen

FINE = '''"""A lab."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import torch.nn.functional as F
from kernels import cpu
from minillm.cache.blocks import BlockManager

if TYPE_CHECKING:
    from minillm.batch import Batch

LARGE: float = -math.inf
NAMES = frozenset({"a", "b"})


class Helper:
    size = 3

    def __init__(self):
        self.seen = set()


def task(x):
    import bisect

    print("prints are no fault", bisect, x.__class__)
    return [deque(), np.zeros(3), F, cpu, heapq, BlockManager]
'''


def refused(tmp_path, text):
    lab = tmp_path / "lab.py"
    lab.write_text(text)
    with pytest.raises(Refused) as error:
        screen(lab)
    return str(error.value)


def test_definitions_constants_and_imports_that_a_task_may_need_are_fine(tmp_path):
    lab = tmp_path / "lab.py"
    lab.write_text(FINE)
    assert screen(lab).body


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.folder.name)
def test_every_skeleton_passes(lesson):
    screen(lesson.folder / "lab.py")


WRONG = {
    "an import": ("import os\n", "lab.py:1: a lab does not import os; it may import from abc, bisect, "),
    "an import in a function": ("def f():\n    from sys import exit\n", "lab.py:2: a lab does not import sys;"),
    "a relative import": ("from . import x\n", "lab.py:1: a lab does not import .;"),
    "the grader": (
        "from minillm.course import checks\n",
        "lab.py:1: a lab does not import minillm.course, which runs the labs",
    ),
    "the grader as a name": ("from minillm import course\n", "a lab does not import minillm.course, which"),
    "a call": ("x = 1\nprint(x)\n", "lab.py:2: a lab holds imports, constants, functions and classes; move this"),
    "a call for a constant": ("X = zeros(3)\n", "lab.py:1: a lab holds"),
    "a loop": ("for i in range(3):\n    pass\n", "lab.py:1: a lab holds"),
    "eval": ("def f():\n    return eval('1')\n", "lab.py:2: a lab does not use eval; a task never needs it"),
    "a way around": ("def f(x):\n    return x.__globals__\n", "lab.py:2: a lab does not use __globals__;"),
    "a module of a library": ("import torch\ndef f():\n    torch.sys.exit()\n", "lab.py:3: a lab does not use sys;"),
    "no Python": ("def f(:\n", "lab.py:1: invalid syntax; correct this line first"),
    "no Python for the compiler": ("\ndef f():\n    break\n", "lab.py:3: 'break' outside loop; correct this"),
    "a null byte": ("x = 1\0\n", "lab.py is no Python text: it holds null bytes; save it as UTF-8"),
    "too deep": (f"x = {'-' * 100_000}1\n", "lab.py is nested too deeply to be read; write it flatter"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_anything_else_is_refused_in_one_sentence_with_the_line(tmp_path, text, message):
    said = refused(tmp_path, text)
    assert message in said
    assert "\n" not in said


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "lab.py").write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match=r"lab\.py is no Python text: .*; save it as UTF-8"):
        screen(tmp_path / "lab.py")


def test_a_mark_that_an_editor_put_before_the_text_is_no_part_of_it(tmp_path):
    (tmp_path / "lab.py").write_text("X = 1\n", encoding="utf-8-sig")
    assert ast.unparse(screen(tmp_path / "lab.py")) == "X = 1"


@pytest.mark.parametrize(
    ("make", "why"),
    [(Path.mkdir, "Is a directory"), (lambda lab: lab.symlink_to("nowhere"), "No such file or directory")],
    ids=["a folder", "a link to nothing"],
)
def test_what_cannot_be_read_is_refused(tmp_path, make, why):
    make(tmp_path / "lab.py")
    with pytest.raises(Refused, match=rf"lab\.py cannot be read: {why}; there must be a text file of this name"):
        screen(tmp_path / "lab.py")
