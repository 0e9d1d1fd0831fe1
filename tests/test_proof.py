"""What must hold of a lesson: nothing unwritten passes, no known wrong solution survives, and the reference passes."""

from dataclasses import replace

import pytest
from toy_lesson import LIMITS, SUBTRACTS, TESTS, at_work

from minillm.course.grades import Verdict
from minillm.course.misconceptions import outdated, record
from minillm.course.mutants import judge_mutants
from minillm.course.processes import Void
from minillm.course.proof import NOT_WRITTEN, prove, solution
from minillm.course.skeleton import skeleton

WRONG_EVERYWHERE = ("wrong-everywhere", 3, "self.left -= 1", "self.left -= 2")
IDLE = "\n\n@pytest.mark.task(91, 2)\ndef test_nothing_of_it(check):\n    check('one', 1, 1)\n"
DOES_NOTHING = ("does-nothing", 1, "sum_ = 0", "sum_ = 0 * 1")


def made(folder, **parts):
    """A toy lesson with its lab."""
    context = at_work(folder, **parts)
    toy = context.__enter__()
    (toy.lesson.folder / "lab.py").write_text(skeleton(toy.lesson))
    return context, toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    mutants = [SUBTRACTS, WRONG_EVERYWHERE, DOES_NOTHING]
    context, toy = made(tmp_path_factory.mktemp("toy"), mutants=mutants, tests=TESTS + IDLE)
    yield toy
    context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def reports(toy):
    return list(prove(toy.lesson, toy.tests, LIMITS))


def test_tasks_that_are_not_written_come_first_and_then_the_mutants(reports):
    assert [(report.mutant, report.task) for report in reports] == [
        *((NOT_WRITTEN, task) for task in (1, 2, 3)),
        ("subtracts", 1),
        ("wrong-everywhere", 3),
        ("does-nothing", 1),
    ]


def test_a_task_that_is_not_written_must_fail_all_of_its_tests_for_that_reason(reports):
    first, second, third = reports[:3]
    assert (first.verdict, second.verdict) == (Verdict.KILLED, Verdict.SURVIVED)
    assert (second.test.partition("::")[2], second.message) == ("test_nothing_of_it", "passes")
    assert third.verdict is Verdict.KILLED


def test_a_mutants_tests_end_with_its_death(reports):
    *_, dead, alive = reports
    assert [report.name for report in dead.reports] == ["counting down"]
    assert (alive.verdict, len(alive.reports)) == (Verdict.SURVIVED, 2)


def test_a_reference_that_fails_when_it_is_handed_in_voids_all(tmp_path):
    unseen = TESTS + (
        "\n\n@pytest.mark.task(91, 1)\ndef test_the_file(check):\n"
        "    check('file', toy.total.__code__.co_filename[-6:], 'toy.py')\n"
    )
    context, toy = made(tmp_path, tests=unseen)
    with pytest.raises(Void, match=r"^the reference, handed in as a lab, fails .*::test_the_file: file: '"):
        list(prove(toy.lesson, toy.tests, LIMITS))
    context.__exit__(None, None, None)


def test_the_solution_is_the_skeleton_with_the_references_functions(toy):
    text = solution(toy.lesson)
    assert "NotImplementedError(" not in text
    assert "            self.left -= 1\n" in text
    assert "sum_ += number\n" in text


def test_records_that_are_not_what_tests_find_now_are_outdated(toy, reports):
    every = ["does-nothing", "subtracts", "wrong-everywhere"]
    assert outdated(toy.lesson, reports) == every
    record(toy.lesson, judge_mutants(toy.lesson, toy.tests, LIMITS))
    assert outdated(toy.lesson, reports) == []
    gone = replace(toy.lesson, mutants=toy.lesson.mutants[:2])
    assert outdated(gone, reports) == ["does-nothing"]
    other = [replace(report, failure="check 0") for report in reports[3].reports]
    assert outdated(toy.lesson, [replace(reports[3], reports=tuple(other))]) == ["subtracts"]
