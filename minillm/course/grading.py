"""Grade a student's lab: each task alone over the reference, and with all that the student has written."""

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from minillm.course import misconceptions
from minillm.course.cache import keep_newest, made_folder, tree_hash
from minillm.course.expectations import Expectations, expectations
from minillm.course.grades import LessonGrade, Outcome, TaskGrade, TestReport
from minillm.course.job import Job, Limits
from minillm.course.lesson import TESTS, Function, Lesson, Task
from minillm.course.mutants import kill_mutant
from minillm.course.nursery import Nursery
from minillm.course.overlay import Overlay
from minillm.course.processes import Void, crew, run
from minillm.course.screening import Refused, read_lab, screen
from minillm.course.splice import OverlayError
from minillm.course.workspace import written_functions

_KEPT = 32
"""Notes of states of the tree in which the grader caught a known wrong solution."""


def grade(
    lesson: Lesson,
    lab: Path,
    tasks: Collection[int] | None = None,
    *,
    fallback: bool = True,
    tests: Path = TESTS,
    limits: Limits | None = None,
) -> LessonGrade:
    """The grade of ``lab`` in these tasks of the lesson, or in all.

    Credit comes from each task alone over the reference. For the integration the other tasks are the student's where
    they are written; else they are the reference's with ``fallback``, and the skeleton's without. A task that never
    ends, or ends its process, is left out of that, for it would hide all others. ``tests`` is the folder of tests.
    Trouble with the lab or the grader makes the grade void, and says why.
    """
    chosen = _chosen(lesson, tasks)
    limits = limits or Limits()
    try:
        screen(lab)
        with crew(chosen, tests.parent) as (nursery, pool):
            due = expectations(lesson, tests, nursery, limits)
            trial = pool.submit(prove_grader, lesson, due, nursery, limits)
            grades = _Grading(lesson, lab, due, nursery, limits, fallback).grades(chosen, pool)
            trial.result()
        return LessonGrade(lesson.number, lesson.title, lab, grades)
    except (Refused, Void) as error:
        nothing = [TaskGrade(task.number, task.goal, task.points, written=False) for task in chosen]
        return LessonGrade(lesson.number, lesson.title, lab, nothing, str(error))


def _chosen(lesson: Lesson, tasks: Collection[int] | None) -> list[Task]:
    return [task for task in lesson.tasks if tasks is None or task.number in tasks]


@dataclass(frozen=True, slots=True)
class _Grading:
    """A lab, and all that it is graded with."""

    lesson: Lesson
    lab: Path
    due: Expectations
    nursery: Nursery
    limits: Limits
    fallback: bool

    def grades(self, chosen: Sequence[Task], pool: ThreadPoolExecutor) -> list[TaskGrade]:
        """Each task alone and, at the same time, in one process, all that are mixed with others.

        That process starts again where a task in it ends processes.
        """
        text = read_lab(self.lab)
        written = {task.number: written_functions(text, task) for task in self.lesson.tasks}
        refused = {task.number: self._refusal(task.functions) for task in self.lesson.tasks if written[task.number]}
        fit = [task for task in self.lesson.tasks if not refused.get(task.number)]
        alone = [task for task in chosen if task in fit and written[task.number]]
        together = pool.submit(self._run_mixed, fit, alone, written)
        runs = {task.number: pool.submit(self._run, task.functions, [task]) for task in alone}
        reports = {number: future.result() for number, future in runs.items()}
        going = [task for task in fit if not _kills(reports.get(task.number, ()))]
        if going != fit:
            together = pool.submit(self._run_mixed, going, alone, written)
        integration = together.result()
        return [
            TaskGrade(
                task.number,
                task.goal,
                task.points,
                written=bool(written[task.number]),
                refused=refused.get(task.number),
                reports=self._explained(task, reports.get(task.number) or self._not_run(task, refused)),
                integration=self._explained(task, integration.get(task.number, ())),
            )
            for task in chosen
        ]

    def _run_mixed(
        self, going: Sequence[Task], alone: Sequence[Task], written: Mapping[int, Sequence[Function]]
    ) -> dict[int, list[TestReport]]:
        """By task reports of those that ran alone and are going, with all that is written of those going."""
        used = [each for task in going for each in (written[task.number] if self.fallback else task.functions)]
        mixed = [task for task in alone if task in going and set(used) != set(task.functions)]
        reports = {report.test: report for report in self._run(used, mixed)}
        return {task.number: [reports[test] for test in self.due.tests[task.number]] for task in mixed}

    def _refusal(self, functions: Sequence[Function]) -> str | None:
        """Why these functions cannot stand in for the reference's, if so."""
        job = self._job(functions, ())
        try:
            Overlay(self.lab, job.tasks, job.others)
        except (OverlayError, SyntaxError) as error:
            return str(error)
        return None

    def _run(self, functions: Sequence[Function], tasks: Iterable[Task]) -> list[TestReport]:
        """The tests of these tasks, each once, with these functions taken from the lab."""
        tests = tuple(dict.fromkeys(test for task in tasks for test in self.due.tests[task.number]))
        refusal = self._refusal(functions) if tests else None
        if refusal:
            return [TestReport(test, Outcome.NOT_RUN, refusal) for test in tests]
        return run(self._job(functions, tests), self.nursery, self.limits)

    def _job(self, functions: Sequence[Function], tests: tuple[str, ...]) -> Job:
        return lab_job(self.lesson, self.lab, functions, self.due, tests)

    def _not_run(self, task: Task, refused: Mapping[int, str | None]) -> list[TestReport]:
        """Reports of a task that is not written; none of one that was refused."""
        if refused.get(task.number):
            return []
        why = f"task {task.number} is not written yet"
        return [TestReport(test, Outcome.NOT_WRITTEN, why) for test in self.due.tests[task.number]]

    def _explained(self, task: Task, reports: Sequence[TestReport]) -> tuple[TestReport, ...]:
        mutants = [mutant for mutant in self.lesson.mutants if mutant.task == task.number]
        explained = misconceptions.explained(reports, mutants, misconceptions.read(self.lesson.folder))
        return tuple(sorted(explained, key=lambda report: self._breadth(report.test)))

    def _breadth(self, test: str) -> int:
        """How many tasks a test judges: those of one function come before those of a whole run."""
        return sum(test in tests for tests in self.due.tests.values())


def _kills(reports: Iterable[TestReport]) -> bool:
    """Whether a task ends processes: with it no other task could be tried."""
    return any(report.outcome in (Outcome.TIMED_OUT, Outcome.DIED) for report in reports)


def lab_job(
    lesson: Lesson, lab: Path, functions: Collection[Function], due: Expectations, tests: tuple[str, ...]
) -> Job:
    """These tests with these functions from the lab, and the lesson's other functions left out."""
    others = {each for task in lesson.tasks for each in task.functions} - set(functions)
    return Job(due.files, tests, str(lab.absolute()), _by_module(functions), _by_module(others), str(due.file))


def _by_module(functions: Iterable[Function]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for function in sorted(functions, key=str):
        modules.setdefault(function.module, []).append(function.name)
    return modules


def prove_grader(lesson: Lesson, due: Expectations, nursery: Nursery, limits: Limits) -> None:
    """See that a known wrong solution fails, once for a state of the tree. Raises Void if it passes."""
    folder = made_folder("trials")
    note = folder / f"{due.file.stem}_{tree_hash([lesson.folder / 'lesson.toml'])}"
    if note.exists():
        return
    for mutant in lesson.mutants:
        report = kill_mutant(lesson, due, nursery, limits, mutant)
        if report.reports and all(each.passed for each in report.reports):
            raise Void(f"the known wrong solution {mutant.name} passes every test, so nothing of this run counts")
        if report.reports:
            note.touch()
            keep_newest(folder, "*", _KEPT)
            return
    raise Void(f"lesson {lesson.number} has no known wrong solution that runs, so nothing shows that its tests see any")


def debug(lesson: Lesson, lab: Path, tasks: Collection[int] | None = None, tests: Path = TESTS) -> int:
    """Run the tests of these tasks on this terminal, and stop in the debugger where one fails: pytest's exit code.

    The tasks are the student's, all others the reference's. Raises Refused for a lab that is not run, and Void where
    the reference itself fails a test.
    """
    screen(lab)
    with Nursery(tests.parent) as nursery:
        due = expectations(lesson, tests, nursery, Limits())
    chosen = _chosen(lesson, tasks)
    names = tuple(dict.fromkeys(test for task in chosen for test in due.tests[task.number]))
    job = lab_job(lesson, lab, [each for task in chosen for each in task.functions], due, names)
    with tempfile.TemporaryDirectory(prefix="minillm-") as folder:
        file = Path(folder, "job.json")
        job.write(file)
        command = [sys.executable, "-m", "minillm.course.graded", str(file), "debug"]
        return subprocess.run(command, cwd=tests.parent, check=False).returncode
