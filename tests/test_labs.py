"""The labs themselves: a skeleton fails because it is not written, and the reference handed in passes everything."""

from dataclasses import dataclass

import pytest

from minillm.course.expectations import expectations
from minillm.course.grades import Outcome, TestReport
from minillm.course.grading import lab_job
from minillm.course.job import Limits
from minillm.course.lesson import lessons
from minillm.course.mutants import TESTS
from minillm.course.overlay import reference_source
from minillm.course.processes import crew, run
from minillm.course.workspace import functions

LIMITS = Limits(test=60, compiled=120)


def skeleton(lesson):
    return lesson.folder / "lab.py"


def solution(lesson):
    """The skeleton with the reference's functions in it."""
    text = skeleton(lesson).read_text()
    lines = text.splitlines(keepends=True)
    asked = [function for task in lesson.tasks for function in task.functions]
    blanks = {function: functions(text)[function.name] for function in asked}
    for function, blank in sorted(blanks.items(), key=lambda item: -item[1].lineno):
        reference = reference_source(function.module).text
        node = functions(reference)[function.name]
        lines[blank.lineno - 1 : blank.end_lineno] = reference.splitlines(keepends=True)[
            node.lineno - 1 : node.end_lineno
        ]
    return "".join(lines)


@dataclass(frozen=True)
class Tried:
    """Reports of each task's tests on the skeleton, the rest being the reference's, and of all on the solution."""

    skeleton: dict[int, list[TestReport]]
    solution: list[TestReport]


@pytest.fixture(scope="module", params=lessons(), ids=lambda lesson: lesson.folder.name)
def tried(request, tmp_path_factory):
    lesson, lab = request.param, tmp_path_factory.mktemp("lab") / "solution.py"
    lab.write_text(solution(lesson))
    with crew(lesson, TESTS.parent) as (nursery, pool):
        due = expectations(lesson, TESTS, nursery, LIMITS)
        jobs = [lab_job(lesson, skeleton(lesson), task.functions, due, due.tests[task.number]) for task in lesson.tasks]
        every_test = tuple(dict.fromkeys(test for tests in due.tests.values() for test in tests))
        every_function = [function for task in lesson.tasks for function in task.functions]
        jobs.append(lab_job(lesson, lab, every_function, due, every_test))
        *skeletons, solved = pool.map(lambda job: run(job, nursery, LIMITS), jobs)
    return Tried({task.number: reports for task, reports in zip(lesson.tasks, skeletons, strict=True)}, solved)


def test_each_task_has_tests_and_all_fail_on_the_skeleton_because_it_is_not_written(tried):
    assert all(tried.skeleton.values())
    reports = [report for reports in tried.skeleton.values() for report in reports]
    assert [(each.test, each.message) for each in reports if each.outcome is not Outcome.NOT_WRITTEN] == []


def test_the_reference_handed_in_as_a_lab_passes_everything(tried):
    assert [(report.test, report.message) for report in tried.solution if not report.passed] == []
