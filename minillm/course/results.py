"""Grades as files: JSON for programs, Gradescope's results.json, and a line of CSV for each student."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.course.grades import LessonGrade, TaskGrade, TestReport
from minillm.report.grades import heading, plain, task_lines

FORMAT = 1
"""Number of the JSON's format; it grows when a key changes its meaning."""


@dataclass(frozen=True, slots=True)
class StudentGrades:
    """All lessons of a student."""

    student: str
    grades: tuple[LessonGrade, ...]

    @property
    def earned(self) -> int:
        """Points that were earned."""
        return sum(grade.earned for grade in self.grades)


def as_json(grades: Sequence[LessonGrade]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "format": FORMAT,
        "earned": sum(grade.earned for grade in grades),
        "points": sum(grade.points for grade in grades),
        "lessons": [_lesson(grade) for grade in grades],
    }


def _lesson(grade: LessonGrade) -> dict[str, Any]:
    return {
        "lesson": grade.lesson,
        "title": grade.title,
        "lab": str(grade.lab),
        "void": grade.void,
        "earned": grade.earned,
        "points": grade.points,
        "tasks": [_task(task) for task in grade.tasks],
    }


def _task(task: TaskGrade) -> dict[str, Any]:
    return {
        "task": task.task,
        "goal": task.goal,
        "written": task.written,
        "refused": task.refused,
        "solved": task.solved,
        "earned": task.earned,
        "points": task.points,
        "tests": [_test(report) for report in task.reports],
        "integration": [_test(report) for report in task.integration],
    }


def _test(report: TestReport) -> dict[str, Any]:
    known = report.misconception
    return {
        "test": report.test,
        "outcome": report.outcome.value,
        "message": report.message,
        "printed": report.printed,
        "misconception": {"mutant": known.mutant, "why": known.why, "section": known.section} if known else None,
    }


def gradescope(grades: Sequence[LessonGrade]) -> dict[str, Any]:
    """Gradescope's results.json: a test a task, scored with its points, with what a student should know as output.

    Keys as in Gradescope's autograder specification. Each test has a score, so there is none for the whole.
    """
    return {
        "output": "\n\n".join(plain(heading(grade, grade.lab, rest="not written")) for grade in grades),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_gradescope_test(grade, task) for grade in grades for task in grade.tasks],
    }


def _gradescope_test(grade: LessonGrade, task: TaskGrade) -> dict[str, Any]:
    number = f"{grade.lesson}.{task.task}"
    earned = 0 if grade.void else task.earned
    return {
        "name": f"{number} {task.goal}",
        "number": number,
        "score": earned,
        "max_score": task.points,
        "status": "passed" if earned == task.points else "failed",
        "output": grade.void or plain(task_lines(task)) or "All tests pass.",
        "output_format": "text",
        "tags": [f"lesson {grade.lesson}"],
        "visibility": "visible",
    }


def as_csv(students: Iterable[StudentGrades]) -> str:
    """A header, and a line a student: points of each task, of each lesson and in all, and why some were not graded."""
    rows = [_row(each) for each in students]
    columns = dict.fromkeys(column for row in rows for column in row if column not in ("total", "notes"))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "total", "notes"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(student: StudentGrades) -> Mapping[str, str | int]:
    row: dict[str, str | int] = {"student": student.student}
    for grade in student.grades:
        row |= {f"{grade.lesson}.{task.task}": 0 if grade.void else task.earned for task in grade.tasks}
        row[f"lesson {grade.lesson}"] = grade.earned
    notes = [note for grade in student.grades for note in _notes(grade)]
    return row | {"total": student.earned, "notes": "; ".join(notes)}


def _notes(grade: LessonGrade) -> Iterator[str]:
    """Why a lesson is void, its lab is missing, or a task was refused."""
    if grade.void:
        yield f"lesson {grade.lesson}: {grade.void}"
    elif not grade.lab.is_file():
        yield f"lesson {grade.lesson}: there is no {grade.lab.name}"
    else:
        yield from (f"task {grade.lesson}.{task.task}: {task.refused}" for task in grade.tasks if task.refused)
