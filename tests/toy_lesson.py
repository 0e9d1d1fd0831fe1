"""A lesson with three small tasks, its module and its tests, in a folder of its own: grading it takes little time."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from minillm.course.job import Limits
from minillm.course.lesson import Lesson, load_lesson

LIMITS = Limits(start_up=60, test=2, compiled=2, kills=3)

MODULE = '''"""What the toy lesson teaches."""


def total(numbers: list[int]) -> int:
    """The sum."""
    sum_ = 0
    for number in numbers:
        sum_ += number
    return sum_


def mean(numbers: list[int]) -> float:
    """The sum by the count."""
    return total(numbers) / len(numbers)


class Countdown:
    """Counts down from ``start``."""

    def __init__(self, start: int) -> None:
        self.left = start

    def run(self) -> list[str]:
        """A line per step."""
        lines = []
        while self.left > 0:
            lines.append(f"{self.left} left")
            self.left -= 1
        return lines
'''

TESTS = """import pytest
import toy


@pytest.mark.task(91, 1)
@pytest.mark.parametrize("numbers", [[], [1, 2, 3]])
def test_the_sum_of_numbers(check, numbers):
    check("sum", toy.total(numbers), lambda: toy.total(numbers))


@pytest.mark.task(91, 2)
def test_the_mean_of_numbers(check):
    check("mean", toy.mean([1, 2, 5]), lambda: toy.mean([1, 2, 5]))


@pytest.mark.task(91, 2)
def test_the_mean_of_nothing():
    with pytest.raises(ZeroDivisionError):
        toy.mean([])


@pytest.mark.task(91, 3)
def test_counting_down(check):
    check("steps", toy.Countdown(5).run(), lambda: toy.Countdown(5).run())


@pytest.mark.task(91, 3)
def test_each_step(check):
    for line in toy.Countdown(2).run():
        check("step", line, line)


def test_of_no_task():
    raise RuntimeError("tests without a task are none of the grader's business")
"""

LESSON = """
title = "Toys"
objectives = ["count"]
prerequisites = []

[[tasks]]
goal = "add numbers up"
functions = ["toy:total"]
points = 10
minutes = 1
section = "91.1 Sums"
hints = ["a", "b", "c"]

[[tasks]]
goal = "their mean"
functions = ["toy:mean"]
points = 20
minutes = 1
section = "91.2 Means"
hints = ["a", "b", "c"]

[[tasks]]
goal = "count down"
functions = ["toy:Countdown.run"]
points = 30
minutes = 1
section = "91.3 Counting"
hints = ["a", "b", "c"]
"""

MUTANT = """
[[mutants]]
name = "{name}"
task = {task}
find = "{find}"
replace = "{replace}"
why = "You think that {name}."
section = "91.{task}"
"""

SUBTRACTS = ("subtracts", 1, "sum_ += number", "sum_ -= number")
ROUNDS = ("rounds", 2, "total(numbers) / len", "total(numbers) // len")


@dataclass(frozen=True, slots=True)
class Toy:
    """The folder, and what the grader takes."""

    folder: Path
    lesson: Lesson

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    def lab(self, text: str, name: str = "lab_91_toy.py") -> Path:
        file = self.folder / name
        file.write_text(text)
        return file


def make_toy(folder: Path, mutants=(SUBTRACTS, ROUNDS), tests: str = TESTS, module: str = MODULE) -> Toy:
    lesson = folder / "91_toy"
    for path, text in {
        folder / "toy.py": module,
        folder / "pytest.ini": "[pytest]\nmarkers = task\n",
        folder / "tests" / "test_lesson_91_toy.py": tests,
        lesson / "lesson.toml": LESSON + "".join(map(_mutant, mutants)),
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Toy(folder, load_lesson(lesson))


def _mutant(fields) -> str:
    return MUTANT.format(**dict(zip(("name", "task", "find", "replace"), fields, strict=True)))


@contextmanager
def at_work(folder: Path, **parts):
    """A toy lesson that graders find in this process, with what they keep in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILLM_CACHE", str(folder / "cache"))
        patch.syspath_prepend(str(folder))
        yield make_toy(folder, **parts)
