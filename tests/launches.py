"""Launching a task's kernel in the lab: numbers, faults and budgets, all told by ``check``.

A fault's text has lines and threads in it, which differ from one solution to the next; mistakes are recognised by the
kinds of their faults, and by which budgets they break.
"""

from kernels import lab

BUDGETS = {
    "global_reads_per_thread": "a thread reads global memory up to {} times; {} are allowed",
    "global_writes_per_thread": "a thread writes global memory up to {} times; {} are allowed",
    "sectors": "{} sectors of global memory move; {} are allowed",
    "excess_sectors": "{} sectors more than hold the elements move; {} are allowed",
    "bank_conflict": "a warp's access to shared memory takes up to {} turns; {} are allowed",
    "shared_accesses": "warps come to shared memory {} times; {} are allowed",
    "atomics": "warps come {} times to an atomic operation; {} are allowed",
}
"""What breaks a budget for one of a launch's numbers: the number, and the budget."""


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
    broken = {name: most for name, most in budgets.items() if _number(report, name) > most}
    lines = [BUDGETS[name].format(_number(report, name), most) for name, most in broken.items()]
    check("broken budgets", lines, [], alike=sorted(broken))


def _number(report, name):
    if name == "shared_accesses":
        return sum(each.accesses for each in report.traffic if each.shared)
    if name == "atomics":
        return sum(each.accesses for each in report.traffic if each.kind == "atomic")
    return getattr(report, name)


def _kinds(report):
    """The kinds of a report's faults, without the lines, cells and threads where they happened."""
    for race in report.races:
        pair = sorted((race.first.kind, race.second.kind))
        yield "lost update" if race.lost_update else f"race of {' and '.join(pair)}"
    yield from (f"{each.intrinsic} not reached by all" for each in report.divergences)
    kinds = ("unwritten", "float64", "refused")
    yield from (kind for kind in kinds if getattr(report, kind))
