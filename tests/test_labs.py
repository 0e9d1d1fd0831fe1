"""The labs themselves. That their tests fail while nothing is written, and pass with the reference, takes processes
that ``make check-mutants`` runs; here it is seen that both would run."""

import pytest

from minillm.course.lesson import lessons
from minillm.course.overlay import Overlay
from minillm.course.proof import solution
from minillm.course.screening import read_lab
from minillm.course.workspace import written_functions

LESSONS = pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.folder.name)


def modules(functions):
    found = {}
    for function in functions:
        found.setdefault(function.module, []).append(function.name)
    return found


@LESSONS
def test_each_task_of_a_skeleton_fits_the_reference_and_is_not_written(lesson):
    lab = lesson.folder / "lab.py"
    asked = [function for task in lesson.tasks for function in task.functions]
    for task in lesson.tasks:
        Overlay(lab, modules(task.functions), modules(set(asked) - set(task.functions)))
        assert written_functions(read_lab(lab), task) == []


@LESSONS
def test_the_reference_handed_in_as_a_lab_fits_and_is_written(lesson, tmp_path):
    lab = tmp_path / "solution.py"
    lab.write_text(solution(lesson))
    Overlay(lab, modules(function for task in lesson.tasks for function in task.functions))
    assert [
        task.number for task in lesson.tasks if written_functions(read_lab(lab), task) != list(task.functions)
    ] == []


@LESSONS
def test_each_task_has_a_known_wrong_solution(lesson):
    assert {mutant.task for mutant in lesson.mutants} == {task.number for task in lesson.tasks}
