"""Triton's dynamic batcher beyond lesson 6: bounds and options, moments and clocks, and those who do not run."""

import math

import numpy as np
import pytest
from harness import EOS, LIMITS, POLICIES, request, simulated, timed_trace, tokens_of

from minillm.engine import Engine
from minillm.runner import WallRunner
from minillm.scheduler import Refused
from minillm.schedulers import ragged_inputs
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.priority_queue import PriorityQueue, QueuePolicy
from minillm.sequence import independent_branches
from minillm.simulator.runner import ScriptedModel


def queue_of(policies, default_level=1):
    return PriorityQueue([QueuePolicy(**policy) for policy in policies], default_level)


def push(queue, name, now=0.0, **more):
    queue.push(independent_branches(request(name, 1, 1, **more)), now)


# The queue


def test_a_full_level_refuses_at_once_and_counts_its_delayed_requests():
    queue = queue_of([{"max_queue_size": 2, "default_timeout": 1.0, "timeout_action": "delay"}, {}])
    push(queue, "a")
    queue.expire(5.0)
    push(queue, "b")
    with pytest.raises(Refused, match="priority level 1 holds 2 requests") as refusal:
        push(queue, "c")
    assert refusal.value.code == "queue_full"
    push(queue, "d", priority=2)
    assert [waiting.id for waiting in queue] == ["b", "a", "d"]


def test_a_reused_id_does_not_inherit_the_old_deadline():
    queue = queue_of([{"default_timeout": 1.0}])
    push(queue, "a")
    queue.remove("a")
    push(queue, "a", now=0.5)
    assert queue.next_deadline() == 1.5
    assert queue.expire(1.2) == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: QueuePolicy(max_queue_size=-1), "max_queue_size is -1"),
        (lambda: QueuePolicy(default_timeout=math.nan), "default_timeout nan"),
        (lambda: QueuePolicy(timeout_action="drop"), "timeout_action is 'drop'"),
        (lambda: queue_of([{}, {}], default_level=3), "default_level is 3 and there are 2"),
        (lambda: Dynamic(8, 8, preferred_batch_sizes=[4, 9]), "preferred batch size 9"),
        (lambda: Dynamic(8, 8, max_queue_delay=-0.1), "max_queue_delay is -0.1"),
    ],
)
def test_options_that_make_no_sense_are_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_forming_a_batch_looks_no_further_than_one_batch(monkeypatch):
    scheduler = Dynamic(8, 8, preferred_batch_sizes=[4], max_queue_delay=1.0)
    for number in range(1000):
        scheduler.add(request(str(number), 1, 1), 0.0)
    looked_at = []
    serve = PriorityQueue.__iter__
    monkeypatch.setattr(PriorityQueue, "__iter__", lambda queue: (looked_at.append(w) or w for w in serve(queue)))
    scheduler.schedule(0.5)
    scheduler.load()
    assert len(looked_at) == 9


class TickingClock:
    """Time passes whenever it is read."""

    def __init__(self):
        self.ticks = 0

    def now(self):
        self.ticks += 1
        return float(self.ticks)

    def advance_to(self, moment):
        self.ticks = max(self.ticks, int(moment))


@pytest.mark.parametrize("delay", range(1, 12))
def test_a_wake_up_missed_between_two_looks_at_the_clock_is_not_lost(delay):
    clock = TickingClock()
    runner = WallRunner(ScriptedModel(0, EOS), clock)
    engine = Engine(Dynamic(8, 8, max_queue_delay=float(delay)), runner, clock, LIMITS)
    engine.add(request("A", 1, 1))
    assert tokens_of(engine.run()) == {"A": [0]}


# Dynamic and ragged


def test_ragged_batches_compute_the_same_spans_without_padding_and_held_rows():
    mix = [request(name, 3 * i + 1, 12 - 2 * i, arrival=0.4 * i) for i, name in enumerate("ABCDE")]
    options = {"max_batch_size": 4, "columns": 30, "preferred_batch_sizes": [2], "max_queue_delay": 0.5}
    dynamic, ragged = (simulated(POLICIES[name](**options), mix) for name in ("dynamic", "ragged"))
    assert tokens_of(dynamic.run()) == tokens_of(ragged.run())
    for padded, flat in zip(dynamic.steps, ragged.steps, strict=True):
        assert (padded.start, padded.spans, padded.finished) == (flat.start, flat.spans, flat.finished)
    assert any(step.held for step in dynamic.steps)
    assert not any(step.held for step in ragged.steps)
    assert all(step.computed_tokens == step.useful_tokens for step in ragged.steps)
    assert sum(s.computed_tokens for s in dynamic.steps) > sum(s.computed_tokens for s in ragged.steps)


# Those who do not run


def test_a_client_whose_request_expires_is_told_so():
    scheduler = POLICIES["dynamic"](1, 8, queue_policies=[{"default_timeout": 0.5}])
    engine = simulated(scheduler, [request("A", 1, 3), request("B", 1, 1, params={"n": 1})])
    ended = {output.request_id: output for output in engine.run()}
    assert ended["B"].finish_reason == "expired"
    assert "deadline" in ended["B"].error
    assert timed_trace(engine.steps) == ["@0 A1", "@1 A1 -B", "@2 A1"]


def test_a_queue_of_which_everyone_expires_is_not_stuck():
    policies = [{"default_timeout": 100.0, "allow_timeout_override": True}]
    scheduler = POLICIES["dynamic"](32, 8, max_queue_delay=50.0, queue_policies=policies)
    engine = simulated(scheduler, [request(str(i), 1, 1, deadline=1.0 + i) for i in range(20)])
    assert {output.finish_reason for output in engine.run()} == {"expired"}
    assert len(engine.steps) == 20


def test_while_a_pass_is_in_flight_another_stage_lets_requests_expire():
    scheduler = POLICIES["dynamic"](1, 8, queue_policies=[{"default_timeout": 0.5}])
    engine = simulated(scheduler, [request("A", 1, 2), request("B", 1, 1, arrival=0.125)], depth=2)
    engine.run()
    assert [(step.start, len(step.events)) for step in engine.steps if step.events] == [(math.nextafter(0.625, 1), 1)]


def test_more_samples_than_a_batch_holds_are_refused():
    with pytest.raises(Refused, match="9 rows of the batch and there are 8"):
        Dynamic(8, 8).add(request("a", 1, 1, params={"n": 9}), 0.0)


@pytest.mark.parametrize(
    ("other", "options", "joins"),
    [
        ({"x": np.ones((3, 2))}, {}, True),  # the batch dimension may differ
        ({"x": np.ones((1, 4))}, {}, False),
        ({"x": np.ones((1, 4))}, {"ragged": ["x"]}, True),
        ({"x": np.zeros((1, 2))}, {"shape_tensors": ["x"]}, False),  # equal shape, other contents
        ({"x": np.ones((1, 2))}, {"shape_tensors": ["x"]}, True),
        ({"x": np.ones((1, 2)), "y": np.ones((1, 1))}, {}, False),  # an optional input that the first lacks
    ],
)
def test_who_may_join_the_batch_that_another_began(other, options, joins):
    assert ragged_inputs.compatible({"x": np.ones((1, 2))}, other, **options) is joins
