"""A test that must fail: it runs last in every graded process, and where it passes nothing else is believed."""

from minillm.course.checks import Check

DONE, WRONG = {"A": [1, 2.5]}, {"A": [1, 2.75]}


def test_that_must_fail(check: Check) -> None:
    """Compares two things that differ."""
    check("what the grader sees", DONE, WRONG)
