"""Lesson 7, continuous batching: each pass is composed anew, in arrival order, with memory for whole lives (Orca)."""

from collections import Counter
from itertools import pairwise

import pytest
from harness import land, launch, oracle, real, recorded, request, simulated, timed_trace, tokens_of, trace

from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.schedulers.orca import Orca, reserve_exact, reserve_max, reserve_oracle, reserve_pow2

SIZES = [(3, 9), (8, 2), (1, 5), (12, 3), (2, 2), (5, 8), (4, 1), (7, 4)]
MIX = [request(name, *size, arrival=i * 0.7) for i, (name, size) in enumerate(zip("ABCDEFGH", SIZES, strict=True))]


def test_a_finished_sequence_leaves_after_any_pass_and_a_waiting_one_enters_at_the_next():
    asked = [request("A", 3, 2), request("B", 3, 4), request("C", 2, 2)]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked)
    assert trace(steps) == ["A3 B3", "A1 B1", "B1 C2", "B1 C1"]


def test_tokens_are_delivered_at_the_end_of_the_pass_that_computed_them():
    steps = recorded(Orca(max_bs=2, n_slots=100), [request("A", 3, 2), request("B", 3, 1)])
    assert [step.delivered for step in steps] == [(("A", 1), ("B", 1)), (("A", 1),)]


def test_an_earlier_request_has_run_at_least_as_often_as_a_later_one_that_is_still_there():
    passes, present = Counter(), [asked.id for asked in MIX]
    for step in recorded(Orca(max_bs=3, n_slots=40), MIX):
        passes.update(span.sequence for span in step.spans)
        present = [name for name in present if name not in dict(step.finished)]
        assert all(passes[earlier] >= passes[later] for earlier, later in pairwise(present))
    assert not present


def test_nobody_overtakes_a_request_whose_slots_are_not_free():
    asked = [request("A", 4, 3), request("B", 8, 2), request("C", 1, 1)]
    assert trace(recorded(Orca(max_bs=3, n_slots=19), asked)) == ["A4 B8 C1", "A1 B1", "A1"]
    assert trace(recorded(Orca(max_bs=3, n_slots=16), asked)) == ["A4", "A1", "A1", "B8 C1", "B1"]


def test_slots_are_reserved_for_prompt_and_longest_answer_until_the_sequence_ends():
    steps = recorded(Orca(max_bs=3, n_slots=24), [request("A", 7, 6), request("B", 7, 6), request("C", 3, 4)])
    assert [step.reserved_tokens for step in steps] == [13] * 6 + [20] * 4 + [13] * 2


def test_reservations_never_exceed_the_slots():
    steps = recorded(Orca(max_bs=8, n_slots=31), MIX)
    assert max(step.reserved_tokens for step in steps) <= 31
    assert max(len(step.spans) for step in steps) >= 3


def test_nothing_is_padded():
    assert all(step.computed_tokens == step.useful_tokens for step in recorded(Orca(max_bs=3, n_slots=40), MIX))


def test_three_batches_in_flight_take_turns_and_no_sequence_is_in_two():
    asked = [request(name, 2, 3) for name in "ABCDEF"]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked, cost=lambda batch: 3.0, depth=3)
    first = ["@0 A2 B2", "@0 C2 D2", "@0 E2 F2"]
    assert timed_trace(steps)[:6] == [*first, "@3 A1 B1", "@4 C1 D1", "@5 E1 F1"]
    assert [step.end for step in steps] == [3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_batch_has_at_most_max_bs_sequences_however_many_are_back():
    scheduler = Orca(max_bs=2, n_slots=100)
    for name in "ABC":
        scheduler.add(request(name, 2, 3), now=0.0)
    in_flight = [launch(scheduler), launch(scheduler)]
    for batch in in_flight:
        land(scheduler, batch)
    assert [span.sequence.name for span in launch(scheduler).spans] == ["A", "B"]


def test_an_arrival_between_two_completions_joins_the_next_batch_that_returns():
    asked = [*(request(name, 2, 3) for name in "ABCDE"), request("F", 5, 1, arrival=3.5)]
    steps = recorded(Orca(max_bs=3, n_slots=100), asked, cost=lambda batch: 3.0, depth=2)
    assert timed_trace(steps)[:4] == ["@0 A2 B2 C2", "@0 D2 E2", "@3 A1 B1 C1", "@4.5 D1 E1 F5"]


def test_an_arrival_enters_a_pipeline_with_room_at_once():
    asked = [request("A", 2, 2), request("B", 2, 1, arrival=0.5)]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked, cost=lambda batch: 3.0, depth=3)
    assert timed_trace(steps) == ["@0 A2", "@0.5 B2", "@3 A1"]


@pytest.mark.parametrize(
    ("reservation", "slots"),
    [(reserve_exact, 105), (reserve_oracle, 38), (reserve_pow2, 5 + 64), (reserve_max(2048), 2048)],
    ids=["exact", "oracle", "power of two", "max"],
)
def test_what_each_reservation_sets_aside(reservation, slots):
    assert reservation(request("A", 5, 100, expected_output=33)) == slots


def test_an_answer_of_a_power_of_two_is_reserved_as_it_is():
    assert [reserve_pow2(request("A", 5, 100, expected_output=n)) - 5 for n in (1, 2, 3, 32)] == [1, 2, 4, 32]


def test_a_request_that_needs_more_than_all_slots_is_refused_and_the_others_run():
    engine = simulated(Orca(max_bs=2, n_slots=9), [request("B", 6, 3)])
    with pytest.raises(Refused, match="needs 10 slots and there are 9; shorten the prompt or lower max_tokens"):
        engine.add(request("A", 6, 4))
    engine.run()
    assert trace(engine.steps) == ["B6", "B1", "B1"]


def test_selective_batching_leaves_the_tokens_as_they_are():
    model = tiny(0)
    assert tokens_of(real(model, Orca(max_bs=3, n_slots=40), MIX, depth=2).run()) == oracle(model, MIX)


def test_a_wrong_oracle_fails_its_own_request_alone():
    """A says that it will end after 2 tokens and goes on: it ends as failed, its slots return, and B is served."""
    scheduler = Orca(max_bs=2, n_slots=12, reservation=reserve_oracle)
    engine = simulated(scheduler, [request("A", 4, 6, expected_output=2), request("B", 3, 3)])
    last = {output.sequence: output for output in engine.run()}
    assert last["A"].finish_reason == "error" and "give the true length" in last["A"].error
    assert last["B"].finish_reason == "length"
    assert trace(engine.steps) == ["A4 B3", "A1 B1", "A1 B1", "xA"]
    scheduler.check_integrity()
