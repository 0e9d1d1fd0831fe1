"""What grading found, as plain data: tests, tasks, lessons, and how known wrong solutions fared."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"  # a check, an assertion, or an exception that was due and did not come
    WRONG_TYPE = "wrong type"  # a check met something that is no plain data
    NOT_WRITTEN = "not written"  # the skeleton's NotImplementedError
    RAISED = "raised"  # any other exception
    TIMED_OUT = "timed out"
    DIED = "died"  # the process ended: os._exit, SystemExit, a crash
    FLOODED = "flooded"  # printed more than anyone reads
    LEFT_THREADS = "left threads running"
    NOT_RUN = "not run"  # too many tests before it had to be killed or died, or pytest skipped or lost it


@dataclass(frozen=True, slots=True)
class CheckDigest:
    """What a check compared: ``what``, numbered where it repeats in a test, and a digest of what the code did."""

    what: str
    digest: str


@dataclass(frozen=True, slots=True)
class Misconception:
    """The error that a known wrong solution makes: ``why`` is said to the student, ``section`` explains it."""

    mutant: str
    why: str
    section: str


@dataclass(frozen=True, slots=True)
class TestReport:
    """One test of a task.

    test           pytest's id, ``tests/test_lesson_04_paged_attention.py::test_blocks[4]``
    message        what went wrong, in words, several lines at most; empty if it passed
    printed        what the code wrote to standard output and standard error, cut if it is long
    digests        of its checks, in order; a failed check is the last
    failure        digest of how it failed; empty if it passed
    misconception  set where the test failed just as under a known wrong solution
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    test: str
    outcome: Outcome
    message: str = ""
    printed: str = ""
    digests: tuple[CheckDigest, ...] = ()
    failure: str = ""
    misconception: Misconception | None = None

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.outcome is Outcome.PASSED

    @property
    def name(self) -> str:
        """The test's name in words: ``blocks [4]`` for the id above, and ``a row's sum`` for ``test_a_row_s_sum``."""
        words = self.test.partition("::")[2].removeprefix("test_")
        function, bracket, parameters = words.partition("[")
        words = function.replace("_s_", "'s ").replace("_", " ")
        return f"{words}{' [' + parameters if bracket else ''}"


@dataclass(frozen=True, slots=True)
class TaskGrade:
    """One task of a student.

    written      whether any function of it is no longer the skeleton's
    refused      why it could not be run, such as a signature that was changed; None if it could
    reports      its tests, with this task alone put over the reference: they decide the credit
    integration  the same tests with all that the student has written; empty where that would be the same code
    """

    task: int
    goal: str
    points: int
    written: bool
    refused: str | None = None
    reports: tuple[TestReport, ...] = ()
    integration: tuple[TestReport, ...] = ()

    @property
    def whose(self) -> str:
        """Whose version the tests of the other tasks meet: "yours" or "reference"."""
        return "yours" if self.written and not self.refused else "reference"

    @property
    def solved(self) -> bool:
        """Whether it is written and passes every test of its own; a task without tests is never solved."""
        return self.written and not self.refused and bool(self.reports) and all(r.passed for r in self.reports)

    @property
    def earned(self) -> int:
        """All of its points, or none."""
        return self.points if self.solved else 0

    @property
    def integrates(self) -> bool:
        """Whether its tests also pass together with the student's other tasks."""
        return all(report.passed for report in self.integration)


@dataclass(frozen=True, slots=True)
class LessonGrade:
    """One lesson of a student.

    lab   the file that was graded
    void  why nothing of it counts, in a sentence: the file was refused, or the grader failed its own trial
    """

    lesson: int
    title: str
    lab: Path
    tasks: Sequence[TaskGrade]
    void: str | None = None

    @property
    def points(self) -> int:
        """Points that could be earned."""
        return sum(task.points for task in self.tasks)

    @property
    def earned(self) -> int:
        """Points that were earned; 0 for a void run."""
        return 0 if self.void else sum(task.earned for task in self.tasks)


class Verdict(StrEnum):
    """How a known wrong solution fared."""

    KILLED = "killed"  # by a failed check, as it should be
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    OUR_FAULT = "our fault"  # died, but not of its error: a NameError, or an exception that no test expects or checks


@dataclass(frozen=True, slots=True)
class MutantReport:
    """A known wrong solution under the tests of its task.

    test     the first test that it failed, if any
    message  how it failed there, or what is wrong with the mutant
    reports  every test of its task
    """

    lesson: int
    mutant: str
    task: int
    verdict: Verdict
    test: str = ""
    message: str = ""
    reports: tuple[TestReport, ...] = ()

    @property
    def died(self) -> bool:
        """Whether it died as it should."""
        return self.verdict in (Verdict.KILLED, Verdict.TIMED_OUT)
