"""Launching a task's kernel in the lab: numbers, faults and budgets, all told by ``check``.

A fault's text has lines and threads in it, which differ from one solution to the next; mistakes are recognised by the
kinds of their faults, and by which budgets they break.
"""

from kernels import lab


def launched(check, function, *arguments, order="ascending"):
    """The report of the kernel that a host function launches, with late stores; no error may end the launch."""
    errors, alike = [], []
    try:
        with lab.check(order=order, late_stores=True) as reports:
            function(*arguments)
    except (lab.OutOfBounds, lab.Deadlock) as error:
        errors = ["; ".join([str(error), *getattr(error, "__notes__", [])])]
        alike = [type(error).__name__]
    check("errors", errors, [], alike=alike)
    return reports[0]


def faultless(check, report):
    """Check that the lab has found no fault in the launch."""
    check("faults", report.faults, [], alike=sorted(set(_kinds(report))))


def within(check, report, **budgets):
    """Check that the launch has no fault, and that these numbers of its report are within their budgets."""
    faultless(check, report)
    broken = [name for name, most in budgets.items() if report.over(**{name: most})]
    check("broken budgets", report.over(**budgets), [], alike=sorted(broken))


def _kinds(report):
    """The kinds of a report's faults, without the lines, cells and threads where they happened."""
    for race in report.races:
        pair = sorted((race.first.kind, race.second.kind))
        turn = " of the next turn" if race.next_turn else ""
        yield "lost update" if race.lost_update else f"race of {' and '.join(pair)}{turn}"
    yield from (f"{each.intrinsic} not reached by all" for each in report.divergences)
    kinds = ("unwritten", "float64", "refused")
    yield from (kind for kind in kinds if getattr(report, kind))
