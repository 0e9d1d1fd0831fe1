"""What a failure says of an exception: shortened, without the reference's code, and with what helps."""

from dataclasses import dataclass
from enum import Enum

import pytest
import torch

from kernels.lab.source import LabError
from minillm.course.checks import CheckFailed, compare
from minillm.course.failures import describe
from minillm.course.grades import CheckDigest, Outcome


@dataclass(slots=True)
class Span:
    start: int
    length: int
    _own: int = 0

    @property
    def end(self):
        return self.start + self.length


class Status(Enum):
    WAITING = 1
    RUNNING = 2


def message(call, lab=None):
    """What is said of the exception that ``call()`` raises."""
    with pytest.raises(Exception) as error:
        call()
    return describe(error.value, [], lab and str(lab)).message


def test_a_name_that_an_object_lacks_is_answered_with_those_that_it_has():
    assert message(lambda: Span(1, 2).lenght).splitlines() == [
        "AttributeError: 'Span' object has no attribute 'lenght'",
        "  Do you mean length? Span has: start, length, end",
    ]
    assert message(lambda: Span(1, 2)._lost).endswith("  Span has: start, length, _own, end")


def test_the_members_of_an_enum_are_named():
    assert "Do you mean RUNNING? Status has: " in message(lambda: Status.RUNING)
    assert "WAITING, RUNNING" in message(lambda: Status.RUNING)


@pytest.mark.parametrize("thing", [3, torch.zeros(1)])
def test_objects_of_python_and_torch_are_not_listed(thing):
    assert len(message(lambda: thing.nothing).splitlines()) == 1


def test_an_object_that_will_not_be_looked_at_is_left_alone():
    class Hidden:
        def __getattribute__(self, name):
            raise AttributeError(name, name=name, obj=self)

    assert message(lambda: Hidden().it).startswith("AttributeError: ")


def test_each_line_of_a_text_is_cut():
    lines = message(lambda: {}["x" * 500]).splitlines()
    assert lines[0] == f"KeyError: '{'x' * 119}..."


def test_an_error_of_the_kernel_lab_is_told_to_its_end():
    class Deadlock(LabError):
        pass

    def fail(kind):
        raise kind("word " * 200 + "remedy")

    for kind in (LabError, Deadlock):
        assert message(lambda kind=kind: fail(kind)).splitlines()[0].endswith("remedy")


LAB = """
class Queue:
    def head(self) -> int:
        self.items[0]

    def tail(self) -> int:
        return self.items[-1]

    def clear(self) -> None:
        self.items = []

    def all(self) -> list:
        yield from self.items

    def later(self) -> int:
        raise NotImplementedError("lesson 1, task 1: later")

    def inner(self) -> int:
        def answer():
            return 1
"""


def test_functions_without_a_return_are_named_where_none_does_harm(tmp_path):
    lab = tmp_path / "lab.py"
    lab.write_text(LAB)
    lines = message(lambda: None + 1, lab).splitlines()
    assert lines[1:] == [
        "  Your Queue.head has no `return` with a value, and so it returns None.",
        "  Your Queue.inner has no `return` with a value, and so it returns None.",
    ]
    assert len(message(lambda: 1 / 0, lab).splitlines()) == 1


def test_a_check_that_met_none_is_told_where_that_comes_from(tmp_path):
    lab = tmp_path / "lab.py"
    lab.write_text("def f(x):\n    if x:\n        return 1\n")
    with pytest.raises(CheckFailed) as error:
        compare("blocks", None, 1)
    lines = describe(error.value, [CheckDigest("blocks", "")], str(lab)).message.splitlines()
    assert lines == ["blocks: None, but 1 was due", "  None is what a function returns that ends without a `return`."]


@pytest.mark.parametrize(("what", "kind"), [("faults", "fault"), ("errors", "fault"), ("sums", "check")])
def test_faults_are_told_apart_from_wrong_values(what, kind):
    digest = describe(CheckFailed("wrong"), [CheckDigest(what, "a digest")], None).digest
    assert digest.partition(" ")[0] == kind


REFERENCE = """
def f(call):
    secret = call()
    return secret
"""


def test_lines_of_the_lab_are_shown_and_none_of_the_reference(tmp_path):
    lab, other = tmp_path / "lab.py", tmp_path / "reference.py"
    lab.write_text("def g():\n    return {}[1]\n")
    mine, theirs = {"__name__": "toy"}, {"__name__": "minillm.toy"}
    exec(compile(lab.read_text(), str(lab), "exec"), mine)
    exec(compile(REFERENCE, str(other), "exec"), theirs)
    lines = message(lambda: theirs["f"](mine["g"]), lab).splitlines()
    assert [line.split("/")[-1] for line in lines] == ["KeyError: 1", "lab.py:2, in g: return {}[1]"]
    tool = {"__name__": "kernels.lab.toy"}
    exec(compile(REFERENCE, str(tmp_path / "tool.py"), "exec"), tool)
    assert "tool.py" not in message(lambda: tool["f"](None), lab)
    lines = message(lambda: theirs["f"](None), lab).splitlines()
    assert lines[-1].endswith("reference.py, in f")
    assert "secret" not in "".join(lines)


def test_what_is_not_written_is_named(tmp_path):
    lab = tmp_path / "lab.py"
    lab.write_text("class Queue:\n    def head(self):\n        raise NotImplementedError('lesson 1, task 1: it')\n")
    names = {"__name__": "toy"}
    exec(compile(lab.read_text(), str(lab), "exec"), names)
    with pytest.raises(NotImplementedError) as error:
        names["Queue"]().head()
    failure = describe(error.value, [], str(lab))
    assert (failure.outcome, failure.message) == (Outcome.NOT_WRITTEN, "Queue.head is not written yet")
