"""What grading found, for a terminal and as plain text: each task with its failed tests, and what to read again."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from minillm.course.grades import LessonGrade, MutantReport, Outcome, TaskGrade, TestReport, Verdict

GOOD, BAD, DIM = "green", "red", "bright_black"
PRINTED_IF_PASSED = 3
"""Lines that are shown of what a test printed which passed."""

WIDTH = 80
"""Columns into which sentences are wrapped."""

MOST_OTHERS = 5
"""Tests that are named beside the first that failed in the same way."""

_LAST = (Outcome.TIMED_OUT, Outcome.DIED, Outcome.FLOODED, Outcome.NOT_RUN)
"""Ends of tests that tell less than others, from which they may follow."""

VERDICT_STYLES = {
    Verdict.KILLED: GOOD,
    Verdict.TIMED_OUT: GOOD,
    Verdict.SURVIVED: BAD,
    Verdict.OUR_FAULT: BAD,
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a report, and its style on a terminal."""

    text: str
    style: str = ""


def lesson_report(grade: LessonGrade, lab: Path, others: Mapping[int, str] | None = None) -> Iterator[Line | Table]:
    """A lesson from top to bottom: what was graded, its tasks, and what is wrong with each that is written.

    ``lab`` is its path as the reader is to see it; ``others`` says whose the tasks are that were not graded.
    """
    yield from heading(grade, lab, others)
    yield Line("")
    if not grade.void:
        yield _tasks(grade.tasks)
        yield from (*_notes(grade.tasks), Line(""))
    for task in grade.tasks:
        if task.written and (lines := list(task_lines(task, _others_are_wrong(grade, task)))):
            yield from (*_wrapped(f"Task {task.task}: {task.goal}", "", "bold"), *lines, Line(""))


def _others_are_wrong(grade: LessonGrade, task: TaskGrade) -> bool:
    """Whether a task can fail together with the student's others because one of these is wrong by itself."""
    return any(other.written and not other.solved for other in grade.tasks if other is not task)


def heading(
    grade: LessonGrade,
    lab: Path,
    others: Mapping[int, str] | None = None,
    rest: str = "the reference's code stands in for",
) -> Iterator[Line]:
    """The lesson, the file, whose version of each task ran, and the points; for a void run why nothing counts.

    ``rest`` says what became of the tasks that the student has no version of.
    """
    yield Line(f"Lesson {grade.lesson}, {grade.title}", "bold")
    yield Line(f"graded: {lab}")
    if grade.void:
        yield from _wrapped(f"void, nothing counts: {grade.void}", "", BAD)
        return
    owners = {**(others or {}), **{task.task: task.whose for task in grade.tasks}}
    for whose, words in (("yours", "your tasks"), ("reference", rest)):
        numbers = [str(task) for task in sorted(owners) if owners[task] == whose]
        if numbers or whose == "yours":
            yield Line(f"{words}: {', '.join(numbers) or 'none yet'}")
    yield Line(f"points: {grade.earned} of {grade.points}", GOOD if grade.earned == grade.points else "")


def _tasks(tasks: Iterable[TaskGrade]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("task", justify="right")
    table.add_column("state", no_wrap=True)
    for column in ("tests", "points", "together"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("goal")
    for task in tasks:
        style = GOOD if task.solved else BAD if task.written else DIM
        tests = _share(sum(report.passed for report in task.reports), len(task.reports))
        points = _share(task.earned, task.points)
        goal = Text(task.goal, no_wrap=True, overflow="ellipsis")
        table.add_row(str(task.task), _state(task), tests, points, _together([task]), goal, style=style)
    return table


def _state(task: TaskGrade) -> str:
    if task.refused:
        return "refused"
    return "solved" if task.solved else "written" if task.written else "not written"


def _notes(tasks: Iterable[TaskGrade]) -> Iterator[Line]:
    """What the table's columns mean."""
    yield Line("A task earns its points when all of its tests pass.", DIM)
    if any(task.integration for task in tasks):
        yield Line("together: the same tests with all of your tasks; one unsolved may spoil others.", DIM)


def _together(tasks: Iterable[TaskGrade]) -> str:
    """How those of the tasks fare that were also run with all of the student's."""
    run = [task.integrates for task in tasks if task.integration]
    if not run:
        return "-"
    return "passes" if all(run) else "fails"


def task_lines(task: TaskGrade, others_are_wrong: bool = False) -> Iterator[Line]:
    """What a student should know of a task: why it was refused, failed tests, prints, and trouble with other tasks.

    Trouble with others that are wrong themselves says nothing yet.
    """
    if task.refused:
        yield from _wrapped(f"It could not run: {task.refused}", "", BAD)
    elif not task.written:
        yield Line(f"Not written yet. Tests that wait for it: {len(task.reports)}", DIM)
    else:
        yield from _reports(task.reports)
        if not others_are_wrong:
            yield from _apart(task)


def _apart(task: TaskGrade) -> Iterator[Line]:
    """Tests that pass over the reference and fail with the student's other tasks."""
    passed = {report.test for report in task.reports if report.passed}
    failed = [report for report in task.integration if report.test in passed and not report.passed]
    if failed:
        yield Line("With your other tasks, instead of the reference's:", BAD)
        yield from _reports(failed)


def _reports(reports: Sequence[TestReport]) -> Iterator[Line]:
    """Failed tests, those that failed alike together, the most telling first; and what was printed in others."""
    failed: dict[tuple[object, ...], list[TestReport]] = {}
    told: dict[tuple[object, ...], tuple[object, ...]] = {}
    for report in sorted(reports, key=lambda report: report.outcome in _LAST):
        if not report.passed:
            manner = told.setdefault((report.misconception, report.outcome, report.message), _manner(report))
            failed.setdefault(manner, []).append(report)
    for alike in failed.values():
        yield from _failure(*alike)
    for report in reports:
        if report.passed and report.printed:
            yield Line(f"passed: {report.name}", GOOD)
            yield from _printed(report, PRINTED_IF_PASSED)


def _manner(report: TestReport) -> tuple[object, ...]:
    """Equal for tests that failed alike: of one misconception, by an exception from one place, or of one function."""
    if report.misconception:
        return (report.misconception,)
    if report.outcome is Outcome.RAISED:
        places = [line for line in report.message.splitlines() if line.startswith("  ")]
        return (report.outcome, report.failure, *places)
    if report.outcome in _LAST:
        return (report.outcome,)
    return (report.outcome, report.test.partition("[")[0])


def _failure(first: TestReport, *others: TestReport) -> Iterator[Line]:
    """One test that failed, and the names of those that failed alike."""
    yield from _wrapped(f"{first.outcome.value}: {first.name}", "", BAD)
    if first.misconception:
        known = first.misconception
        yield from _wrapped(f"{known.why.strip()} Read section {known.section} again.", "    ", "bold")
    for line in first.message.splitlines():
        yield from _wrapped(line, "    ")
    yield from _printed(next((report for report in (first, *others) if report.printed), first))
    for report in others[:MOST_OTHERS]:
        yield from _wrapped(_also(report, first), "    ", BAD)
    if len(others) > MOST_OTHERS:
        yield Line(f"    and {_count(len(others) - MOST_OTHERS, 'more test')}", BAD)


def _also(report: TestReport, first: TestReport) -> str:
    """A test that failed as the first did, with the first line of its message where that is another one."""
    outcome = "" if report.outcome is first.outcome else f"{report.outcome.value}: "
    line = "" if report.outcome in _LAST or report.message == first.message else report.message.partition("\n")[0]
    return f"also {outcome}{report.name}" + (f": {line}" if line else "")


def _wrapped(text: str, indent: str, style: str = "") -> Iterator[Line]:
    """Each line of a text in lines of WIDTH columns, of which all but the first are indented deeper."""
    for line in text.splitlines():
        if len(indent + line) <= WIDTH:
            yield Line(indent + line, style)
            continue
        own = indent + " " * (len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(
            line.strip(), WIDTH, initial_indent=own, subsequent_indent=f"{own}  ", break_on_hyphens=False
        )
        yield from (Line(each, style) for each in wrapped)


def _printed(report: TestReport, most: int | None = None) -> Iterator[Line]:
    lines = report.printed.splitlines()
    if lines:
        yield Line("    printed:", DIM)
        yield from (Line(f"    | {line}", DIM) for line in lines[:most])
    if most is not None and len(lines) > most:
        yield Line(f"    and {_count(len(lines) - most, 'line')} more", DIM)


def plain(lines: Iterable[Line]) -> str:
    """The lines as text."""
    return "\n".join(line.text for line in lines)


def grades_table(grades: Sequence[LessonGrade]) -> Table:
    """A line a lesson: solved tasks, points, and whether its tasks work together; then the sum."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_footer=True)
    table.add_column("lesson", footer="all")
    for column, footer in (
        ("solved", _share(sum(_solved(grade) for grade in grades), sum(len(grade.tasks) for grade in grades))),
        ("points", _share(sum(grade.earned for grade in grades), sum(grade.points for grade in grades))),
        ("together", ""),
    ):
        table.add_column(column, justify="right", no_wrap=True, footer=footer)
    for grade in grades:
        style = GOOD if grade.earned == grade.points else ""
        solved, points = _share(_solved(grade), len(grade.tasks)), _share(grade.earned, grade.points)
        together = "void" if grade.void else _together(grade.tasks)
        table.add_row(Text(f"{grade.lesson} {grade.title}"), solved, points, together, style=style)
    return table


def _solved(grade: LessonGrade) -> int:
    return 0 if grade.void else sum(task.solved for task in grade.tasks)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def mutants_table(reports: Sequence[MutantReport]) -> Table:
    """A line a known wrong solution: how it fared, and on which test."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("lesson", "task"):
        table.add_column(column, justify="right")
    for column in ("mutant", "verdict", "first failed test"):
        table.add_column(column)
    for report in reports:
        test = Text(report.test.partition("::")[2] or report.message)
        verdict = Text(report.verdict.value, style=VERDICT_STYLES[report.verdict])
        table.add_row(str(report.lesson), str(report.task), Text(report.mutant), verdict, test)
    return table


def mutants_verdict(reports: Sequence[MutantReport]) -> Line:
    """How many died as they should."""
    died = sum(report.died for report in reports)
    style = GOOD if died == len(reports) else BAD
    whose = "its" if len(reports) == 1 else "their"
    return Line(f"{died} of {_count(len(reports), 'wrong solution')} died of {whose} own error.", style)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
