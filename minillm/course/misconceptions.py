"""Which known wrong solution a student's failures equal: ``misconceptions.json`` in the lesson's folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from minillm.course.failures import CHECK, FAULT
from minillm.course.grades import Misconception, MutantReport, Outcome, TestReport
from minillm.course.lesson import Lesson, Mutant

FILE = "misconceptions.json"

Failures = Mapping[str, str]
"""Name of a test that failed -> digest of how."""


def failures(reports: Iterable[TestReport]) -> dict[str, str]:
    """What failed, and how."""
    return {_name(report.test): report.failure for report in reports if not report.passed}


def _name(test: str) -> str:
    return test.partition("::")[2]


def record(lesson: Lesson, reports: Iterable[MutantReport]) -> None:
    """Write down how each mutant fails."""
    table = {report.mutant: failures(report.reports) for report in reports}
    text = json.dumps(table, indent=0, sort_keys=True, ensure_ascii=False)
    (lesson.folder / FILE).write_text(text + "\n", encoding="utf-8")


def outdated(lesson: Lesson, reports: Iterable[MutantReport]) -> list[str]:
    """Mutants whose failures are not recorded, or not as these reports have them, and recorded ones that are no more.

    The reports may hold only some of a mutant's failures. What a time limit ended may end otherwise another time.
    """
    recorded, names = read(lesson.folder), {mutant.name for mutant in lesson.mutants}
    others = [
        report.mutant
        for report in reports
        if report.mutant in names & recorded.keys()
        and any(
            recorded[report.mutant].get(_name(each.test)) != each.failure
            for each in report.reports
            if each.outcome in (Outcome.FAILED, Outcome.WRONG_TYPE)
        )
    ]
    return sorted({*others, *(names ^ recorded.keys())})


def read(folder: Path) -> dict[str, Failures]:
    """What ``record`` wrote for the lesson in ``folder``; empty before that."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def explained(
    reports: Sequence[TestReport], mutants: Iterable[Mutant], recorded: Mapping[str, Failures]
) -> tuple[TestReport, ...]:
    """The reports of a task, with the misconception of its mutant that equals them in most failures, if any does.

    A wrong value that a check met tells much, if at least half of the failures are equal; an exception or a time limit
    may have many causes, and so it only counts where the mutant fails all tests in the same way. Faults of a kernel
    come first, because wrong values follow from them in many ways: where either has any, some must be equal.
    """
    ours = failures(reports)
    mutant = max(mutants, key=lambda each: _likeness(ours, recorded.get(each.name, {})), default=None)
    theirs = recorded.get(mutant.name, {}) if mutant else {}
    if mutant is None or not any(_likeness(ours, theirs)[:2]):
        return tuple(reports)
    misconception = Misconception(mutant.name, mutant.why, mutant.section)
    return tuple(
        replace(report, misconception=misconception) if _is_equal(report, theirs) else report for report in reports
    )


def _is_equal(report: TestReport, theirs: Failures) -> bool:
    return not report.passed and theirs.get(_name(report.test)) == report.failure


def _likeness(ours: Failures, theirs: Failures) -> tuple[int, int, int]:
    """How many faults and how many failures are equal, zeros unless they say something, and minus how many are theirs
    alone, which decides between mutants that are otherwise as like."""
    equal = ours.items() & theirs.items()
    faults, not_theirs_alone = sum(_is_fault(failure) for _, failure in equal), len(equal) - len(theirs)
    faulty = any(map(_is_fault, [*ours.values(), *theirs.values()]))
    telling = any(failure.startswith(CHECK) for _, failure in equal) and 2 * len(equal) >= len(ours) and not faulty
    return (faults, len(equal), not_theirs_alone) if faults or telling or ours == theirs else (0, 0, not_theirs_alone)


def _is_fault(failure: str) -> bool:
    return failure.startswith(FAULT)
