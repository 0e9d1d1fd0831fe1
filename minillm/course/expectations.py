"""What a lesson's tests are due, recorded in a pristine process: the reference alone, without any lab."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import minillm
from minillm.course.cache import keep_newest, made_folder, tree_hash
from minillm.course.grades import Outcome
from minillm.course.job import Job, Limits
from minillm.course.lesson import Lesson
from minillm.course.nursery import Nursery
from minillm.course.processes import Event, Process, Void

_PATIENCE = 300.0
"""Seconds for a test of the reference, which may be the first to compile the kernels."""

_KEPT = 4
"""Recordings of a lesson that are kept: a few states of the tree."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Tests of a lesson, and what is due in them.

    tests  ids of the tests of each task, in the order of the file
    files  the lesson's test files, relative to the folder in which tests run
    file   holds what each check is due; graded processes read it
    """

    tests: Mapping[int, tuple[str, ...]]
    files: tuple[str, ...]
    file: Path


def tree_state(tests: Path) -> str:
    """Names the state of all code that a lesson's tests may run: hexadecimal, 16 characters."""
    package = Path(minillm.__file__).parent
    return tree_hash([package, package.parent / "kernels", tests])


def expectations(lesson: Lesson, tests: Path, nursery: Nursery, limits: Limits) -> Expectations:
    """Recorded once for a state of the tree, which takes as long as the lesson's tests.

    ``tests`` is the folder of tests. Raises Void where the lesson has no tests, or the reference fails one.
    """
    name = f"lesson_{lesson.number:02}"
    paths = sorted(tests.glob(f"test_{name}_*.py"))
    if not paths:
        raise Void(f"lesson {lesson.number} has no tests in {tests}; there must be a test_{name}_*.py")
    files = tuple(str(path.relative_to(tests.parent)) for path in paths)
    folder = made_folder("expectations")
    file = folder / f"{name}_{tree_state(tests)}.json"
    if not file.exists():
        _record(files, nursery, file, limits)
        keep_newest(folder, f"{name}_*.json", _KEPT)
    table = json.loads(file.read_text(encoding="utf-8"))["tests"]
    return Expectations(
        {task.number: _of_task(table, lesson.number, task.number) for task in lesson.tasks}, files, file
    )


def _of_task(table: Mapping[str, list[list[int]]], lesson: int, task: int) -> tuple[str, ...]:
    return tuple(test for test, tasks in table.items() if [lesson, task] in tasks)


def _record(files: tuple[str, ...], nursery: Nursery, file: Path, limits: Limits) -> None:
    """Run the tests of all tasks on the reference, and keep what they are due where all pass."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    tests: dict[str, list[list[int]]] = {}
    ended = False
    with Process(Job(files=files, record=str(unfinished)), nursery) as process:
        try:
            for event in process.events(limits.start_up, _PATIENCE):
                ended = event["event"] == "end"
                _learn(event, tests, files)
        except TimeoutError as error:
            raise Void(f"the reference's own run of {', '.join(files)} stands still: {error}") from None
        if not ended:
            raise Void(f"the reference's own run of {', '.join(files)} died: {process.printed()}")
    due = json.loads(unfinished.read_text(encoding="utf-8"))
    unfinished.write_text(json.dumps({"tests": tests, "due": due}), encoding="utf-8")
    unfinished.replace(file)


def _learn(event: Event, tests: dict[str, list[list[int]]], files: tuple[str, ...]) -> None:
    """Note which tests there are, and take out those that this machine skips. Raises Void for one that fails."""
    due = Outcome.FAILED if event.get("canary") else Outcome.PASSED
    if event["event"] == "collected":
        tests.update(event["tests"])
    elif event.get("outcome") == Outcome.NOT_RUN:
        tests.pop(event["test"])
    elif event.get("outcome", due) != due:
        raise Void(f"the reference itself fails {event.get('test', ', '.join(files))}: {event['message']}")
