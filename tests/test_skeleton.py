"""A lesson's lab, generated from the reference: what it shows, what it leaves out, and that it fits as an overlay."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.course.lesson import Function, Lesson, LessonError, Task, lessons
from minillm.course.skeleton import skeleton

ROOT = Path(__file__).parent.parent

SHAPES = '''"""Shapes."""

import math
import os.path
from abc import ABC
from collections import deque
from dataclasses import dataclass
from functools import cache, partial as part

LIMIT = 3
"""Sides at most."""


class Shape(ABC):
    """A shape."""


@dataclass(frozen=True)
class Square(Shape):
    """A square.

    Its sides are equal.
    """

    side: float
    name: str = "square"

    @property
    def area(self) -> float:
        """Side by side."""
        return _power(self.side)

    def grown(self, by: float = LIMIT) -> "Square":
        """A larger one.

        By so much.
        """
        # A hint that the student must not see.
        total = self.side + by
        return Square(total)

    def corners(self) -> int:
        """How many."""
        return 4


class Pile:
    def __init__(self, shapes: deque[Shape]) -> None:
        self.shapes = shapes  # from the top

    def top(self, *, of: "Square | None" = None) -> Shape:
        return max(self.shapes, key=part(math.sqrt)) if of else self.shapes[0]


@cache
def _power(x: float, n: int = 2) -> float:
    """To the power of n."""
    return x**n


def exists(os: str) -> bool:
    return bool(os)
'''

HOMES = '''"""Homes."""

from shapes import LIMIT, Square


def home(square: Square) -> str:
    """Its address."""
    return f"{square} {LIMIT}"


def tidy() -> None:
    """Tidy up.

    All of it.
    """


def move(square: Square) -> str:
    """Move."""
    return home(square) + "!"
'''


def task(number, *functions, given=(), goal="say it"):
    """A task of these functions, as ``module:name``."""
    given = tuple(map(Function.parse, given))
    functions = tuple(map(Function.parse, functions))
    return Task(number, goal, functions, given, 10, 20, f"1.{number} Part", ("nudge", "idea", "way"))


def lesson(*tasks):
    return Lesson(1, "Shapes", Path("01_shapes"), (), (), tasks, ())


@pytest.fixture
def modules(tmp_path, monkeypatch):
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "homes.py").write_text(HOMES)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_is_given_is_shown_with_its_docstring_and_whole_where_it_calls_what_is_asked_for(modules):
    text = skeleton(lesson(task(1, "homes:home", given=["homes:tidy", "homes:move"])))
    assert (
        '''
# Given in homes.py:
#
# def tidy() -> None:
#     """Tidy up.
#
#     All of it.
#     """
#
# def move(square: Square) -> str:
#     """Move."""
#     return home(square) + "!"

'''
        in text
    )


def test_a_lab_shows_what_is_given_and_asks_for_the_rest(modules):
    text = skeleton(
        lesson(
            task(1, "shapes:Square.area", given=["shapes:_power", "shapes:Square.corners", "shapes:LIMIT"]),
            task(2, "homes:home", "shapes:Square.grown", given=["shapes:Pile", "shapes:_power"], goal="grow"),
        )
    )
    assert text.startswith('"""Lesson 1, Shapes: what you write.\n')
    _, _, code = text.partition('"""\n\n')
    assert (
        code
        == '''from shapes import LIMIT, _power

# Given in shapes.py:
#
# @cache
# def _power(x: float, n: int = 2) -> float:
#     """To the power of n."""
#
# LIMIT = 3
#
# class Pile:
#     def __init__(self, shapes: deque[Shape]) -> None:
#         ...


class Square:
    """A square.

    Its sides are equal.
    """

    # Given in shapes.py:
    #
    # @dataclass(frozen=True)
    # class Square(Shape):
    #     side: float
    #     name: str = "square"
    #
    #     def corners(self) -> int:
    #         """How many."""

    # Task 1: 10 points, about 20 minutes, section 1.1 Part
    @property
    def area(self) -> float:
        """Side by side."""
        raise NotImplementedError("lesson 1, task 1: say it")

    # Task 2: 10 points, about 20 minutes, section 1.2 Part, for 2 functions together. The first:
    def grown(self, by: float = LIMIT) -> "Square":
        """A larger one.

        By so much.
        """
        raise NotImplementedError("lesson 1, task 2: grow")


# Task 2, function 2 of 2
def home(square: Square) -> str:
    """Its address."""
    raise NotImplementedError("lesson 1, task 2: grow")
'''
    )


def test_a_class_shows_its_own_init_with_its_body(modules):
    text = skeleton(lesson(task(1, "shapes:Pile.top")))
    assert (
        "    #     def __init__(self, shapes: deque[Shape]) -> None:\n    #         self.shapes = shapes  # from"
        in text
    )


def test_imports_are_those_that_the_functions_mention_and_nothing_local(modules):
    text = skeleton(lesson(task(1, "shapes:Pile.top", "shapes:exists")))
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert imports == ["import math", "from functools import partial as part", "from shapes import Shape, Square"]


def test_long_goals_and_long_given_lines_stay_within_the_width(modules):
    signature = "def far(" + ", ".join(f"parameter_{i}: int" for i in range(5)) + ") -> int:"
    assert len(signature) <= 120
    (modules / "long.py").write_text(f"class Far:\n    {signature}\n        return 0\n\n    def near(self): ...\n")
    text = skeleton(lesson(task(1, "long:Far.near", given=["long:Far.far"], goal="say it " * 40)))
    assert max(map(len, text.splitlines())) <= 120
    (error,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise))
    assert ast.literal_eval(error.exc.args[0]) == "lesson 1, task 1: " + "say it " * 40


def test_an_enum_that_is_given_shows_its_members(modules):
    (modules / "kinds.py").write_text('class Kind(Enum):\n    ROUND = "round"\n    FLAT = "flat"\n')
    text = skeleton(lesson(task(1, "shapes:exists", given=["kinds:Kind"])))
    assert '# class Kind(Enum):\n#     ROUND = "round"\n#     FLAT = "flat"\n' in text


OTHER = """
LIMIT = 4


class Square:
    def side(self):
        return 1


def f():
    return LIMIT
"""
REFUSED = {
    "no such function": ([task(1, "shapes:Square.edge")], r"shapes has no function Square\.edge; check the names"),
    "no function": ([task(1, "shapes:Square")], "shapes has no function Square; check the names"),
    "no such module": ([task(1, "figures:area")], "there is no module figures; check the names"),
    "nothing to give": ([task(1, "shapes:exists", given=["shapes:depth"])], "shapes has no depth; check what is given"),
    "twice": ([task(1, "shapes:exists"), task(2, "shapes:exists")], "shapes:exists is asked for twice"),
    "nested": ([task(1, "shapes:A.B.c")], r"shapes:A\.B\.c is nested; a task is a function, or a method of a class"),
    "one name for two": (
        [task(1, "shapes:Square.area"), task(2, "other:Square.side")],
        r"shapes:Square\.area and other:Square\.side share the name Square; rename one",
    ),
    "one name for two imports": (
        [task(1, "shapes:Square.grown"), task(2, "other:f")],
        "LIMIT is one thing in shapes and another in other; rename one of them",
    ),
}


@pytest.mark.parametrize(("tasks", "message"), REFUSED.values(), ids=REFUSED)
def test_a_lesson_that_makes_no_lab_is_refused_in_one_sentence(modules, tasks, message):
    (modules / "other.py").write_text(OTHER)
    with pytest.raises(LessonError, match=r"01_shapes.lesson\.toml: " + message):
        skeleton(lesson(*tasks))


RED = """
import json
from pathlib import Path
from minillm.course.overlay import Overlay
Overlay(Path("lab.py"), {"shapes": ["Square.area", "Square.grown", "_power"], "homes": ["home"]}).install()
import homes, shapes

def error(call):
    try:
        call()
    except NotImplementedError as error:
        return str(error)

square = shapes.Square(2.0)
print(json.dumps([error(call) for call in (lambda: square.area, square.grown, lambda: homes.home(square))]))
"""


def test_a_lab_is_an_overlay_that_raises_not_implemented_and_nothing_else(modules):
    tasks = task(1, "shapes:Square.area"), task(2, "shapes:Square.grown", "homes:home"), task(3, "shapes:_power")
    (modules / "lab.py").write_text(skeleton(lesson(*tasks)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(modules)])}
    command = [sys.executable, "-c", RED]
    run = subprocess.run(command, cwd=modules, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [f"lesson 1, task {number}: say it" for number in (1, 2, 2)]


@pytest.mark.parametrize("each", lessons(), ids=lambda each: each.folder.name)
def test_the_committed_labs_are_what_the_reference_gives(each):
    assert each.skeleton.read_text(encoding="utf-8") == skeleton(each), "run make skeletons"
