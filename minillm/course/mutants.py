"""Known wrong solutions: each must fail a check in the tests of its own task, or run into the time limit."""

import ast
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from minillm.course.expectations import Expectations, expectations
from minillm.course.grades import MutantReport, Outcome, TestReport, Verdict
from minillm.course.job import Job, Limits
from minillm.course.lesson import TESTS, Lesson, LessonError, Mutant
from minillm.course.nursery import Nursery
from minillm.course.overlay import Overlay, reference_source
from minillm.course.processes import Void, crew, one_by_one, run
from minillm.course.splice import OverlayError


def judge_mutants(lesson: Lesson, tests: Path = TESTS, limits: Limits | None = None) -> Iterator[MutantReport]:
    """How each of the lesson's mutants fared, in their order. Raises Void where the reference itself fails a test."""
    limits = limits or Limits()
    with crew(lesson.tasks, tests.parent) as (nursery, pool):
        due = expectations(lesson, tests, nursery, limits)
        yield from pool.map(partial(judge_mutant, lesson, due, nursery, limits), lesson.mutants)


def judge_mutant(lesson: Lesson, due: Expectations, nursery: Nursery, limits: Limits, mutant: Mutant) -> MutantReport:
    """Run the tests of its task on it, all of them."""
    return _tried(lesson, due, mutant, lambda job: run(job, nursery, limits))


def kill_mutant(lesson: Lesson, due: Expectations, nursery: Nursery, limits: Limits, mutant: Mutant) -> MutantReport:
    """Run the tests of its task on it until it has died."""
    return _tried(lesson, due, mutant, lambda job: _until_dead(job, nursery, limits))


def _until_dead(job: Job, nursery: Nursery, limits: Limits) -> Iterator[TestReport]:
    with closing(one_by_one(job, nursery, limits)) as reports:
        for report in reports:
            yield report
            if report.outcome in (Outcome.FAILED, Outcome.WRONG_TYPE, Outcome.TIMED_OUT):
                return


def _tried(
    lesson: Lesson, due: Expectations, mutant: Mutant, tests: Callable[[Job], Iterable[TestReport]]
) -> MutantReport:
    with tempfile.TemporaryDirectory(prefix="minillm-") as folder:
        lab = Path(folder, f"{mutant.name}.py")
        try:
            lab.write_text(mutated(mutant), encoding="utf-8")
            functions = {mutant.function.module: [mutant.function.name]}
            Overlay(lab, functions)
            job = Job(due.files, due.tests[mutant.task], str(lab), functions, due=str(due.file))
            reports = tuple(tests(job))
        except (LessonError, OverlayError, SyntaxError, Void) as error:
            return MutantReport(lesson.number, mutant.name, mutant.task, Verdict.OUR_FAULT, message=str(error))
    return _judged(lesson.number, mutant, reports)


def _judged(lesson: int, mutant: Mutant, reports: tuple[TestReport, ...]) -> MutantReport:
    verdict, report = _verdict(reports)
    test, message = (report.test, report.message) if report else ("", "")
    if not reports:
        verdict, message = (
            Verdict.OUR_FAULT,
            f"task {mutant.task} has no tests; mark some with task({lesson}, {mutant.task})",
        )
    return MutantReport(lesson, mutant.name, mutant.task, verdict, test, message, reports)


_DEATHS = (
    (Verdict.KILLED, (Outcome.FAILED, Outcome.WRONG_TYPE)),
    (Verdict.TIMED_OUT, (Outcome.TIMED_OUT,)),
    (Verdict.OUR_FAULT, tuple(set(Outcome) - {Outcome.PASSED})),
)


def _verdict(reports: tuple[TestReport, ...]) -> tuple[Verdict, TestReport | None]:
    """The best death that any test tells of."""
    for verdict, outcomes in _DEATHS:
        for report in reports:
            if report.outcome in outcomes:
                return verdict, report
    return Verdict.SURVIVED, None


def mutated(mutant: Mutant) -> str:
    """A lab's text with the mutated function alone.

    Raises LessonError where the reference has no such function, or ``find`` does not occur exactly once in it.
    """
    name = mutant.function.name
    source = reference_source(mutant.function.module)
    lines = source.text.splitlines(keepends=True)
    node = _function(source.parse(), name, mutant)
    text = "".join(lines[node.lineno - 1 : node.end_lineno])
    count = text.count(mutant.find)
    if count != 1:
        raise LessonError(
            f"mutant {mutant.name}: {mutant.find!r} occurs {count} times in {mutant.function}; it must occur once"
        )
    owners = name.split(".")[:-1]
    classes = "".join(f"{'    ' * depth}class {owner}:\n" for depth, owner in enumerate(owners))
    return classes + text.replace(mutant.find, mutant.replace)


def _function(tree: ast.Module, name: str, mutant: Mutant) -> ast.FunctionDef | ast.AsyncFunctionDef:
    body: list[ast.stmt] = tree.body
    *owners, last = name.split(".")
    for owner in owners:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last:
            return node
    raise LessonError(f"mutant {mutant.name}: there is no function {mutant.function}")
