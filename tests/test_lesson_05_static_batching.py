"""Lesson 5, static batching: one rectangle for all, and what it wastes, counted."""

import pytest
from harness import oracle, real, recorded, request, simulated, timed_trace, tokens_of, trace

from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.schedulers.single import Single
from minillm.schedulers.static import NaiveStatic, Static


def test_a_batch_is_padded_to_its_longest_prompt_and_runs_until_its_longest_answer_ends():
    steps = recorded(Static(2, columns=13), [request("A", 7, 6), request("B", 3, 4)])
    assert trace(steps) == ["A7 B3", "A1 B1", "A1 B1", "A1 B1", "A1 (B)", "A1 (B)"]
    assert [step.computed_tokens for step in steps] == [14, 2, 2, 2, 2, 2]
    assert [step.useful_tokens for step in steps] == [10, 2, 2, 2, 1, 1]
    assert [step.context_tokens for step in steps] == [14, 16, 18, 20, 22, 24]
    assert {step.layout for step in steps} == {"padded"}


def test_a_short_answer_holds_its_row_as_long_as_the_longest():
    steps = recorded(Static(2, columns=110), [request("A", 3, 10), request("B", 3, 100)])
    assert sum("A" in step.held for step in steps) == 90


def test_tokens_are_computed_one_by_one_and_delivered_together_when_the_batch_ends():
    *before, last = recorded(Static(2, columns=13), [request("A", 7, 6), request("B", 3, 4)])
    assert [dict(step.sampled) for step in (*before, last)] == [{"A": 1, "B": 1}] * 4 + [{"A": 1}] * 2
    assert all(not step.delivered and not step.finished for step in before)
    assert last.delivered == (("A", 6), ("B", 4))  # so the first token's latency is that of the whole answer
    assert last.finished == (("A", "length"), ("B", "length"))


def test_who_arrives_while_a_batch_runs_waits_for_its_end():
    steps = recorded(Static(2, columns=9), [request("A", 2, 3), request("B", 2, 2, arrival=0.5)])
    assert timed_trace(steps) == ["@0 A2", "@1 A1", "@2 A1", "@3 B2", "@4 B1"]


def test_batches_fill_up_in_the_order_of_arrival():
    steps = recorded(Static(2, columns=9), [request(name, 2, 1) for name in "ABC"])
    assert trace(steps) == ["A2 B2", "C2"]


def test_nobody_overtakes_a_request_that_does_not_fit_beside_those_before_it():
    asked = [request("A", 2, 2), request("B", 7, 1), request("C", 2, 2)]
    assert trace(recorded(Static(3, columns=9), asked)) == ["A2 B7 C2", "A1 C1 (B)"]
    assert trace(recorded(Static(3, columns=8), asked)) == ["A2", "A1", "B7", "C2", "C1"]


def test_the_samples_of_a_request_share_a_batch():
    asked = [request(name, 2, 1, params={"n": 2}) for name in "AB"]
    assert trace(recorded(Static(3, columns=9), asked)) == ["A.0:2 A.1:2", "B.0:2 B.1:2"]


def test_naive_batches_run_to_the_longest_answer_of_the_whole_workload():
    scheduler = NaiveStatic(2, columns=6, passes_per_batch=4)
    steps = recorded(scheduler, [request("A", 2, 1), request("B", 2, 2), request("C", 2, 4)])
    assert trace(steps)[:4] == ["A2 B2", "B1 (A)", "(A) (B)", "(A) (B)"]
    assert trace(steps)[4:] == ["C2", "C1", "C1", "C1"]
    assert [step.computed_tokens for step in steps] == [4, 2, 2, 2, 2, 1, 1, 1]


def test_single_serves_one_request_after_the_other_and_delivers_each_token_at_once():
    steps = recorded(Single(columns=9), [request("A", 5, 3), request("B", 2, 2)])
    assert trace(steps) == ["A5", "A1", "A1", "B2", "B1"]
    assert [step.delivered for step in steps] == [(("A", 1),)] * 3 + [(("B", 1),)] * 2


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request("A", 6, 4), "needs 10 tokens of a row and there are 9; shorten the prompt or lower max_tokens"),
        (request("A", 1, 1, params={"n": 3}), "needs 3 rows of the batch and there are 2; lower n"),
    ],
    ids=["too long", "too many samples"],
)
def test_a_request_that_no_batch_can_hold_is_refused_and_the_others_run(asked, reason):
    engine = simulated(Static(2, columns=9), [request("B", 6, 3)])
    with pytest.raises(Refused, match=reason) as refusal:
        engine.add(asked)
    assert refusal.value.code == "never_fits"
    engine.run()
    assert trace(engine.steps) == ["B6", "B1", "B1"]


def test_padding_and_held_rows_leave_the_tokens_as_they_are():
    model = tiny(0)
    asked = [request("A", 7, 6), request("B", 3, 12), request("C", 12, 2)]
    assert tokens_of(real(model, Static(3, columns=24), asked).run()) == oracle(model, asked)
