"""Known wrong solutions under the tests of their task: what counts as death, and what is recorded of it."""

import json
from dataclasses import replace

import pytest
from toy_lesson import LIMITS, SUBTRACTS, at_work

from minillm.course.grades import Verdict
from minillm.course.lesson import LessonError
from minillm.course.misconceptions import record
from minillm.course.mutants import judge_mutants, mutated

MUTANTS = [
    SUBTRACTS,
    ("only-zeros-survive", 1, "sum_ = 0", "sum_ = 0 * 1"),
    ("unknown-name", 1, "sum_ += number", "sum_ += nubmer"),
    ("no-python", 1, "return sum_", "return sum_("),
    ("not-there", 1, "sum_ -= number", "sum_ += number"),
    ("raises-only", 2, "/ len(numbers)", "/ numbers"),
    ("never-ends", 3, "self.left -= 1", "self.left += 0"),
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    with at_work(tmp_path_factory.mktemp("toy"), mutants=MUTANTS) as toy:
        yield toy


@pytest.fixture(scope="module")
def reports(toy):
    return {report.mutant: report for report in judge_mutants(toy.lesson, toy.tests, LIMITS)}


@pytest.mark.parametrize(
    ("mutant", "verdict", "message"),
    [
        ("subtracts", Verdict.KILLED, "sum: -6, but 6 was due"),
        ("only-zeros-survive", Verdict.SURVIVED, ""),
        ("unknown-name", Verdict.OUR_FAULT, "NameError: name 'nubmer' is not defined"),
        ("no-python", Verdict.OUR_FAULT, "'(' was never closed"),
        ("not-there", Verdict.OUR_FAULT, "'sum_ -= number' occurs 0 times in toy:total; it must occur once"),
        ("raises-only", Verdict.OUR_FAULT, "TypeError: unsupported operand"),
        ("never-ends", Verdict.TIMED_OUT, "no end within 2 seconds"),
    ],
)
def test_only_a_failed_check_and_the_time_limit_are_deaths(reports, mutant, verdict, message):
    assert reports[mutant].verdict is verdict
    assert message in reports[mutant].message
    assert reports[mutant].died == (verdict in (Verdict.KILLED, Verdict.TIMED_OUT))


def test_a_report_names_the_first_test_that_failed_a_check(reports):
    assert reports["subtracts"].test == "tests/test_lesson_91_toy.py::test_the_sum_of_numbers[numbers1]"


def test_all_tests_of_the_task_run_on_a_mutant_and_no_others(reports):
    names = [report.test.partition("::")[2] for report in reports["subtracts"].reports]
    assert names == ["test_the_sum_of_numbers[numbers0]", "test_the_sum_of_numbers[numbers1]"]


def test_how_each_failed_is_recorded_in_the_lessons_folder(toy, reports):
    record(toy.lesson, reports.values())
    recorded = json.loads((toy.lesson.folder / "misconceptions.json").read_text())
    assert list(recorded) == sorted(reports)
    assert recorded["only-zeros-survive"] == {}
    assert recorded["never-ends"] == {"test_counting_down": "timed out", "test_each_step": "timed out"}
    [(test, digest)] = recorded["subtracts"].items()
    assert test == "test_the_sum_of_numbers[numbers1]"
    assert digest.startswith("check ")


def test_a_mutant_of_a_method_stands_in_its_class(toy):
    never_ends = next(mutant for mutant in toy.lesson.mutants if mutant.name == "never-ends")
    assert mutated(never_ends).startswith("class Countdown:\n    def run(self) -> list[str]:\n")
    assert "self.left += 0" in mutated(never_ends)


def test_what_is_found_twice_is_refused(toy):
    twice = replace(toy.lesson.mutants[0], find="sum_")
    with pytest.raises(LessonError, match=r"'sum_' occurs 3 times in toy:total; it must occur once"):
        mutated(twice)
