"""Launching a task's kernel in the lab: numbers, faults and budgets, all told by ``check``."""

from kernels import lab


def launched(check, function, *arguments, order="ascending"):
    """The report of the kernel that a host function launches, with late stores; no error may end the launch."""
    errors = []
    try:
        with lab.check(order=order, late_stores=True) as reports:
            function(*arguments)
    except (lab.OutOfBounds, lab.Deadlock) as error:
        errors = ["; ".join([str(error), *getattr(error, "__notes__", [])])]
    check("errors", errors, [])
    return reports[0]


def within(check, report, **budgets):
    """Check that the launch has no fault, and that these numbers of its report are within their budgets."""
    check("faults", report.faults, [])
    for name, most in budgets.items():
        beyond = max(0, getattr(report, name) - most)
        check(f"{name.replace('_', ' ')} beyond the budget of {most}", beyond, 0)
