"""Lesson 6, dynamic and ragged batching: wait a little for company, and lay it end to end instead of padding it."""

import math

import numpy as np
import pytest
from harness import oracle, real, recorded, request, timed_trace, tokens_of, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache.flat import page_layout
from minillm.model.tiny import tiny
from minillm.schedulers import ragged_inputs
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.priority_queue import PriorityQueue, QueuePolicy
from minillm.schedulers.ragged import Ragged
from minillm.sequence import independent_branches

MICROSECOND = 1e-6
DELAY = {"default_timeout": 1.0, "timeout_action": "delay"}
SHAPES = [(1, 3), (1, 4), (1, 5)]


def ten_microseconds(batch):
    return 10 * MICROSECOND


def queue_of(policies, default_level=1):
    return PriorityQueue([QueuePolicy(**policy) for policy in policies], default_level)


def push(queue, name, now=0.0, **more):
    queue.push(independent_branches(request(name, 1, 1, **more)), now)


def names(waiting):
    return "".join(request.id for request in waiting)


def batcher(sizes=(), arrival=0.0, policy=Dynamic, **options):
    """A dynamic batcher of at most 8 samples with requests of these numbers of samples, named a, b, ..."""
    scheduler = policy(8, 8, **options)
    for name, size in zip("abcdefghijkl", sizes, strict=False):
        scheduler.add(request(name, 1, 1, params={"n": size}), arrival)
    return scheduler


def formed(scheduler, now):
    """The requests of the batch that is formed now."""
    return "".join(dict.fromkeys(sequence.request.id for sequence in scheduler.form(now)))


# Task 1: the queue


@pytest.mark.task(6, 1)
def test_urgent_levels_are_served_first_and_each_in_the_order_of_arrival(check):
    queue = queue_of([{}, {}, {}], default_level=2)
    for name, priority in [("a", 3), ("b", 2), ("c", 1), ("d", 2), ("e", 1)]:
        push(queue, name, priority=priority)
    check("the order in which requests are served", names(queue), "cebda")


@pytest.mark.task(6, 1)
def test_those_who_are_delayed_go_behind_the_others_of_their_level_and_before_less_urgent_levels(check):
    queue = queue_of([DELAY, {}], default_level=2)
    for name, priority, now in [("a", 0, 0), ("b", 1, 0), ("c", 1, 2), ("d", 3, 2), ("e", 2, 2)]:
        push(queue, name, now, priority=priority)
    check("requests that are rejected", names(queue.expire(2.0)), "")
    check("the order in which requests are served", names(queue), "cbade")


@pytest.mark.task(6, 1)
@pytest.mark.parametrize(
    ("allowed", "default", "own", "deadline"),
    [
        (True, 2.0, 1.5, 11.5),  # an earlier deadline counts
        (True, 2.0, 5.0, 12.0),  # a later one does not
        (True, 2.0, None, 12.0),
        (True, 2.0, -10.0, 0.0),  # 0 is a moment too, and not the lack of one
        (False, 2.0, 1.5, 12.0),
        (True, 0.0, 0.00001, math.inf),  # without a default there is nothing to override
    ],
)
def test_a_deadline_of_its_own_only_shortens_a_timeout(check, allowed, default, own, deadline):
    policy = QueuePolicy(default_timeout=default, allow_timeout_override=allowed)
    asked = request("a", 1, 1, deadline=None if own is None else 10.0 + own)
    check("the deadline of a request that is queued at 10 s", policy.deadline(asked, now=10.0), deadline)


@pytest.mark.task(6, 1)
def test_a_request_expires_after_its_deadline_and_not_at_it(check):
    queue = queue_of([{"default_timeout": 1.0}])
    push(queue, "a")
    check("requests that expire at their deadline", names(queue.expire(1.0)), "")
    check("requests that expire just after it", names(queue.expire(math.nextafter(1.0, 2.0))), "a")


@pytest.mark.task(6, 1)
def test_all_who_are_late_expire_at_once_and_are_gone_unless_their_level_delays_them(check):
    queue = queue_of([{"default_timeout": 1.0}, DELAY])
    for name, priority, now in [("a", 1, 0.0), ("b", 2, 0.1), ("c", 1, 0.2), ("d", 1, 2.0)]:
        push(queue, name, now, priority=priority)
    check("requests that are rejected", names(queue.expire(1.5)), "ac")
    check("requests that are left", names(queue), "db")
    check("requests that are rejected a second time", names(queue.expire(1.5)), "")


@pytest.mark.task(6, 1)
def test_who_should_have_run_earliest_expires_first_whatever_its_level(check):
    queue = queue_of([{"default_timeout": 1.0}, {"default_timeout": 1.0}])
    for name, priority, now in [("a", 2, 0.0), ("b", 1, 0.1), ("c", 2, 0.2)]:
        push(queue, name, now, priority=priority)
    check("requests that are rejected, in order", names(queue.expire(1.5)), "abc")


@pytest.mark.task(6, 1)
def test_the_delayed_are_served_in_the_order_in_which_they_expired(check):
    queue = queue_of([DELAY])
    for name, now in [("a", 0.0), ("b", 0.1), ("c", 1.0)]:
        push(queue, name, now)
    queue.expire(1.05)
    check("the order in which requests are served, with a delayed", names(queue), "bca")
    queue.expire(1.5)
    check("the order in which requests are served, with b delayed too", names(queue), "cab")


@pytest.mark.task(6, 1)
def test_a_more_urgent_request_goes_first_though_it_came_later(check):
    scheduler = Dynamic(1, 4, queue_policies=[QueuePolicy(), QueuePolicy()], default_level=2)
    asked = [request("A", 2, 2), request("B", 2, 1, arrival=0.2), request("C", 2, 1, arrival=0.4, priority=1)]
    check("passes", trace(recorded(scheduler, asked)), ["A2", "A1", "C2", "B2"])


def test_an_error_that_prints_a_request_in_the_queue_stays_short():
    queue = queue_of([{}])
    push(queue, "a", now=0.5, params={"n": 2})
    assert str(*queue) == "Waiting(samples=[<Sequence a.0>, <Sequence a.1>], since=0.5, deadline=inf)"


# Task 2: who could share a batch


@pytest.mark.task(6, 2)
@pytest.mark.parametrize(
    ("sizes", "preferred_sizes", "found", "preferred", "closed"),
    [
        ([], [4], "", 0, False),
        ([1], [4], "a", 0, False),
        ([1] * 4, [4], "abcd", 4, False),
        ([1] * 5, [4], "abcde", 4, False),
        ([1] * 3, [2, 4], "abc", 2, False),  # the nearest that is met
        ([1] * 8, [3, 6], "abcdefgh", 6, False),  # the largest that is met
        ([2, 2, 1], [4], "abc", 2, False),  # a size counts samples
        ([3, 3], [4], "ab", 1, False),  # none is met: cut where the largest would be passed
        ([2, 1, 4], [2, 6], "abc", 1, False),  # an earlier cut stays when the largest is passed
        ([3], [2], "a", 0, False),  # larger than any preferred size
        ([4, 6], [], "a", 1, True),  # the second does not fit
        ([4, 6, 1], [], "a", 1, True),  # nor may the third overtake it
        ([1] * 12, [], "abcdefgh", 8, True),
    ],
)
def test_how_far_a_batch_could_reach_and_where_its_best_size_lies(
    check, sizes, preferred_sizes, found, preferred, closed
):
    candidates = batcher(sizes, preferred_batch_sizes=preferred_sizes, max_queue_delay=1.0).candidates()
    check("the candidates", names(candidates.requests), found)
    check("how many of them make the best size", candidates.preferred, preferred)
    check("whether the next one cannot join", candidates.closed, closed)


class EqualShapes(Dynamic):
    """Prompts are inputs that are not declared ragged."""

    def fits(self, sequences):
        first, last = ({"prompt": np.zeros((1, sequences[i].prompt_length))} for i in (0, -1))
        return super().fits(sequences) and ragged_inputs.compatible(first, last)


@pytest.mark.task(6, 2)
@pytest.mark.parametrize(
    ("policy", "batches"),
    [(EqualShapes, ["@0 A2 B2", "@1 C5", "@2 D2"]), (Ragged, ["@0.5 A2 B2 C5 D2"])],
    ids=["equal", "ragged"],
)
def test_a_different_shape_ends_the_batch_at_once_and_without_a_look_ahead(check, policy, batches):
    prompts = {"A": 2, "B": 2, "C": 5, "D": 2}
    scheduler = policy(8, 8, max_queue_delay=0.5)
    steps = recorded(scheduler, [request(name, prompt, 1) for name, prompt in prompts.items()])
    check("passes", timed_trace(steps), batches)


@pytest.mark.task(6, 2)
def test_looking_at_the_queue_takes_nobody_out_of_it(check):
    scheduler = batcher([1] * 3, preferred_batch_sizes=[2])
    scheduler.candidates()
    check("requests that wait", names(scheduler.waiting), "abc")


# Task 3: when a batch starts


@pytest.mark.task(6, 3)
@pytest.mark.parametrize(
    ("sizes", "preferred_sizes", "in_time", "late"),
    [
        ([1], [4], "", "a"),
        ([1] * 5, [4], "abcd", "abcde"),
        ([1] * 3, [2, 4], "ab", "abc"),
        ([1] * 8, [3, 6], "abcdef", "abcdefgh"),
        ([3, 3], [4], "a", "ab"),
        ([3], [2], "a", "a"),  # it passes all preferred sizes: waiting would gain nothing
        ([4, 6], [], "a", "a"),  # the next does not fit: nor here
        ([1] * 12, [], "abcdefgh", "abcdefgh"),
        ([1] * 2, [], "", "ab"),
    ],
)
def test_the_size_of_a_batch_before_and_after_its_first_request_is_late(check, sizes, preferred_sizes, in_time, late):
    for now, expected in [(0.5, in_time), (1.0, late)]:
        scheduler = batcher(sizes, preferred_batch_sizes=preferred_sizes, max_queue_delay=1.0)
        check(f"the batch at {now} s, with a delay of 1 s", formed(scheduler, now), expected)


@pytest.mark.task(6, 3)
def test_a_candidate_that_closes_the_batch_sends_it_though_no_size_is_met(check):
    scheduler = batcher([2, 2], preferred_batch_sizes=[6], policy=EqualShapes, max_queue_delay=1.0)
    scheduler.add(request("x", 5, 1), 0.0)
    check("the batch before the delay is over", formed(scheduler, 0.5), "ab")


@pytest.mark.task(6, 3)
def test_the_oldest_request_sets_the_time_and_not_the_newest(check):
    scheduler = batcher([1], arrival=0.0, max_queue_delay=1.0)
    scheduler.add(request("b", 1, 1), 0.75)
    check("the batch at 0.9 s", formed(scheduler, 0.9), "")
    check("when to ask again", scheduler.wake_at(0.9), 1.0)
    check("the batch at 1 s", formed(scheduler, 1.0), "ab")


@pytest.mark.task(6, 3)
def test_without_a_delay_nobody_waits_and_preferred_sizes_still_go_first(check):
    scheduler = batcher([1, 1, 1], preferred_batch_sizes=[2])
    check("three batches in a row", [formed(scheduler, now=7.0) for _ in range(3)], ["ab", "c", ""])


@pytest.mark.task(6, 3)
def test_a_preferred_size_starts_at_once_and_the_rest_when_its_delay_is_over(check):
    scheduler = Dynamic(8, 4, preferred_batch_sizes=[4], max_queue_delay=100 * MICROSECOND)
    steps = recorded(scheduler, [request(name, 2, 1) for name in "ABCDE"], cost=ten_microseconds)
    check("passes", timed_trace(steps), ["@0 A2 B2 C2 D2", "@0.0001 E2"])


@pytest.mark.task(6, 3)
def test_company_that_comes_in_time_completes_a_batch_before_the_delay_is_over(check):
    scheduler = Dynamic(8, 4, preferred_batch_sizes=[2], max_queue_delay=100 * MICROSECOND)
    asked = [request("A", 2, 1), request("B", 2, 1, arrival=30 * MICROSECOND)]
    check("passes", timed_trace(recorded(scheduler, asked, cost=ten_microseconds)), ["@3e-05 A2 B2"])


@pytest.mark.task(6, 3)
def test_the_candidate_that_waited_longest_sets_the_time_though_an_urgent_one_goes_first(check):
    scheduler = Dynamic(8, 8, max_queue_delay=0.5, queue_policies=[QueuePolicy(), QueuePolicy()], default_level=2)
    asked = [request("A", 1, 1), request("U", 1, 1, arrival=0.25, priority=1)]
    check("passes", timed_trace(recorded(scheduler, asked)), ["@0.5 U1 A1"])


@pytest.mark.task(6, 3)
def test_when_to_ask_again(check):
    check("when nobody waits", batcher(max_queue_delay=0.5).wake_at(0.0), None)
    scheduler = batcher([1], arrival=2.0, max_queue_delay=0.5)
    check("the same moment, whenever it is asked", [scheduler.wake_at(now) for now in (2.0, 2.4)], [2.5, 2.5])


@pytest.mark.task(6, 3)
def test_a_deadline_wakes_just_after_it_has_passed(check):
    scheduler = batcher([1], max_queue_delay=5.0, queue_policies=[QueuePolicy(default_timeout=1.0)])
    check("whether that is after the deadline", scheduler.wake_at(0.0) > 1.0, True)
    check("when to ask again", scheduler.wake_at(0.0), 1.0)
    events = scheduler.schedule(scheduler.wake_at(0.0)).events
    check("what happens then", [event.kind for event in events], ["expired"])


@pytest.mark.task(6, 3)
def test_while_a_batch_runs_only_a_deadline_wakes(check):
    scheduler = Dynamic(1, 8, max_queue_delay=0.5, queue_policies=[QueuePolicy(), QueuePolicy(default_timeout=1.0)])
    scheduler.add(request("a", 1, 1), 0.0)
    scheduler.schedule(0.5)
    scheduler.add(request("b", 1, 1), 0.6)
    check("when to ask again, for a request without a deadline", scheduler.wake_at(0.6), None)
    scheduler.add(request("c", 1, 1, priority=2), 0.7)
    check("when to ask again, for one that expires after 1.7 s", scheduler.wake_at(0.7), 1.7)


@pytest.mark.task(6, 3)
def test_at_the_moment_it_asked_for_the_batch_starts_whatever_the_rounding(check):
    scheduler = batcher([1], arrival=0.3, max_queue_delay=0.4)
    check("the batch at the moment of waking", formed(scheduler, scheduler.wake_at(0.3)), "a")


@settings(max_examples=200, deadline=None)
@given(arrival=st.floats(0, 1e6), delay=st.floats(1e-6, 1e3))
def test_at_the_moment_it_asks_to_be_woken_a_batch_is_formed(arrival, delay):
    scheduler = batcher([1], arrival, max_queue_delay=delay)
    assert scheduler.schedule(arrival) is None
    assert scheduler.schedule(scheduler.wake_at(arrival)).spans


@pytest.mark.task(6, 3)
def test_without_a_delay_a_batch_starts_as_soon_as_the_model_is_free(check):
    steps = recorded(Dynamic(8, 4), [request("A", 2, 2), request("B", 2, 1, arrival=0.5)])
    check("passes", timed_trace(steps), ["@0 A2", "@1 A1", "@2 B2"])


@pytest.mark.task(6, 3)
def test_no_batch_exceeds_its_maximum_size(check):
    late_ones_go_together = Dynamic(2, 4, max_queue_delay=0.5)
    steps = recorded(late_ones_go_together, [request(name, 2, 1) for name in "ABCDE"])
    check("passes", trace(steps), ["A2 B2", "C2 D2", "E2"])


# Task 4: the arrays of a ragged batch


@pytest.mark.task(6, 4)
def test_counts_and_ends_of_ragged_requests(check):
    check("element counts", ragged_inputs.element_count(SHAPES), [3, 4, 5])
    check("accumulated counts", ragged_inputs.accumulated_element_count(SHAPES), [3, 7, 12])
    check("offsets", ragged_inputs.accumulated_element_count_with_zero(SHAPES), [0, 3, 7, 12])


@pytest.mark.task(6, 4)
def test_a_count_includes_the_batch_dimension_and_there_is_one_per_request(check):
    check("element counts", ragged_inputs.element_count([(2, 3), (1, 4)]), [6, 4])
    check("element counts of matrices", ragged_inputs.element_count([(1, 2, 3), (2, 2, 2)]), [6, 8])


@pytest.mark.task(6, 4)
def test_a_larger_buffer_counts_nothing_for_those_beyond(check):
    check("element counts", ragged_inputs.element_count(SHAPES, entries=5), [3, 4, 5, 0, 0])
    check("accumulated counts", ragged_inputs.accumulated_element_count(SHAPES, entries=5), [3, 7, 12, 12, 12])
    check("offsets", ragged_inputs.accumulated_element_count_with_zero(SHAPES, entries=5), [0, 3, 7, 12, 12])


@pytest.mark.task(6, 4)
def test_a_smaller_buffer_is_refused():
    with pytest.raises(ValueError, match="the buffer has 3 entries and the batch needs 4"):
        ragged_inputs.accumulated_element_count_with_zero(SHAPES, entries=3)


@pytest.mark.task(6, 4)
def test_the_largest_count_is_told_by_a_shape(check):
    check("the shape", ragged_inputs.max_element_count_as_shape(SHAPES).shape, [5])


@pytest.mark.task(6, 4)
def test_each_item_of_each_request_has_its_shape(check):
    shapes = [(2, 3, 1), (1, 2, 2)]
    check("item shapes", ragged_inputs.item_shape(shapes), [[3, 1], [3, 1], [2, 2]])
    check("item shapes in one row", ragged_inputs.item_shape_flatten(shapes), [3, 1, 3, 1, 2, 2])


@pytest.mark.task(6, 4)
def test_item_shapes_of_unequal_ranks_are_refused():
    with pytest.raises(ValueError, match=r"ranks \[2, 3\]"):
        ragged_inputs.item_shape([(1, 2), (1, 2, 2)])


@pytest.mark.task(6, 4)
def test_all_arrays_are_of_32_bit_integers(check):
    arrays = {
        "element_count": ragged_inputs.element_count(SHAPES),
        "accumulated_element_count": ragged_inputs.accumulated_element_count(SHAPES),
        "accumulated_element_count_with_zero": ragged_inputs.accumulated_element_count_with_zero(SHAPES),
        "max_element_count_as_shape": ragged_inputs.max_element_count_as_shape(SHAPES),
        "item_shape": ragged_inputs.item_shape(SHAPES),
        "item_shape_flatten": ragged_inputs.item_shape_flatten(SHAPES),
    }
    for name, array in arrays.items():
        check(f"the type of {name}", str(getattr(array, "dtype", type(array).__name__)), "int32")


@pytest.mark.task(6, 4)
def test_offsets_cut_the_flat_buffer_into_what_each_request_sent(check):
    inputs = [np.arange(6).reshape(2, 3), np.arange(4).reshape(1, 4), np.arange(1).reshape(1, 1)]
    flat = ragged_inputs.concatenate(inputs)
    offsets = ragged_inputs.accumulated_element_count_with_zero([each.shape for each in inputs])
    parts = [flat[offsets[i] : offsets[i + 1]] for i in range(len(inputs))]
    check("parts of the buffer", parts, [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [0]], axes=("request", "element"))


def test_scattering_by_shape_undoes_concatenation():
    inputs = [np.arange(6).reshape(2, 3), np.arange(4).reshape(1, 4)]
    flat = ragged_inputs.concatenate(inputs)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    scattered = ragged_inputs.scatter_with_input_shape(flat, [each.shape for each in inputs])
    assert all(np.array_equal(part, each) for part, each in zip(scattered, inputs, strict=True))
    with pytest.raises(ValueError, match="the output has 9 elements and the inputs 10"):
        ragged_inputs.scatter_with_input_shape(flat[:9], [each.shape for each in inputs])


def test_offsets_tell_where_each_sequence_begins_in_the_flat_batch():
    starts, lengths = np.array([0, 5, 2]), np.array([3, 1, 2])
    positions, layout = page_layout(starts, lengths, tables=[[4], [0, 7], [2, 1]], block_size=4)
    assert positions.tolist() == [0, 1, 2, 5, 2, 3]
    assert layout.query_start.tolist() == [0, 3, 4, 6]
    assert layout.context_lens.tolist() == [3, 6, 4]
    assert layout.block_tables.tolist() == [[4, -1], [0, 7], [2, -1]]
    assert layout.slots.tolist() == [16, 17, 18, 29, 10, 11]


@pytest.mark.task(6, 4)
def test_attention_finds_its_sequences_by_the_accumulated_count_with_zero(check):
    _, layout = page_layout(np.zeros(3, dtype=np.int64), np.array([3, 4, 5]), [[0], [1], [2]], block_size=8)
    offsets = ragged_inputs.accumulated_element_count_with_zero(SHAPES)
    check("offsets", offsets, layout.query_start.tolist)


# Task 5: the ragged batch


@pytest.mark.task(6, 5)
def test_ragged_batches_are_the_same_but_compute_neither_padding_nor_finished_rows(check):
    asked = [request("A", 7, 3), request("B", 3, 1)]
    padded = recorded(Dynamic(2, 10), asked)
    assert trace(padded) == ["A7 B3", "A1 (B)", "A1 (B)"]
    assert [step.computed_tokens for step in padded] == [14, 2, 2]
    ragged = recorded(Ragged(2, 10), asked)
    check("passes", trace(ragged), ["A7 B3", "A1", "A1"])
    check("computed tokens", [step.computed_tokens for step in ragged], [10, 1, 1], axes=("pass",))
    check("context tokens", [step.context_tokens for step in ragged], [10, 8, 9], axes=("pass",))


@pytest.mark.task(6, 5)
def test_a_ragged_batch_still_admits_nobody_before_all_have_left(check):
    asked = [request("A", 2, 3), request("B", 2, 1), request("C", 2, 1, arrival=0.5)]
    steps = recorded(Ragged(2, 10), asked)
    check("passes", trace(steps), ["A2 B2", "A1", "A1", "C2"])
    check("deliveries", [step.delivered for step in steps], [[], [], [("A", 3), ("B", 1)], [("C", 1)]])


@pytest.mark.task(6, 5)
def test_no_two_sequences_share_a_block_and_none_needs_a_second_one(check):
    scheduler = batcher([3], policy=Ragged)
    batch = scheduler.schedule(0.0)
    check("block tables", [span.sequence.memory for span in batch.spans], [[0], [1], [2]], axes=("sequence", "block"))


@pytest.mark.task(6, 5)
def test_ragged_rows_do_not_share_their_columns_and_only_their_number_is_bounded(check):
    long_prompt, long_output, third = request("P", 9, 1), request("O", 1, 9), request("T", 5, 1)
    assert trace(recorded(Dynamic(2, 10), [long_prompt, long_output]))[:2] == ["P9", "O1"]
    steps = recorded(Ragged(2, 10), [long_prompt, long_output, third])
    check("the first two passes", trace(steps)[:2], ["P9 O1", "O1"])
    check("the last pass", trace(steps)[-1], "T5")


@pytest.mark.task(6, 5)
def test_lying_end_to_end_leaves_the_tokens_as_they_are(check):
    model = tiny(0)
    asked = [request("A", 7, 6), request("B", 3, 12), request("C", 12, 2)]
    tokens = tokens_of(real(model, Ragged(3, 24), asked).run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("request", "position"))
