"""Graded processes seen from outside: started, watched, killed, and believed only where each test was reported."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minillm.course.cache import cache_folder
from minillm.course.grades import CheckDigest, Outcome, TestReport
from minillm.course.job import SHOWN, Job, Limits

_TICK = 0.5
"""Seconds between looks at a process that says nothing."""

Event = Mapping[str, Any]


class Void(ValueError):
    """A run that proves nothing: the sentence says why."""


def run(job: Job, root: Path, limits: Limits) -> list[TestReport]:
    """A report for each test of the job, run in the folder ``root``, from which the tests' ids lead to them.

    A process that dies, or is killed at a limit, is followed by another one for the tests that are left. Raises Void
    where a check that must fail did not.
    """
    reports: dict[str, TestReport] = {}
    for _ in range(limits.kills + 1):
        left = [test for test in job.tests if test not in reports]
        if left:
            rest = replace(job, tests=left)
            reports |= {report.test: report for report in _reports(rest, root, limits)}
    why = f"{limits.kills + 1} tests before it ended their processes"
    return [reports.get(test) or TestReport(test, Outcome.NOT_RUN, why) for test in job.tests]


def _reports(job: Job, root: Path, limits: Limits) -> Iterator[TestReport]:
    """Of one process, as far as it comes; a death is reported for the test that ran, or for all if none had begun."""
    progress = _Progress(job)
    with Process(job, root) as process:
        try:
            for event in process.events(limits.start_up, limits.of_test(job)):
                yield from progress.reports(event)
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
        tuple(CheckDigest(what, digest) for what, digest in event.get("checks", ())),
        event["failure"],
    )


class Process:
    """One graded process while it is needed; left by killing it and whatever it has started."""

    def __init__(self, job: Job, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="minillm-")
        file, self._output = Path(self._folder.name, "job.json"), Path(self._folder.name, "output")
        job.write(file)
        self._channel, write = os.pipe()
        with self._output.open("a+b") as output:
            command = [sys.executable, "-u", "-m", "minillm.course.graded", str(file), str(write)]
            self._process = subprocess.Popen(
                command,
                cwd=root,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                start_new_session=True,
            )
        os.close(write)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._channel)
        self._folder.cleanup()

    def printed(self) -> str:
        """What the test that ran last has printed, cut if it is long."""
        with self._output.open("rb") as output:
            return output.read(SHOWN).decode("utf-8", "replace")

    def events(self, start_up: float, test: float) -> Iterator[Event]:
        """What the process tells, to its end.

        Raises TimeoutError if it says nothing for ``start_up`` seconds before the first test begins, or for ``test``
        seconds from then on.
        """
        rest, seconds, end = b"", start_up, time.monotonic() + start_up
        while True:
            chunk = self._read(end - time.monotonic())
            if chunk is None:
                raise TimeoutError(f"no end within {seconds:g} seconds")
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                yield event
                if event["event"] == "end":
                    return
                if event["event"] == "start":
                    seconds = test
                end = time.monotonic() + seconds

    def _read(self, seconds: float) -> bytes | None:
        """The next bytes of the channel; none at its end, and None if there are none in time."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            ended = self._process.poll() is not None
            if select.select([self._channel], [], [], max(0.0, min(_TICK, left)))[0]:
                return os.read(self._channel, 1 << 16)
            if ended:  # another process may hold the channel open
                return b""
            if left <= 0:
                return None


def _environment() -> dict[str, str]:
    """Ours, with the same hashes in every process, so that a set's order is no difference."""
    return os.environ | {"PYTHONHASHSEED": "0", "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", _numba_cache())}


def _numba_cache() -> str:
    return str(cache_folder() / "numba")
