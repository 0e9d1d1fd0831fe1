"""A lesson of two small tasks with its skeleton, for tests of what surrounds the grading."""

from pathlib import Path

from minillm.course.lesson import Lesson, load_lesson

TOML = """
title = "Shapes"
objectives = ["draw"]
prerequisites = []
mutants = []

[[tasks]]
goal = "the area"
functions = ["shapes:Square.area", "shapes:side"]
points = 10
minutes = 20
section = "4.1 Area"
hints = ["a nudge", "the idea", "the way"]

[[tasks]]
goal = "the border"
functions = ["shapes:border"]
points = 5
minutes = 10
section = "4.2 Border"
hints = ["nudge", "idea", "way"]
"""

REFERENCE = '''
class Square:
    @property
    def area(self):
        """Side by side."""
        # the square
        return self.side**2


def side(area, of=4):
    return area**0.5


def border(side):
    return 4 * side
'''

SKELETON = '''
class Square:
    # Task 1
    @property
    def area(self):
        """Side by side."""
        raise NotImplementedError("lesson 4, task 1: the area")


def side(area, of=4):
    raise NotImplementedError("lesson 4, task 1: the area")


def border(side):
    raise NotImplementedError("lesson 4, task 2: the border")
'''


def make_lesson(folder: Path) -> Lesson:
    """The lesson, in ``folder/lessons``; its module ``shapes`` lies in ``folder``."""
    lesson = folder / "lessons" / "04_shapes"
    lesson.mkdir(parents=True)
    (lesson / "lesson.toml").write_text(TOML)
    (lesson / "lab.py").write_text(SKELETON)
    (folder / "shapes.py").write_text(REFERENCE)
    return load_lesson(lesson)
