"""What all policies share that run a batch to its end: who may enter, and what an abort leaves behind."""

import pytest
from harness import EOS, POLICIES, request, simulated, tokens_of, trace

from minillm.batch import Result
from minillm.scheduler import Load, Refused

OPTIONS = {"static": {}, "naive static": {"passes_per_batch": 5}, "dynamic": {}, "ragged": {}}
EVERY = pytest.mark.parametrize("policy", OPTIONS)


def build(policy):
    return POLICIES[policy](max_batch_size=8, columns=8, **OPTIONS[policy])


@EVERY
@pytest.mark.parametrize(
    ("prompt", "output", "n", "sentence"),
    [(1, 1, 9, "9 rows of the batch and there are 8"), (7, 2, 1, "tokens of a row and there are 8")],
)
def test_what_can_never_share_a_batch_is_refused(policy, prompt, output, n, sentence):
    with pytest.raises(Refused, match=sentence):
        build(policy).add(request("A", prompt, output, params={"n": n}), 0.0)


def test_naive_static_refuses_a_prompt_that_leaves_no_room_for_its_passes():
    scheduler = build("naive static")
    scheduler.add(request("A", 3, 1), 0.0)
    with pytest.raises(Refused, match="9 tokens of a row and there are 8"):
        scheduler.add(request("B", 4, 1), 0.0)


@EVERY
def test_an_aborted_request_leaves_the_queue(policy):
    engine = simulated(build(policy), [request("A", 1, 1), request("B", 1, 1)])
    engine.abort("A")
    assert engine.scheduler.load().waiting == 1
    assert tokens_of(engine.run()) == {"B": [0]}


@EVERY
def test_the_rows_of_a_batch_that_is_aborted_between_passes_are_free_at_once(policy):
    engine = simulated(build(policy), [request("A", 1, 3)])
    engine.step()
    assert engine.scheduler.load().running == 1
    engine.abort("A")
    assert engine.scheduler.load() == Load()


@EVERY
def test_the_rows_of_a_batch_that_is_aborted_in_flight_are_free_when_it_is_settled(policy):
    engine = simulated(build(policy), [request("A", 1, 3), request("B", 1, 1, arrival=0.5)])
    engine.step()
    engine.abort("A")
    assert engine.scheduler.load().running == 1
    engine.abort("B")
    engine.run()
    assert engine.scheduler.load() == Load()


@pytest.mark.parametrize("policy", ["static", "dynamic", "ragged"])
def test_when_the_last_live_row_is_aborted_the_finished_ones_are_delivered(policy):
    engine = simulated(build(policy), [request("A", 1, 1), request("B", 1, 5)])
    engine.step()
    engine.abort("B")
    engine.add(request("C", 1, 1, arrival=1.0))
    outputs = engine.run()
    assert tokens_of(outputs) == {"A": [0], "C": [0]}
    assert [output.error for output in outputs] == [None, None]
    assert trace(engine.steps) == ["A1 B1", "C1 =A"]


def first_sample_ends(batch):
    """Executes a batch so that sample 0 of each request stops at its first token."""
    return [Result((EOS if span.sequence.branch == 0 else 0,)) for span in batch.spans]


@EVERY
@pytest.mark.parametrize("seconds", [1.0, 1.5], ids=["between passes", "in flight"])
def test_an_aborted_request_answers_no_more_though_one_of_its_samples_had_ended(policy, seconds):
    two = request("A", 1, 5, params={"n": 2, "ignore_eos": False})
    engine = simulated(build(policy), [two], execute=first_sample_ends)
    engine.add(request("B", 1, 2, arrival=seconds))
    while engine.clock.now() < seconds:
        engine.step()
    assert [output.finish_reason for output in engine.abort("A")] == ["abort"]
    assert tokens_of(engine.run()) == {"B": [EOS, EOS]}
