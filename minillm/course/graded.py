"""A graded process: ``python -m minillm.course.graded JOB CHANNEL`` installs a lab and runs tests on it.

Each event goes to the file descriptor CHANNEL as a line of JSON at once, so that what came before a death is known.
The lab's code shares this process: what it prints, and how the process ends, prove nothing.
"""

import contextlib
import ctypes
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from minillm.course.canary import test_that_must_fail
from minillm.course.checks import CHECKS, DUE, CheckFailed, Checks, Due, Recorded, Recording
from minillm.course.failures import Failure, describe
from minillm.course.grades import CheckDigest, Outcome
from minillm.course.job import PRINTED, SHOWN, Job
from minillm.course.overlay import Overlay

MEMORY = 4 << 30
FILE_SIZE = 16 * PRINTED
"""Bytes that this process may allocate, and write to one file: a runaway list or print ends in an exception."""

_PATIENCE = 0.5
"""Seconds that threads get to end after a test."""

_CANARY = Path(__file__).with_name("canary.py")
_NEEDLESS = ("terminal", "faulthandler", "logging", "unraisableexception", "threadexception")
"""Plugins of pytest that cost time, and that nothing of a graded process goes to."""

_QUIET = (*(option for name in _NEEDLESS for option in ("-p", f"no:{name}")), "--capture=no")


def main(arguments: Sequence[str]) -> int:
    """Overlay first: nothing that it replaces may have been imported."""
    job = Job.read(Path(arguments[0]))
    if job.lab is not None:
        Overlay(Path(job.lab), job.tasks, job.others).install()
    if arguments[1] == "debug":
        return run(job.files_of_tests, Selection(job), ("--pdb", "--tb=short"))
    if job.lab is not None:
        _limit()
    with os.fdopen(int(arguments[1]), "w", encoding="utf-8") as channel:
        return _reported(job, Reporter(job, channel))


def _reported(job: Job, reporter: "Reporter") -> int:
    code = run([*job.files_of_tests, str(_CANARY)], reporter, _QUIET)
    if job.record is not None:
        Path(job.record).write_text(json.dumps(reporter.recording.due), encoding="utf-8")
    reporter.send(event="end")
    return code


def run(files: Iterable[str], plugin: object, options: Iterable[str]) -> int:
    """pytest on these files, whatever options the project gives it otherwise: its exit code."""
    course = ("-o", "addopts=", "-p", "minillm.course.checks", "--strict-markers", "-p", "no:cacheprovider")
    rewrites = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # checks was imported before pytest asks for it
    return pytest.main([*course, *rewrites, "-p", "no:xdist", *options, *files], plugins=[plugin])


def _limit() -> None:
    for kind, limit in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_FSIZE, FILE_SIZE), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):  # a system that has no such limit
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


class Selection:
    """Runs the tests that a job names, or those of all tasks, with what is due for them as recorded."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.recording = Recording()

    def pytest_configure(self, config: pytest.Config) -> None:
        """Say where ``check`` finds what is due."""
        due: Due = self.recording
        if self.job.due is not None:
            due = Recorded(json.loads(Path(self.job.due).read_text(encoding="utf-8"))["due"])
        config.stash[DUE] = due

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the job, in its order, and the canary behind them."""
        canaries = [item for item in items if _is_canary(item)]
        wanted = [item for item in items if not _is_canary(item) and _tasks(item)]
        if self.job.tests:
            order = {test: place for place, test in enumerate(self.job.tests)}
            wanted = sorted((item for item in wanted if item.nodeid in order), key=lambda item: order[item.nodeid])
        items[:] = [*wanted, *canaries]


def _is_canary(item: pytest.Item) -> bool:
    return getattr(item, "function", None) is test_that_must_fail


def _tasks(item: pytest.Item) -> list[list[int]]:
    return [list(marker.args) for marker in item.iter_markers("task")]


class Reporter(Selection):
    """Tells the channel how each test ended."""

    def __init__(self, job: Job, channel: TextIO) -> None:
        super().__init__(job)
        self._channel = channel
        self._output = os.dup(1)
        self._failure: Failure | None = None
        self._called = False

    def send(self, **event: Any) -> None:
        """One line, at once."""
        self._channel.write(json.dumps(event) + "\n")
        self._channel.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say which tests there are, and which tasks they judge."""
        tests = {item.nodeid: _tasks(item) for item in session.items if not _is_canary(item)}
        self.send(event="collected", tests=tests)

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any]) -> None:
        """Say why a test file could not be imported."""
        if call.when == "collect" and call.excinfo:
            failure = describe(call.excinfo.value, [], self.job.lab)
            self.send(event="broken", **_told(failure))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Report a test from its beginning to its end."""
        self._failure, self._called = None, False
        threads = set(threading.enumerate())
        _flush()
        os.ftruncate(self._output, 0)
        self.send(event="start", test=item.nodeid)
        try:
            return (yield)
        except BaseException as error:  # an interrupt, which pytest lets pass
            self._failure = describe(error, [], self.job.lab)
            raise
        finally:
            self._finish(item, threads)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the first failure of a test's phases."""
        report = yield
        self._called = self._called or (call.when == "call" and report.passed)
        if call.excinfo and not self._failure:
            self._failure = describe(call.excinfo.value, _log(item), self.job.lab)
        return report

    def _finish(self, item: pytest.Item, threads: set[threading.Thread]) -> None:
        _flush()
        flooded = os.fstat(self._output).st_size > PRINTED
        failure = FLOOD if flooded else self._failure or self._without_exception(item, threads)
        self.send(
            event="finish",
            test=item.nodeid,
            canary=_is_canary(item),
            printed=os.pread(self._output, SHOWN, 0).decode("utf-8", "replace"),
            checks=[[each.what, each.digest] for each in _log(item)],
            sound=_sound(),
            **_told(failure),
        )

    def _without_exception(self, item: pytest.Item, threads: set[threading.Thread]) -> Failure:
        if _outlives(set(threading.enumerate()) - threads):
            return LEFT_THREADS
        if not self._called:
            return SKIPPED
        unmet = _recorded(item) - {each.what for each in _log(item)}
        if unmet:  # a loop over results makes no check where there are none
            what = min(unmet)
            return Failure(Outcome.FAILED, f"{what}: the code never came to the point where this is due", f"no {what}")
        return PASSED


PASSED = Failure(Outcome.PASSED, "", "")
SKIPPED = Failure(Outcome.NOT_RUN, "pytest did not run it to its end", "not run")
FLOOD = Failure(Outcome.FLOODED, f"printed more than {PRINTED >> 20} MiB; print less", "flooded")
LEFT_THREADS = Failure(Outcome.LEFT_THREADS, "threads that it started still run; end them", "left threads running")


def _told(failure: Failure) -> dict[str, str]:
    return {"outcome": failure.outcome.value, "message": failure.message, "failure": failure.digest}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full file, or a stream that the lab closed
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # compiled code prints by C's own means


def _log(item: pytest.Item) -> Sequence[CheckDigest]:
    checks = item.stash.get(CHECKS, None)
    return checks.log if checks else []


def _recorded(item: pytest.Item) -> set[str]:
    """The checks that the reference makes in a test."""
    due = item.config.stash.get(DUE, None)
    return set(due.due.get(item.nodeid, ())) if isinstance(due, Recorded) else set()


def _outlives(threads: Iterable[threading.Thread]) -> bool:
    """Whether any of these goes on for longer than a moment."""
    end = time.monotonic() + _PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _sound() -> bool:
    """Whether checks still notice a wrong value and a wrong tensor, whatever the lab has done to this process."""
    torch = sys.modules.get("torch")
    what, done, wrong = _different()
    pairs = [(done, wrong), *([(torch.tensor(done), torch.tensor(wrong))] if torch else [])]
    return not any(_equal(what, *pair) for pair in pairs)


def _different() -> tuple[str, list[float], list[float]]:
    """A name, and two things that differ a little: other ones each time, so that no lab knows them by sight."""
    chance = random.SystemRandom()
    values = [chance.random() for _ in range(3)]
    return f"{chance.randrange(10**6)}", values, [*values[:2], values[2] + 0.25]


def _equal(what: str, done: object, due: object) -> bool:
    try:
        Checks("a trial")(what, done, due)
    except CheckFailed:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
