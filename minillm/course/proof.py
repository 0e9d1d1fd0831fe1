"""What must hold of a lesson: what is not written fails, each known wrong solution dies, and the reference passes."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from minillm.course.expectations import Expectations, expectations
from minillm.course.grades import MutantReport, Outcome, Verdict
from minillm.course.grading import lab_job
from minillm.course.job import Limits
from minillm.course.lesson import TESTS, Lesson, Task
from minillm.course.mutants import kill_mutant
from minillm.course.nursery import Nursery
from minillm.course.overlay import reference_source
from minillm.course.processes import Void, crew, run
from minillm.course.workspace import functions, skeleton_text

NOT_WRITTEN = "not-written"
"""Stands for a mutant's name: the task as the skeleton leaves it."""


def prove(lesson: Lesson, tests: Path = TESTS, limits: Limits | None = None) -> Iterator[MutantReport]:
    """How each task fared that is not written, and then each mutant, whose tests end with its death.

    Raises Void where the reference fails a test, by itself or handed in as a lab.
    """
    limits = limits or Limits()
    with crew(lesson.tasks, tests.parent) as (nursery, pool):
        due = expectations(lesson, tests, nursery, limits)
        handed_in = pool.submit(_hand_in_reference, lesson, due, nursery, limits)
        blanks = pool.map(partial(_judge_blank, lesson, due, nursery, limits), lesson.tasks)
        mutants = pool.map(partial(kill_mutant, lesson, due, nursery, limits), lesson.mutants)
        handed_in.result()
        yield from blanks
        yield from mutants


def _judge_blank(lesson: Lesson, due: Expectations, nursery: Nursery, limits: Limits, task: Task) -> MutantReport:
    """The skeleton's task, the rest being the reference's: all of its tests must fail because it is not written."""
    job = lab_job(lesson, lesson.skeleton, task.functions, due, due.tests[task.number])
    reports = tuple(run(job, nursery, limits))
    wrong = next((report for report in reports if report.outcome is not Outcome.NOT_WRITTEN), None)
    test, why = (wrong.test, wrong.message or "passes") if wrong else ("", "" if reports else "the task has no tests")
    verdict = Verdict.SURVIVED if why else Verdict.KILLED
    return MutantReport(lesson.number, NOT_WRITTEN, task.number, verdict, test, why, reports)


def _hand_in_reference(lesson: Lesson, due: Expectations, nursery: Nursery, limits: Limits) -> None:
    tests = tuple(dict.fromkeys(test for task in due.tests.values() for test in task))
    with tempfile.TemporaryDirectory(prefix="minillm-") as folder:
        lab = Path(folder, "solution.py")
        lab.write_text(solution(lesson), encoding="utf-8")
        asked = [function for task in lesson.tasks for function in task.functions]
        for report in run(lab_job(lesson, lab, asked, due, tests), nursery, limits):
            if not report.passed:
                raise Void(f"the reference, handed in as a lab, fails {report.test}: {report.message}")


def solution(lesson: Lesson) -> str:
    """The skeleton with the reference's functions in it."""
    text = skeleton_text(lesson)
    lines, blanks = text.splitlines(keepends=True), functions(text)
    asked = [function for task in lesson.tasks for function in task.functions]
    for function in sorted(asked, key=lambda function: -blanks[function.name].lineno):
        source = reference_source(function.module).text
        blank, own = blanks[function.name], functions(source)[function.name]
        lines[blank.lineno - 1 : blank.end_lineno] = source.splitlines(keepends=True)[own.lineno - 1 : own.end_lineno]
    return "".join(lines)
