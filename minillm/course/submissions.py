"""Labs that were handed in: found in a folder, graded lesson by lesson, and bundled for Gradescope."""

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from minillm.course.grades import LessonGrade, TaskGrade
from minillm.course.grading import grade
from minillm.course.lesson import Lesson, LessonError
from minillm.course.results import StudentGrades
from minillm.course.workspace import lab_name

ROOT = Path(__file__).parents[2]
FOLDERS = ("minillm", "kernels", "lessons", "tests")
FILES = ("LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml")
"""What an autograder needs of the repository."""

_SETUP = """#!/usr/bin/env bash
# Runs once, when Gradescope builds the image. Choose a base image that offers Python 3.11, such as Ubuntu 22.04.
set -euo pipefail
apt-get update
apt-get install --yes make python3.11 python3.11-venv
cd /autograder/source/course
make setup PIP_FLAGS={flags}
"""

_RUN = """#!/usr/bin/env bash
# Runs for each submission: students hand in {names}.
set -uo pipefail
root="${{AUTOGRADER:-/autograder}}"
cd "$root/source/course"
.venv/bin/minillm lab grade {lessons}--labs "$root/submission" --gradescope "$root/results/results.json"
[ -s "$root/results/results.json" ]
"""


def find_lab(folder: Path, lesson: Lesson) -> Path | None:
    """A lesson's lab in a folder, however deep. Raises LessonError where there are several."""
    found = sorted(folder.rglob(lab_name(lesson)))
    if len(found) > 1:
        raise LessonError(f"{folder} holds {len(found)} files {lab_name(lesson)}; leave the one to be graded")
    return found[0] if found else None


def grade_labs(lessons: Iterable[Lesson], folder: Path) -> Iterator[LessonGrade]:
    """Every lesson as the labs in a folder solve it, without help from the reference; void where two files claim it."""
    for lesson in lessons:
        try:
            lab = find_lab(folder, lesson)
        except LessonError as error:
            yield not_started(lesson, folder / lab_name(lesson), str(error))
            continue
        yield grade(lesson, lab, fallback=False) if lab else not_started(lesson, folder / lab_name(lesson))


def not_started(lesson: Lesson, lab: Path, why: str | None = None) -> LessonGrade:
    """The grade of a lesson without a lab, or with one that is not graded for a reason."""
    tasks = [TaskGrade(task.number, task.goal, task.points, written=False) for task in lesson.tasks]
    return LessonGrade(lesson.number, lesson.title, lab, tasks, why)


def grade_students(lessons: Sequence[Lesson], folder: Path) -> Iterator[StudentGrades]:
    """A student for each folder in ``folder``, named by it. Raises LessonError where there is none."""
    students = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not students:
        raise LessonError(f"{folder} holds no folders; it needs one for each student, with the lab_*.py in it")
    for student in students:
        name = os.fsencode(student.name).decode("utf-8", "backslashreplace")  # an old zip has names of another encoding
        yield StudentGrades(name, tuple(grade_labs(lessons, student)))


def write_bundle(folder: Path, lessons: Sequence[Lesson], only: int | None = None, pip_flags: str = "") -> Path:
    """Write Gradescope's ``setup.sh`` and ``run_autograder`` with the course beside them, and return the zip of all.

    lessons    those to be handed in
    only       number of the one that is graded; None grades all that the course has
    pip_flags  what ``make`` hands to ``pip install`` when Gradescope builds the image

    Raises LessonError for a folder that exists.
    """
    if folder.exists():
        raise LessonError(f"{folder} exists; name a folder that does not")
    _copy_course(folder / "course")
    names = ", ".join(map(lab_name, lessons))
    _script(folder / "setup.sh", _SETUP.format(flags=shlex.quote(pip_flags)))
    _script(folder / "run_autograder", _RUN.format(names=names, lessons="" if only is None else f"--lesson {only} "))
    return Path(shutil.make_archive(str(folder), "zip", folder))


def _copy_course(target: Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.ipynb"))
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def _script(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
