"""What a graded process is asked to do, and the limits that it is watched with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minillm.course.overlay import may_be_compiled

PRINTED = 1 << 20
"""Bytes that a test may print; whoever prints more does not mean to be read."""

SHOWN = 4000
"""Bytes of these that are passed on."""


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run in one process.

    files     test files
    tests     ids of tests in these files, in the order in which they run; empty for all that belong to a task
    lab       file whose functions replace the reference's; None to run the reference
    tasks     module -> functions taken from the lab
    others    module -> further functions of the lab, which are left out
    due       file with what is due, written by a pristine process; None to compute and record it
    record    file that such a process writes
    """

    files: Sequence[str]
    tests: Sequence[str] = ()
    lab: str | None = None
    tasks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    due: str | None = None
    record: str | None = None

    @property
    def files_of_tests(self) -> list[str]:
        """Those of the files in which the job's tests stand: no other needs to be imported."""
        named = {test.partition("::")[0] for test in self.tests}
        return [file for file in self.files if file in named or not self.tests]

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Job":
        """What ``write`` wrote."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds until a process is killed.

    start_up  until its first test begins
    test      for each test
    compiled  for each test, where the lab's functions are compiled to machine code first
    kills     processes of one job that may die or be killed; the tests that are left are not run
    """

    start_up: float = 120.0
    test: float = 20.0
    compiled: float = 60.0
    kills: int = 2

    def of_test(self, job: Job) -> float:
        """Seconds for a test of this job."""
        return self.compiled if may_be_compiled(job.tasks) else self.test
