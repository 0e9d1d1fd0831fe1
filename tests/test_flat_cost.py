"""What a step costs does not depend on how many requests wait. Counted in executed bytecodes, not in seconds."""

import sys
from collections import deque
from contextlib import contextmanager

import pytest
from every_policy import SMALL, small
from harness import request, simulated

HEAD = [request(f"r{i}", 1 + 5 * i % 17, 12 - 5 * i % 12, params={"n": 1 + i % 2}) for i in range(8)]
TAIL = [request(f"t{i}", 1, 3) for i in range(20_000)]
STEPS = 40


class VisibleDeque(deque):
    """Iterates and searches by bytecodes, so that what C would do in one call is counted item by item."""

    def __iter__(self):
        yield from super().__iter__()

    def __contains__(self, wanted):
        return any(item is wanted for item in self)

    def index(self, wanted):
        return next(place for place, item in enumerate(self) if item is wanted)

    def remove(self, wanted):
        del self[self.index(wanted)]


class VisibleDict(dict):
    """The same for dictionaries."""

    def __iter__(self):
        yield from super().__iter__()

    def keys(self):
        yield from super().keys()

    def values(self):
        yield from super().values()

    def items(self):
        yield from super().items()


def cost_of_steps(policy, waiting):
    """Bytecodes of the engine and the policy for the first steps, with so many requests behind those that run."""
    scheduler = small(policy)
    engine = simulated(scheduler, [*HEAD, *TAIL[:waiting]])
    engine._branches = VisibleDict(engine._branches)
    for name, queue in vars(scheduler).items():
        if isinstance(queue, deque):
            setattr(scheduler, name, VisibleDeque(queue))
    with bytecodes() as count:
        for _ in range(STEPS):
            engine.step()
    assert scheduler.load().waiting > 100
    return len(count)


@contextmanager
def bytecodes():
    """One entry for each bytecode that our code executes, and that of this file on its behalf."""
    executed = []

    def trace(frame, event, arg):
        if not frame.f_globals["__name__"].startswith(("minillm", __name__)):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            executed.append(None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield executed
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("policy", SMALL)
def test_a_step_costs_the_same_whether_hundreds_or_twenty_thousand_wait(policy):
    assert cost_of_steps(policy, 400) == cost_of_steps(policy, len(TAIL))
