"""Lesson 6, dynamic and ragged batching: wait a little for company, and lay it end to end instead of padding it."""

import numpy as np
from harness import oracle, real, recorded, request, timed_trace, tokens_of, trace

from minillm.cache.flat import page_layout
from minillm.model.tiny import tiny
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.priority_queue import QueuePolicy
from minillm.schedulers.ragged import Ragged

MICROSECOND = 1e-6


def ten_microseconds(batch):
    return 10 * MICROSECOND


def test_a_preferred_size_starts_at_once_and_the_rest_when_its_delay_is_over():
    scheduler = Dynamic(8, 4, preferred_batch_sizes=[4], max_queue_delay=100 * MICROSECOND)
    steps = recorded(scheduler, [request(name, 2, 1) for name in "ABCDE"], cost=ten_microseconds)
    assert timed_trace(steps) == ["@0 A2 B2 C2 D2", "@0.0001 E2"]


def test_company_that_comes_in_time_completes_a_batch_before_the_delay_is_over():
    scheduler = Dynamic(8, 4, preferred_batch_sizes=[2], max_queue_delay=100 * MICROSECOND)
    asked = [request("A", 2, 1), request("B", 2, 1, arrival=30 * MICROSECOND)]
    assert timed_trace(recorded(scheduler, asked, cost=ten_microseconds)) == ["@3e-05 A2 B2"]


def test_without_a_delay_nobody_waits():
    steps = recorded(Dynamic(8, 4), [request("A", 2, 2), request("B", 2, 1, arrival=0.5)])
    assert timed_trace(steps) == ["@0 A2", "@1 A1", "@2 B2"]


def test_no_batch_exceeds_its_maximum_size():
    late_ones_go_together = Dynamic(2, 4, max_queue_delay=0.5)
    steps = recorded(late_ones_go_together, [request(name, 2, 1) for name in "ABCDE"])
    assert trace(steps) == ["A2 B2", "C2 D2", "E2"]


def test_a_more_urgent_request_goes_first_though_it_came_later():
    scheduler = Dynamic(1, 4, queue_policies=[QueuePolicy(), QueuePolicy()], default_level=2)
    asked = [request("A", 2, 2), request("B", 2, 1, arrival=0.2), request("C", 2, 1, arrival=0.4, priority=1)]
    assert trace(recorded(scheduler, asked)) == ["A2", "A1", "C2", "B2"]


def test_ragged_batches_are_the_same_but_compute_neither_padding_nor_finished_rows():
    asked = [request("A", 7, 3), request("B", 3, 1)]
    padded, ragged = (recorded(policy(2, 10), asked) for policy in (Dynamic, Ragged))
    assert trace(padded) == ["A7 B3", "A1 (B)", "A1 (B)"]
    assert trace(ragged) == ["A7 B3", "A1", "A1"]
    assert [step.computed_tokens for step in padded] == [14, 2, 2]
    assert [step.computed_tokens for step in ragged] == [10, 1, 1]
    assert [step.context_tokens for step in ragged] == [10, 8, 9]


def test_a_ragged_batch_still_admits_nobody_before_all_have_left():
    asked = [request("A", 2, 3), request("B", 2, 1), request("C", 2, 1, arrival=0.5)]
    steps = recorded(Ragged(2, 10), asked)
    assert trace(steps) == ["A2 B2", "A1", "A1", "C2"]
    assert [step.delivered for step in steps] == [(), (), (("A", 3), ("B", 1)), (("C", 1),)]


def test_offsets_tell_where_each_sequence_begins_in_the_flat_batch():
    starts, lengths = np.array([0, 5, 2]), np.array([3, 1, 2])
    positions, layout = page_layout(starts, lengths, tables=[[4], [0, 7], [2, 1]], block_size=4)
    assert positions.tolist() == [0, 1, 2, 5, 2, 3]
    assert layout.query_start.tolist() == [0, 3, 4, 6]
    assert layout.context_lens.tolist() == [3, 6, 4]
    assert layout.block_tables.tolist() == [[4, -1], [0, 7], [2, -1]]
    assert layout.slots.tolist() == [16, 17, 18, 29, 10, 11]


def test_lying_end_to_end_leaves_the_tokens_as_they_are():
    model = tiny(0)
    asked = [request("A", 7, 6), request("B", 3, 12), request("C", 12, 2)]
    assert tokens_of(real(model, Ragged(3, 24), asked).run()) == oracle(model, asked)
