"""No graded process outlives the grader, however that ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
from toy_lesson import at_work

from minillm.course.job import Job
from minillm.course.nursery import Nursery, kill
from minillm.course.processes import Process

ENDLESS = "def total(numbers):\n    while True:\n        pass\n"

GRADER = """
import sys
from pathlib import Path
from minillm.course.job import Job
from minillm.course.nursery import Nursery
from minillm.course.processes import Process

folder = Path({folder!r})
job = Job(["tests/test_lesson_91_toy.py"], lab=str(folder / "lab_91_toy.py"), tasks={{"toy": ["total"]}})
with Nursery(folder) as nursery, Process(job, nursery) as process:
    for event in process.events(60, 60):
        if event["event"] == "start":
            print(nursery._process.pid, process._number, flush=True)
"""


def is_gone(number):
    """Whether a process has ended, buried or not, within a generous time."""
    for _ in range(60):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], check=False, capture_output=True, text=True)
        if state.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def grader(tmp_path):
    """A grader, its nursery and a graded process that never ends."""
    with at_work(tmp_path) as toy:
        toy.lab(ENDLESS)
        program = GRADER.format(folder=str(tmp_path))
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as grader:
            nursery, graded = map(int, grader.stdout.readline().split())
            yield grader, nursery, graded
            for number in (grader.pid, nursery, graded):
                kill(number)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_an_endless_loop_ends_with_its_grader(grader, name):
    process, nursery, graded = grader
    process.send_signal(signal.Signals[name])
    assert is_gone(graded)
    assert is_gone(nursery)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_an_endless_loop_ends_with_its_nursery(grader):
    _, nursery, graded = grader
    os.kill(nursery, signal.SIGKILL)
    assert is_gone(graded)


def test_a_nursery_that_is_given_no_job_imports_nothing(tmp_path):
    with Nursery(tmp_path, ["torch"]) as nursery:
        assert nursery._process is None


def test_a_module_that_cannot_be_imported_ends_no_nursery(tmp_path):
    with at_work(tmp_path) as toy, Nursery(tmp_path, ["no_such_module"]) as nursery:
        job = Job(["tests/test_lesson_91_toy.py"], lab=str(toy.lab(ENDLESS)), tasks={"toy": ["total"]})
        with Process(job, nursery) as process:
            assert next(process.events(60, 60))["event"] == "collected"


def test_of_a_jobs_files_those_that_hold_its_tests_are_imported():
    files = ["tests/test_a.py", "tests/test_ab.py"]
    assert Job(files, ["tests/test_ab.py::test_it[1]"]).files_of_tests == files[1:]
    assert Job(files).files_of_tests == files
