"""Triton's dynamic batcher: its queue, how it forms batches, those who do not run, and ragged inputs."""

import math

import numpy as np
import pytest
from harness import EOS, LIMITS, POLICIES, request, simulated, timed_trace, tokens_of, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache.flat import page_layout
from minillm.engine import Engine
from minillm.runner import WallRunner
from minillm.scheduler import Refused
from minillm.schedulers import ragged_inputs
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.priority_queue import PriorityQueue, QueuePolicy
from minillm.schedulers.ragged import Ragged
from minillm.sequence import independent_branches
from minillm.simulator.runner import ScriptedModel

SHAPES = [(1, 3), (1, 4), (1, 5)]


def queue_of(policies, default_level=1):
    return PriorityQueue([QueuePolicy(**policy) for policy in policies], default_level)


def push(queue, name, now=0.0, **more):
    queue.push(independent_branches(request(name, 1, 1, **more)), now)


def order(queue):
    return "".join(waiting.id for waiting in queue)


def batcher(sizes=(), arrival=0.0, **options):
    """A dynamic batcher with requests of these numbers of samples, named a, b, ..."""
    scheduler = Dynamic(8, 8, **options)
    for name, size in zip("abcdefghijkl", sizes, strict=False):
        scheduler.add(request(name, 1, 1, params={"n": size}), arrival)
    return scheduler


# The queue


def test_levels_are_served_by_urgency_and_in_each_the_delayed_ones_last():
    queue = queue_of([{"default_timeout": 1.0, "timeout_action": "delay"}, {}], default_level=2)
    for name, priority, now in [("a", 0, 0), ("b", 1, 0), ("c", 1, 2), ("d", 3, 2), ("e", 2, 2)]:
        push(queue, name, now, priority=priority)
    assert queue.expire(2.0) == []
    assert order(queue) == "cbade"


def test_a_full_level_refuses_at_once_and_counts_its_delayed_requests():
    queue = queue_of([{"max_queue_size": 2, "default_timeout": 1.0, "timeout_action": "delay"}, {}])
    push(queue, "a")
    queue.expire(5.0)
    push(queue, "b")
    with pytest.raises(Refused, match="priority level 1 holds 2 requests") as refusal:
        push(queue, "c")
    assert refusal.value.code == "queue_full"
    push(queue, "d", priority=2)
    assert order(queue) == "bad"


@pytest.mark.parametrize(
    ("allowed", "default", "own", "deadline"),
    [
        (True, 2.0, 1.5, 11.5),  # an earlier deadline counts
        (True, 2.0, 5.0, 12.0),  # a later one does not
        (True, 2.0, None, 12.0),
        (False, 2.0, 1.5, 12.0),
        (True, 0.0, 0.00001, math.inf),  # without a default there is nothing to override
    ],
)
def test_a_deadline_of_its_own_only_shortens_a_timeout(allowed, default, own, deadline):
    policy = QueuePolicy(default_timeout=default, allow_timeout_override=allowed)
    asked = request("a", 1, 1, deadline=None if own is None else 10.0 + own)
    assert policy.deadline(asked, now=10.0) == deadline


def test_a_request_expires_after_its_deadline_and_not_at_it():
    queue = queue_of([{"default_timeout": 1.0}])
    push(queue, "a")
    assert queue.expire(1.0) == []
    assert [waiting.id for waiting in queue.expire(math.nextafter(1.0, 2.0))] == ["a"]
    assert len(queue) == 0


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


# Forming a batch


@pytest.mark.parametrize(
    ("sizes", "preferred", "in_time", "late"),
    [
        ([1], [4], "", "a"),
        ([1] * 5, [4], "abcd", "abcde"),
        ([1] * 3, [2, 4], "ab", "abc"),  # the nearest that is met
        ([1] * 8, [3, 6], "abcdef", "abcdefgh"),  # the largest that is met
        ([3, 3], [4], "a", "ab"),  # none is met: cut where the largest would be passed
        ([2, 1, 4], [2, 6], "a", "abc"),  # an earlier cut stays when the largest is passed
        ([3], [2], "a", "a"),  # larger than any preferred size
        ([4, 6], [], "a", "a"),  # the next does not fit: waiting would gain nothing
        ([1] * 12, [], "abcdefgh", "abcdefgh"),
    ],
)
def test_the_size_of_a_batch(sizes, preferred, in_time, late):
    for now, expected in [(0.5, in_time), (1.0, late)]:
        scheduler = batcher(sizes, preferred_batch_sizes=preferred, max_queue_delay=1.0)
        formed = dict.fromkeys(sequence.request.id for sequence in scheduler.form(now))
        assert "".join(formed) == expected


def test_without_a_delay_nobody_waits_and_preferred_sizes_still_go_first():
    scheduler = batcher([1, 1, 1], preferred_batch_sizes=[2])
    assert [len(scheduler.form(now=7.0)) for _ in range(3)] == [2, 1, 0]


class EqualShapes(Dynamic):
    """Prompts are inputs that are not declared ragged."""

    def fits(self, sequences):
        first, last = ({"prompt": np.zeros((1, sequences[i].prompt_length))} for i in (0, -1))
        return super().fits(sequences) and ragged_inputs.compatible(first, last)


@pytest.mark.parametrize(
    ("policy", "batches"),
    [(EqualShapes, ["@0 A2 B2", "@1 C5", "@2 D2"]), (Ragged, ["@0.5 A2 B2 C5 D2"])],
    ids=["equal", "ragged"],
)
def test_a_different_shape_ends_the_batch_at_once_and_without_a_look_ahead(policy, batches):
    prompts = {"A": 2, "B": 2, "C": 5, "D": 2}
    scheduler = policy(8, 8, max_queue_delay=0.5)
    engine = simulated(scheduler, [request(name, prompt, 1) for name, prompt in prompts.items()])
    engine.run()
    assert timed_trace(engine.steps) == batches


def test_the_candidate_that_waited_longest_sets_the_time_though_an_urgent_one_goes_first():
    scheduler = POLICIES["dynamic"](8, 8, max_queue_delay=0.5, queue_policies=[{}, {}], default_level=2)
    engine = simulated(scheduler, [request("A", 1, 1), request("U", 1, 1, arrival=0.25, priority=1)])
    engine.run()
    assert timed_trace(engine.steps) == ["@0.5 U1 A1"]


@settings(max_examples=200, deadline=None)
@given(arrival=st.floats(0, 1e6), delay=st.floats(1e-6, 1e3))
def test_at_the_moment_it_asks_to_be_woken_a_batch_is_formed(arrival, delay):
    scheduler = batcher([1], arrival, max_queue_delay=delay)
    assert scheduler.schedule(arrival) is None
    assert scheduler.schedule(scheduler.wake_at(arrival)).spans


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
    engine = Engine(batcher(max_queue_delay=float(delay)), runner, clock, LIMITS)
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


def test_a_rectangle_bounds_whom_padding_may_join_and_ragged_rows_do_not_care():
    long_prompt, long_output = request("P", 9, 1), request("O", 1, 9)
    dynamic, ragged = (simulated(POLICIES[name](2, 10), [long_prompt, long_output]) for name in ("dynamic", "ragged"))
    dynamic.run(), ragged.run()
    assert trace(dynamic.steps)[:2] == ["P9", "O1"]
    assert trace(ragged.steps)[:2] == ["P9 O1", "O1"]


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
        batcher([9])


# Ragged inputs


def test_counts_and_ends_of_ragged_requests():
    assert ragged_inputs.element_count(SHAPES).tolist() == [3, 4, 5]
    assert ragged_inputs.accumulated_element_count(SHAPES).tolist() == [3, 7, 12]
    assert ragged_inputs.accumulated_element_count_with_zero(SHAPES).tolist() == [0, 3, 7, 12]


def test_a_count_includes_the_batch_dimension_and_there_is_one_per_request():
    assert ragged_inputs.element_count([(2, 3), (1, 4)]).tolist() == [6, 4]


def test_a_larger_buffer_counts_nothing_for_those_beyond():
    assert ragged_inputs.element_count(SHAPES, entries=5).tolist() == [3, 4, 5, 0, 0]
    assert ragged_inputs.accumulated_element_count(SHAPES, entries=5).tolist() == [3, 7, 12, 12, 12]
    assert ragged_inputs.accumulated_element_count_with_zero(SHAPES, entries=5).tolist() == [0, 3, 7, 12, 12]


def test_a_smaller_buffer_is_refused():
    with pytest.raises(ValueError, match="the buffer has 3 entries and the batch needs 4"):
        ragged_inputs.accumulated_element_count_with_zero(SHAPES, entries=3)


def test_the_largest_count_is_told_by_a_shape():
    assert ragged_inputs.max_element_count_as_shape(SHAPES).shape == (5,)


def test_each_item_of_each_request_has_its_shape():
    shapes = [(2, 3, 1), (1, 2, 2)]
    assert ragged_inputs.item_shape(shapes).tolist() == [[3, 1], [3, 1], [2, 2]]
    assert ragged_inputs.item_shape_flatten(shapes).tolist() == [3, 1, 3, 1, 2, 2]
    with pytest.raises(ValueError, match=r"ranks \[2, 3\]"):
        ragged_inputs.item_shape([(1, 2), (1, 2, 2)])


def test_scattering_by_shape_undoes_concatenation():
    inputs = [np.arange(6).reshape(2, 3), np.arange(4).reshape(1, 4)]
    flat = ragged_inputs.concatenate(inputs)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    scattered = ragged_inputs.scatter_with_input_shape(flat, [each.shape for each in inputs])
    assert all(np.array_equal(part, each) for part, each in zip(scattered, inputs, strict=True))
    with pytest.raises(ValueError, match="the output has 9 elements and the inputs 10"):
        ragged_inputs.scatter_with_input_shape(flat[:9], [each.shape for each in inputs])


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


def test_attention_finds_its_sequences_by_the_accumulated_count_with_zero():
    lengths = np.array([3, 4, 5])
    _, layout = page_layout(np.zeros(3, dtype=np.int64), lengths, [[0], [1], [2]], block_size=8)
    assert layout.query_start.tolist() == ragged_inputs.accumulated_element_count_with_zero(SHAPES).tolist()
