"""Graded processes seen from outside: started, watched, killed, and believed only where each test was reported."""

import json
import os
import select
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from minillm.course.grades import CheckDigest, Outcome, TestReport
from minillm.course.job import SHOWN, Job, Limits
from minillm.course.lesson import Task
from minillm.course.nursery import Nursery, kill

AT_A_TIME = 2
"""Graded processes that run beside each other."""

_LIBRARIES = {
    "minillm.": ("torch", "gguf", "jinja2", "safetensors", "tokenizers", "numba"),
    "kernels.": ("numba",),
    "kernels.cuda.": ("numba.cuda", "kernels.lab"),
}
"""What tests of a task need, by the beginnings of the names of its modules; nothing of this holds a task."""

Event = Mapping[str, Any]

_TEXTS = ("event", "test", "outcome", "message", "printed", "failure")
"""What is text wherever an event has it."""

STRANGE = "the process reported what no test reports, so nothing of this run counts; write to no open files"


class Void(ValueError):
    """A run that proves nothing: the sentence says why."""


def run(job: Job, nursery: Nursery, limits: Limits) -> list[TestReport]:
    """A report for each test of the job, in its order. Raises Void where a check that must fail did not."""
    reports = {report.test: report for report in one_by_one(job, nursery, limits)}
    why = f"{limits.kills + 1} tests before this one did not end, or ended the whole process; correct those first"
    return [reports.get(test) or TestReport(test, Outcome.NOT_RUN, why) for test in job.tests]


def one_by_one(job: Job, nursery: Nursery, limits: Limits) -> Generator[TestReport, None, None]:
    """Reports of the job's tests as they end; whoever closes this early ends the process.

    A process that dies, or is killed at a limit, is followed by another one for the tests that are left, but only so
    often. Raises Void where a check that must fail did not.
    """
    reported: set[str] = set()
    for _ in range(limits.kills + 1):
        left = [test for test in job.tests if test not in reported]
        for report in _reports(replace(job, tests=left), nursery, limits) if left else ():
            reported.add(report.test)
            yield report


@contextmanager
def crew(tasks: Iterable[Task], root: Path) -> Iterator[tuple[Nursery, ThreadPoolExecutor]]:
    """A nursery in ``root`` for jobs on these tasks above all, and threads to watch its processes, two at a time.

    Whoever leaves early, as by an interrupt, waits for nobody.
    """
    modules = tuple(function.module for task in tasks for function in task.functions)
    needed = [names for start, names in _LIBRARIES.items() if any(module.startswith(start) for module in modules)]
    with Nursery(root, list(chain(*needed))) as nursery:
        pool = ThreadPoolExecutor(AT_A_TIME)
        try:
            yield nursery, pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _reports(job: Job, nursery: Nursery, limits: Limits) -> Iterator[TestReport]:
    """Of one process, as far as it comes; a death is reported for the test that ran, or for all if none had begun."""
    progress = _Progress(job)
    with Process(job, nursery) as process:
        try:
            for event in process.events(limits.start_up, limits.of_test(job)):
                yield from progress.understood(event)
            outcome, why = Outcome.DIED, "the process ended, as by os._exit or a crash"
        except TimeoutError as error:
            outcome, why = Outcome.TIMED_OUT, str(error)
        yield from progress.cut_off(outcome, why, process.printed())


@dataclass(slots=True)
class _Progress:
    """What a process has told so far.

    begun    whether the first test has
    running  the test that has begun and not ended
    passed   whether the last one passed
    proven   whether the test that must fail has failed
    """

    job: Job
    begun: bool = False
    running: str = ""
    passed: bool = False
    proven: bool = False

    def understood(self, event: Event) -> list[TestReport]:
        """The reports of an event. Raises Void for one that no graded process sends of its own accord."""
        try:
            return list(self.reports(event))
        except Void:
            raise
        except (ValueError, LookupError, TypeError):
            raise Void(STRANGE) from None

    def reports(self, event: Event) -> Iterator[TestReport]:
        """The reports that an event gives rise to."""
        match event["event"]:
            case "broken" if not self.begun:
                self.begun = True
                yield from (_report(event, test) for test in self.job.tests)
            case "collected" if not self.begun:
                missing = [test for test in self.job.tests if test not in event["tests"]]
                yield from (TestReport(test, Outcome.NOT_RUN, "pytest did not find it") for test in missing)
            case "start":
                self.begun, self.running = True, event["test"]
            case "finish":
                self.running = ""
                self._weigh(event)
                if not event["canary"]:
                    yield _report(event, event["test"])
            case "end":
                self._weigh_end()

    def _weigh(self, event: Event) -> None:
        if not event["sound"] or (event["canary"] and event["outcome"] != Outcome.FAILED):
            raise Void("a check that must fail passed, so nothing of this run counts; leave the grader's code alone")
        self.proven = self.proven or event["canary"]
        self.passed = event["outcome"] == Outcome.PASSED

    def _weigh_end(self) -> None:
        if self.passed and not self.proven:
            raise Void("the test that must fail was never reported, so nothing of this run counts")

    def cut_off(self, outcome: Outcome, why: str, printed: str) -> Iterator[TestReport]:
        """Reports of the tests that the end of the process, or of its time, has hit."""
        if not self.begun:
            why = f"{why}, before the first test"
        hit = [self.running] if self.begun else self.job.tests
        yield from (TestReport(test, outcome, why, printed, (), outcome.value) for test in hit if test)


def _report(event: Event, test: str) -> TestReport:
    return TestReport(
        test,
        Outcome(event["outcome"]),
        event["message"],
        event.get("printed", ""),
        tuple(CheckDigest(str(what), str(digest)) for what, digest in event.get("checks", ())),
        event["failure"],
    )


def _event(line: bytes) -> Event:
    """What a line says. Raises Void for one that the lab, which shares the process, has written there."""
    try:
        event = json.loads(line)
        if all(isinstance(event.get(name, ""), str) for name in _TEXTS):
            Outcome(event.get("outcome", Outcome.PASSED))
            return {"event": event["event"], **event}
    except (ValueError, LookupError, AttributeError, RecursionError):
        pass
    raise Void(STRANGE)


class Process:
    """One graded process while it is needed; left by killing it and whatever it has started."""

    def __init__(self, job: Job, nursery: Nursery) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="minillm-", ignore_cleanup_errors=True)
        file, self._output = Path(self._folder.name, "job.json"), Path(self._folder.name, "output")
        job.write(file)
        self._channel, write = os.pipe()
        with self._output.open("a+b") as output:
            self._number = nursery.start(file, write, output.fileno())
        os.close(write)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exception: object) -> None:
        kill(self._number)
        os.close(self._channel)
        self._folder.cleanup()

    def printed(self) -> str:
        """What the test that ran last has printed, cut if it is long."""
        with self._output.open("rb") as output:
            return output.read(SHOWN).decode("utf-8", "replace")

    def events(self, start_up: float, test: float) -> Iterator[Event]:
        """What the process tells, to its end.

        Raises TimeoutError if it says nothing for ``start_up`` seconds before the first test begins, or for ``test``
        seconds from then on; and Void for a line that is no event.
        """
        rest, seconds, end = b"", start_up, time.monotonic() + start_up
        while True:
            chunk = self._read(end - time.monotonic())
            if chunk is None:
                raise TimeoutError(f"no end within {seconds:g} seconds")
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(_event, lines):
                yield event
                if event["event"] == "end":
                    return
                if event["event"] == "start":
                    seconds = test
                end = time.monotonic() + seconds

    def _read(self, seconds: float) -> bytes | None:
        """The next bytes of the channel; none at its end, and None if there are none in time."""
        ready, _, _ = select.select([self._channel], [], [], max(0.0, seconds))
        return os.read(self._channel, 1 << 16) if ready else None
