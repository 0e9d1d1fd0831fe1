"""``check``: what counts as equal, what a failure says, and what is kept of what the code did."""

import json

import numpy as np
import pytest
import torch

from minillm.course.checks import (
    CheckFailed,
    Checks,
    NotPlain,
    Recorded,
    Recording,
    compare,
    digest,
    pack,
    plain,
    unpack,
)
from minillm.course.failures import NEARLY_DUE
from minillm.course.side_by_side import WIDTH, side_by_side


def failure(*arguments, **options):
    with pytest.raises(CheckFailed) as error:
        compare(*arguments, **options)
    return str(error.value)


# What is equal


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ((1, 2), [1, 2]),
        ({2, 1}, [1, 2]),
        (torch.tensor([[1.0, 2.0]]), [[1, 2]]),
        (np.arange(3), (0, 1, 2)),
        (np.int64(3), 3),
        (0.1 + 0.2, 0.3),
        (float("nan"), float("nan")),
        (float("inf"), float("inf")),
        ({"A": torch.zeros(1)}, {"A": [0.0]}),
        (2, lambda: 2),
    ],
)
def test_plain_data_is_compared_whatever_holds_it(actual, expected):
    compare("it", actual, expected)


class EqualToAll(list):
    __hash__ = None

    def __eq__(self, other):
        return True


class Array(np.ndarray):
    def tolist(self):
        return [1, 2]


class Tensor(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value", [EqualToAll(), np.zeros(2).view(Array), torch.zeros(2).as_subclass(Tensor), object(), 1j, np.array([1j])]
)
def test_what_could_bring_its_own_equality_is_no_plain_data(value):
    with pytest.raises(NotPlain, match="where numbers, texts, tensors, or lists and dicts of these were expected"):
        compare("it", value, [1, 2])


@pytest.mark.parametrize(("actual", "expected"), [(True, 1), ("1", 1), (None, 0), ([], {}), (1, 1 + 1e-8)])
def test_other_types_and_larger_differences_are_not_equal(actual, expected):
    assert "was due" in failure("it", actual, expected)


def test_a_tolerance_may_be_given():
    compare("it", [1.0], [1.001], tolerance=0.01)


# What a failure says


@pytest.mark.parametrize(
    ("actual", "expected", "axes", "message"),
    [
        (3, 4, (), "it: 3, but 4 was due"),
        (
            [0, 1, 2],
            [0, 1, 3],
            (),
            "it at [2]: 2, but 3 was due\n1 of 3 values differs\n  yours: [0, 1, 2]\n  due:   [0, 1, 3]",
        ),
        ([1], [1, 2, 3], (), "it: 1 entry, but 3 entries were due\n  yours: [1]\n  due:   [1, 2, 3]"),
        (
            {"A": [5, 6]},
            {"A": [5, 7]},
            ("request", "position"),
            "it at request A, position 1: 6, but 7 was due\n1 of 2 values differs\n"
            "  yours: {'A': [5, 6]}\n  due:   {'A': [5, 7]}",
        ),
        ({"A": 1}, {"A": 1, "B": 2}, ("request",), "it at request B: nothing, but 2 was due"),
        (
            torch.zeros(3, 40),
            torch.ones(3, 40),
            ("layer", "position"),
            "it at layer 0, position 0: 0, but 1 was due\n120 of 120 values differ",
        ),
        (1.00000001, 1.00000002, (), "it: 1.00000001, but 1.00000002 was due"),
        (1 / 3, 2 / 3, (), "it: 0.333333, but 0.666667 was due"),
    ],
)
def test_a_failure_names_the_first_difference_and_counts_all(actual, expected, axes, message):
    assert failure("it", actual, expected, axes).startswith(message)


def test_a_long_value_is_cut():
    assert "x... (1000 characters), but 'y' was due" in failure("it", "x" * 998, "y")


def test_traces_stand_side_by_side_from_two_passes_before_the_first_difference():
    yours = ["A4", "B8", "A1 B1", "A1 B1", "A1", "B1"]
    due = ["A4", "B8", "A1 B1", "A1 !B", "A1"]
    assert failure("passes", yours, due) == "\n".join(
        [
            "passes: the first difference is in pass 3",
            "  pass  yours                              due",
            "     1  B8                                 B8",
            "     2  A1 B1                              A1 B1",
            ">    3  A1 B1                              A1 !B",
            "     4  A1                                 A1",
            "     5  B1                                 (ended)",
        ]
    )


def test_long_traces_are_cut_in_both_directions_and_show_where_lines_part():
    common = " ".join(f"S{number}" for number in range(40))
    yours, due = [common] * 30, [common] * 10 + [common + " T"] * 20
    lines = side_by_side("passes", yours, due).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[4].startswith(">   10  ...")
    assert lines[4].endswith("S38 S39 T")
    assert lines[-1].split() == ["...", "and", "14", "more"]


def test_lines_where_none_was_due_are_shown_whole():
    long = "race on tile[3]: " + "x" * 200
    assert failure("faults", [long], []) == f"faults: there should be none, but there is one\n  {long}"
    assert failure("faults", ["a b"] * 7, []).splitlines() == [
        "faults: there should be none, but there are 7",
        *["  a b"] * 5,
        "  and 2 more",
    ]


# Digests, and what is due as data


def test_digests_are_equal_for_floats_that_agree_in_six_digits():
    assert digest([1 / 3, 0.0, {"a": "b"}]) == digest([0.33333334, -0.0, {"a": "b"}])
    assert digest([1 / 3]) != digest([0.3333])
    assert digest([1]) != digest(["1"])


VALUES = {
    "a": [torch.ones(3, dtype=torch.bfloat16), (1, 2.5, float("nan")), None, True],
    "b": np.arange(3),
    3: {2, 1},
    "c": torch.rand(5, 7, dtype=torch.float64),
    "d": np.zeros((0, 2)),
    "e": torch.tensor(1.5),
}


def test_what_is_due_comes_back_from_its_file_as_it_was():
    assert repr(unpack(json.loads(json.dumps(pack(VALUES))))) == repr(plain(VALUES))


def test_large_arrays_are_stored_compactly():
    assert len(json.dumps(pack(torch.ones(100, 100)))) < 1000


def never():
    raise AssertionError("a graded process must not compute what is due")


def test_what_a_pristine_process_recorded_is_due_and_the_tests_own_expectation_is_not_looked_at():
    recording = Recording()
    check = Checks("a test", recording)
    check("it", 1, lambda: 1)
    check("it", torch.ones(2), torch.ones(2))
    check = Checks("a test", Recorded(recording.due))
    check("it", 1, never)
    check("it", torch.ones(2), [5, 5])
    assert [each.what for each in check.log] == ["it", "it #2"]
    with pytest.raises(CheckFailed, match="it #3: was compared although the reference never comes to that point"):
        check("it", 1, 1)


def test_a_failed_check_is_the_last_of_the_log():
    check = Checks("a test")
    check("one", 1, 1)
    with pytest.raises(CheckFailed):
        check("two", 3, 2)
    with pytest.raises(NotPlain, match=r"^three: a value of type object, where numbers"):
        check("three", object(), 2)
    assert [each.what for each in check.log] == ["one", "two", "three"]
    assert check.log[1].digest == digest(3)


def test_a_wrong_value_that_equals_what_is_due_in_six_digits_is_marked():
    check = Checks("a test")
    with pytest.raises(CheckFailed, match=r"1\.00000001, but 1\.0 was due"):
        check("it", 1.00000001, 1.0)
    assert check.log[0].digest == NEARLY_DUE


def test_the_fixture_compares(check):
    check("sums", {"A": 3}, lambda: {"A": 3})
    with pytest.raises(CheckFailed):
        check("sums", 1, 2)


def test_mistakes_are_recognised_by_what_is_alike_in_them():
    digests = []
    for line in (7, 9):
        check = Checks("a test")
        with pytest.raises(CheckFailed, match=f"line {line}"):
            check("faults", [f"race in line {line}"], [], alike=["race"])
        digests.append(check.log[0].digest)
    assert digests == [digest(["race"])] * 2
