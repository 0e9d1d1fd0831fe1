"""The loop: when it moves on and to what moment, when it gives up, what it delivers and what it records."""

from dataclasses import replace
from itertools import pairwise

import pytest
from cell_model import expected_outputs, on_cells
from every_policy import ROOMY, SMALL, roomy, small
from harness import POLICIES, request, simulated, tokens_of, trace

from minillm.batch import Batch
from minillm.engine import Stuck
from minillm.records import write_jsonl
from minillm.schedulers.orca import Orca

CROWD = [request(f"r{i}", 1 + 5 * i % 17, 1 + 7 * i % 12, params={"ignore_eos": False}) for i in range(9)]


class Told(Orca):
    """Orca that does something else at certain calls of ``schedule``: what ``instead`` gives, by the call's number."""

    def __init__(self, instead, wake=lambda now: None):
        super().__init__(max_bs=8, n_slots=512)
        self.instead = instead
        self.wake = wake
        self.calls = 0

    def schedule(self, now):
        self.calls += 1
        assert self.calls < 100, "the engine turns for ever"
        return self.instead(self.calls) if self.instead(self.calls) != "run" else super().schedule(now)

    def wake_at(self, now):
        return self.wake(now)


def nothing(call):
    return None


def a_tick(call):
    return Batch()


@pytest.mark.parametrize("policy", SMALL)
def test_every_token_is_delivered_once_and_every_request_ends_once(policy):
    engine = on_cells(small(policy), CROWD)
    outputs = engine.run()
    assert tokens_of(outputs) == expected_outputs(CROWD)
    assert sorted(output.sequence for output in outputs if output.finish_reason) == [each.id for each in CROWD]
    assert all(output.token_ids or output.finish_reason for output in outputs)
    assert not engine.has_work and engine.step() == []


def test_an_arrival_between_two_completions_is_added_at_its_own_moment():
    scheduler = roomy("orca")
    add, added = scheduler.add, []
    scheduler.add = lambda request, now: (added.append((request.id, now)), add(request, now))
    early = [request(name, 3, 4, arrival=at) for name, at in (("A", 0.0), ("B", 0.25), ("C", 0.5))]
    engine = simulated(scheduler, [*early, request("D", 3, 4, arrival=1.125)], depth=3)
    ends = []
    while engine.has_work:
        engine.step()
        ends.append([step.end for step in engine.steps])
    assert added == [("A", 0.0), ("B", 0.25), ("C", 0.5), ("D", 1.125)]
    assert [step.start for step in engine.steps[:3]] == [0.0, 0.25, 0.5]
    assert [1.0] in ends  # one batch has come back, two are in flight, and D arrives before the next does


def test_the_clock_jumps_to_the_moment_at_which_the_scheduler_wants_to_be_asked_again():
    scheduler = Told(lambda call: None if call == 1 else "run", wake=lambda now: 7.25)
    engine = simulated(scheduler, [request("A", 3, 2)])
    engine.run()
    assert [step.start for step in engine.steps] == [7.25, 8.25]


def test_an_arrival_comes_before_a_later_wake_up():
    scheduler = Told(lambda call: None if call == 1 else "run", wake=lambda now: 7.25)
    engine = simulated(scheduler, [request("A", 3, 1), request("B", 3, 1, arrival=2.0)])
    engine.run()
    assert [(step.start, len(step.spans)) for step in engine.steps] == [(2.0, 2)]


def test_ticks_that_run_nothing_are_recorded_and_take_no_time():
    engine = simulated(Told(lambda call: Batch() if call in (1, 3) else "run"), [request("A", 3, 2)])
    engine.run()
    assert [(step.start, step.end, step.computed_tokens) for step in engine.steps] == [
        (0.0, 0.0, 0),
        (0.0, 1.0, 3),
        (1.0, 1.0, 0),
        (1.0, 2.0, 1),
    ]


@pytest.mark.parametrize(
    "scheduler",
    [Told(nothing), Told(nothing, wake=lambda now: now), Told(nothing, wake=lambda now: now - 1), Told(a_tick)],
    ids=["never runs anything", "asks again at once", "asks again in the past", "ticks for ever"],
)
def test_an_engine_that_can_make_no_progress_says_so_instead_of_turning_for_ever(scheduler):
    engine = simulated(scheduler, [request("A", 3, 2), request("B", 3, 2)])
    with pytest.raises(Stuck, match="2 requests wait"):
        engine.run()


def test_nobody_is_stuck_while_an_arrival_is_due():
    engine = simulated(Told(lambda call: None if call == 1 else "run"), [request("A", 3, 1)])
    engine.add(request("B", 3, 1, arrival=5.0))
    assert set(tokens_of(engine.run())) == {"A", "B"}


def test_an_engine_may_be_drained_and_filled_again():
    engine = on_cells(roomy("vllm"), CROWD[:3])
    first = tokens_of(engine.run())
    for each in CROWD[3:]:
        engine.add(replace(each, arrival=engine.clock.now()))
    assert first | tokens_of(engine.run()) == expected_outputs(CROWD)


def test_arrivals_keep_their_order_when_one_of_them_is_aborted():
    at_one = [request(name, 3, 1, arrival=1.0) for name in "ABCD"]
    engine = simulated(roomy("orca"), at_one[:3])
    engine.abort("A")
    engine.add(at_one[3])
    engine.run()
    assert trace(engine.steps) == ["B3 C3 D3"]


def test_a_sequence_in_flight_is_never_preempted():
    """B came later and would be A's victim, but it is in flight: A gives way itself, and then B while A is."""
    scheduler = POLICIES["vllm"](num_blocks=4, block_size=4)
    engine = simulated(scheduler, [request("A", 7, 3), request("B", 7, 3, arrival=0.5)], depth=2)
    outputs = engine.run()
    assert trace(engine.steps)[:4] == ["A7", "!A", "B7", "!B"]
    assert {name: len(tokens) for name, tokens in tokens_of(outputs).items()} == {"A": 3, "B": 3}


def test_preempted_groups_wait_in_the_order_of_arrival_whoever_lost_first():
    """A loses its blocks while B is in flight, and B loses its own before A fits again."""
    scheduler = POLICIES["vllm"](num_blocks=5, block_size=2)
    engine = simulated(scheduler, [request("A", 4, 7), request("B", 4, 7, arrival=0.5)], depth=2)
    while engine.has_work:
        engine.step()
        assert [group.order for group in scheduler.waiting] in ([], [0], [1], [0, 1])
    assert {("preempted", "A"), ("preempted", "B")} <= {
        (event.kind, event.sequence) for step in engine.steps for event in step.events
    }


@pytest.mark.parametrize("policy", ROOMY)
def test_steps_do_not_overlap_on_one_device_and_bring_what_they_say(policy):
    engine = on_cells(roomy(policy), CROWD)
    outputs = engine.run()
    assert all(before.end <= after.start for before, after in pairwise(engine.steps))
    tokens = sum(len(output.token_ids) for output in outputs)
    for told in ("sampled", "delivered"):
        assert sum(count for step in engine.steps for _, count in getattr(step, told)) == tokens
    assert sorted(name for step in engine.steps for name, _ in step.finished) == [each.id for each in CROWD]


def test_what_is_delivered_when_a_pass_starts_stands_in_the_record_of_that_pass():
    """A's answer waits for its batch; when B, the last one in it, is aborted, A's leaves as the next batch starts."""
    engine = simulated(POLICIES["static"](2, 12), [request("A", 3, 1), request("B", 3, 5), request("C", 3, 1)])
    engine.step()
    engine.abort("B")
    engine.run()
    assert [(step.delivered, step.finished) for step in engine.steps] == [
        ((), ()),
        ((("A", 1), ("C", 1)), (("A", "length"), ("C", "length"))),
    ]


@pytest.mark.parametrize("policy", ROOMY)
def test_an_interrupt_keeps_the_records_so_far(policy, tmp_path):
    whole = on_cells(roomy(policy), CROWD)
    whole.run()
    engine = on_cells(roomy(policy), CROWD)
    submit, passes = engine.runner.submit, []

    def interrupted_at_the_fifth(batch, now):
        passes.append(batch)
        if len(passes) == 5:
            raise KeyboardInterrupt
        submit(batch, now)

    engine.runner.submit = interrupted_at_the_fifth
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    kept = engine.recording(policy)
    assert kept.requests == tuple(whole.requests)
    assert kept.steps == tuple(whole.steps[:4])
    write_jsonl(tmp_path / "run.jsonl", [kept])
