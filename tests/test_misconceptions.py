"""Which known wrong solution a student's failures are said to equal."""

from dataclasses import replace

import pytest

from minillm.course.grades import MutantReport, Outcome, TestReport, Verdict
from minillm.course.lesson import Function, Lesson, Mutant
from minillm.course.misconceptions import explained, read, record


def mutant(name):
    return Mutant(name, 1, Function("toy", "f"), "a", "b", f"why {name}", "9.1")


def failed(test, failure):
    return TestReport(f"tests/test_toy.py::{test}", Outcome.FAILED, "wrong", failure=failure)


def passed(test):
    return TestReport(f"tests/test_toy.py::{test}", Outcome.PASSED)


MUTANTS = [mutant("one"), mutant("two")]
RECORDED = {
    "one": {"a": "check 1", "b": "check 2"},
    "two": {"a": "check 1", "b": "check 3", "c": "raised KeyError in the lab"},
}


def named(*reports):
    """The misconception of each report."""
    return [each.misconception and each.misconception.mutant for each in explained(reports, MUTANTS, RECORDED)]


@pytest.mark.parametrize(
    ("reports", "misconceptions"),
    [
        ([failed("a", "check 1"), failed("b", "check 2"), passed("c")], ["one", "one", None]),
        ([failed("a", "check 1"), failed("b", "check 3"), failed("c", "check 7")], ["two", "two", None]),
        ([failed("a", "check 1")], ["one"]),
        ([failed("a", "check 8")], [None]),
        ([passed("a"), passed("b")], [None, None]),
    ],
    ids=["all equal", "most equal", "the first of two", "nothing equal", "nothing failed"],
)
def test_the_mutant_that_equals_most_failures_is_named_where_it_does(reports, misconceptions):
    assert named(*reports) == misconceptions


def test_an_exception_alone_names_none_unless_all_failures_are_equal():
    only = failed("c", "raised KeyError in the lab")
    assert named(only) == [None]
    recorded = {"two": {"c": only.failure}}
    assert explained([only, passed("a")], MUTANTS, recorded)[0].misconception.mutant == "two"


RACES = {
    "one": {"a": "check 1", "b": "check 2"},
    "two": {"a": "check 1", "b": "check 3", "d": "fault race"},
}


@pytest.mark.parametrize(
    ("reports", "misconceptions"),
    [
        ([failed("a", "check 1"), failed("b", "check 2"), failed("d", "fault race")], ["two", None, "two"]),
        ([failed("a", "check 1"), failed("b", "check 2"), failed("d", "fault divergence")], [None, None, None]),
        ([failed("a", "check 8"), failed("b", "check 3"), passed("d")], [None, None, None]),
    ],
    ids=["equal faults before equal values", "another fault", "a fault that is not there"],
)
def test_faults_decide_before_values_do(reports, misconceptions):
    assert [each.misconception and each.misconception.mutant for each in explained(reports, MUTANTS, RACES)] == (
        misconceptions
    )


def test_of_two_that_equal_alike_the_one_that_fails_less_is_named():
    recorded = {"one": {"a": "fault race", "b": "check 2"}, "two": {"a": "fault race"}}
    [report] = explained([failed("a", "fault race")], MUTANTS, recorded)
    assert report.misconception.mutant == "two"


def test_values_tell_nothing_where_fewer_than_half_of_the_failures_are_equal():
    assert named(failed("a", "check 1"), failed("b", "check 8"), failed("c", "check 9")) == [None, None, None]


def test_the_misconception_says_why_and_where_to_read():
    [report] = explained([failed("a", "check 1")], MUTANTS, RECORDED)
    assert (report.misconception.why, report.misconception.section) == ("why one", "9.1")


def test_what_is_recorded_is_read_again(tmp_path):
    lesson = Lesson(9, "toy", tmp_path, (), (), (), tuple(MUTANTS))
    assert read(tmp_path) == {}
    reports = [
        MutantReport(9, name, 1, Verdict.KILLED, reports=tuple(failed(*each) for each in failures.items()))
        for name, failures in RECORDED.items()
    ]
    survivor = replace(reports[0], mutant="three", reports=(passed("a"),))
    record(lesson, [*reports, survivor])
    assert read(tmp_path) == {**RECORDED, "three": {}}
