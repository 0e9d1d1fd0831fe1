"""Lesson 7, continuous batching: each pass is composed anew, in arrival order, with memory for whole lives (Orca)."""

from collections import Counter
from itertools import pairwise

import pytest
from harness import land, launch, oracle, real, recorded, request, simulated, timed_trace, tokens_of, trace

from minillm.batch import Batch, Outcome, next_span
from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.schedulers.orca import Orca, reserve_exact, reserve_max, reserve_oracle, reserve_pow2
from minillm.sequence import Sequence
from minillm.simulator.runner import SimulatedRunner

SIZES = [(3, 9), (8, 2), (1, 5), (12, 3), (2, 2), (5, 8), (4, 1), (7, 4)]
MIX = [request(name, *size, arrival=i * 0.7) for i, (name, size) in enumerate(zip("ABCDEFGH", SIZES, strict=True))]


def orca(sizes, **options):
    """An Orca with requests A, B, ... of these prompt and output lengths."""
    scheduler = Orca(**{"max_bs": 3, "n_slots": 100} | options)
    for name, size in zip("ABCDEF", sizes, strict=False):
        scheduler.add(request(name, *size), now=0.0)
    return scheduler


def names(sequences):
    return "".join(sequence.name for sequence in sequences)


def outcome_of(span, end="", reason="length"):
    """What a span's pass brought: token 0, the last one of the sequence named ``end``, for this reason."""
    sequence = span.sequence
    sequence.in_flight = False
    sequence.token_ids.append(0)
    sequence.finish_reason = reason if sequence.name == end else None
    return Outcome(sequence, span, (0,), sequence.finish_reason)


def run(scheduler):
    """One pass, there and back."""
    land(scheduler, launch(scheduler))


# Task 1: how much is reserved


@pytest.mark.task(7, 1)
@pytest.mark.parametrize(
    ("reservation", "slots"),
    [
        (lambda: reserve_exact, 105),
        (lambda: reserve_oracle, 38),
        (lambda: reserve_pow2, 5 + 64),
        (lambda: reserve_max(2048), 2048),
    ],
    ids=["exact", "oracle", "power of two", "max"],
)
def test_what_each_reservation_sets_aside(check, reservation, slots):
    asked = request("A", 5, 100, expected_output=33)
    check("slots for a prompt of 5, at most 100 new tokens and truly 33", reservation()(asked), slots)


@pytest.mark.task(7, 1)
def test_an_answer_of_a_power_of_two_is_reserved_as_it_is(check):
    slots = [reserve_pow2(request("A", 5, 100, expected_output=n)) - 5 for n in (1, 2, 3, 32, 33)]
    check("slots for answers of 1, 2, 3, 32 and 33 tokens", slots, [1, 2, 4, 32, 64])


@pytest.mark.task(7, 1)
def test_where_the_true_length_is_unknown_the_longest_counts(check):
    asked = request("A", 5, 100)
    check("slots", [reserve_oracle(asked), reserve_pow2(asked)], [105, 133])


# Task 2: reserving


@pytest.mark.task(7, 2)
def test_a_reservation_lasts_for_prompt_and_longest_answer(check):
    scheduler = orca([(7, 6)])
    sequence = scheduler.waiting[0]
    check("whether it could be reserved", scheduler.reserve(sequence), True)
    check("slots in use", scheduler.slots.used_tokens, 13)
    check("slots that the sequence has", len(sequence.memory), 13)
    check("the sequence's status", sequence.status.value, "running")
    check("those who run", names(scheduler.running), "A")


@pytest.mark.task(7, 2)
def test_who_is_reserved_for_stays_in_the_queue_until_it_is_selected(check):
    scheduler = orca([(7, 6), (3, 2)])
    scheduler.reserve(scheduler.waiting[0])
    check("those who wait", names(scheduler.waiting), "AB")


@pytest.mark.task(7, 2)
def test_too_few_free_slots_change_nothing(check):
    scheduler = orca([(7, 6), (7, 6)], n_slots=24)
    first, second = scheduler.waiting
    check("whether each could be reserved", [scheduler.reserve(each) for each in (first, second)], [True, False])
    check("slots in use", scheduler.slots.used_tokens, 13)
    check("the second sequence's status", second.status.value, "waiting")
    check("those who run", names(scheduler.running), "A")


@pytest.mark.task(7, 2)
def test_the_last_free_slots_are_enough(check):
    scheduler = orca([(4, 3), (8, 2)], n_slots=17)
    check("whether each could be reserved", [scheduler.reserve(each) for each in scheduler.waiting], [True, True])
    check("free slots", scheduler.slots.num_free, 0)


@pytest.mark.task(7, 2)
def test_the_kind_of_reservation_decides_how_many(check):
    scheduler = orca([(7, 6)], reservation=reserve_max(64))
    scheduler.reserve(scheduler.waiting[0])
    check("slots in use", scheduler.slots.used_tokens, 64)


# Task 3: Select of Algorithm 1


@pytest.mark.task(7, 3)
def test_a_finished_sequence_leaves_after_any_pass_and_a_waiting_one_enters_at_the_next(check):
    asked = [request("A", 3, 2), request("B", 3, 4), request("C", 2, 2)]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked)
    check("passes", trace(steps), ["A3 B3", "A1 B1", "B1 C2", "B1 C1"])


@pytest.mark.task(7, 3)
def test_nobody_overtakes_a_request_whose_slots_are_not_free(check):
    asked = [request("A", 4, 3), request("B", 8, 2), request("C", 1, 1)]
    roomy, narrow = (trace(recorded(Orca(max_bs=3, n_slots=slots), asked)) for slots in (19, 16))
    check("passes with 19 slots", roomy, ["A4 B8 C1", "A1 B1", "A1"])
    check("passes with 16 slots", narrow, ["A4", "A1", "A1", "B8 C1", "B1"])


@pytest.mark.task(7, 3)
def test_those_who_run_already_reserve_nothing_more(check):
    scheduler = orca([(4, 3), (4, 3)])
    run(scheduler)
    check("the second batch", names(scheduler.select()), "AB")
    check("slots in use", scheduler.slots.used_tokens, 14)


@pytest.mark.task(7, 3)
def test_those_who_run_go_before_those_who_wait(check):
    scheduler = orca([(2, 3)] * 4, max_bs=2)
    check("the first batch", names(scheduler.select()), "AB")
    check("those who wait", names(scheduler.waiting), "CD")
    check("the batch when both are back", names(scheduler.select()), "AB")


@pytest.mark.task(7, 3)
def test_no_sequence_is_in_two_batches(check):
    scheduler = orca([(2, 3)] * 5, max_bs=2)
    batches = [launch(scheduler) for _ in range(3)]
    check("three batches in flight", [names(s.sequence for s in b.spans) for b in batches], ["AB", "CD", "E"])
    check("the next one", names(scheduler.select()), "")


@pytest.mark.task(7, 3)
def test_a_batch_has_at_most_max_bs_sequences_however_many_are_back(check):
    scheduler = orca([(2, 3)] * 3, max_bs=2)
    in_flight = [launch(scheduler), launch(scheduler)]
    for batch in in_flight:
        land(scheduler, batch)
    check("the next batch", names(scheduler.select()), "AB")


@pytest.mark.task(7, 3)
def test_three_batches_in_flight_take_turns(check):
    asked = [request(name, 2, 3) for name in "ABCDEF"]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked, cost=lambda batch: 3.0, depth=3)
    turns = ["@0 A2 B2", "@0 C2 D2", "@0 E2 F2", "@3 A1 B1", "@4 C1 D1", "@5 E1 F1"]
    check("the first six passes", timed_trace(steps)[:6], turns)


@pytest.mark.task(7, 3)
def test_an_arrival_between_two_completions_joins_the_next_batch_that_returns(check):
    asked = [*(request(name, 2, 3) for name in "ABCDE"), request("F", 5, 1, arrival=3.5)]
    steps = recorded(Orca(max_bs=3, n_slots=100), asked, cost=lambda batch: 3.0, depth=2)
    check("passes", timed_trace(steps)[:4], ["@0 A2 B2 C2", "@0 D2 E2", "@3 A1 B1 C1", "@4.5 D1 E1 F5"])


@pytest.mark.task(7, 3)
def test_an_arrival_enters_a_pipeline_with_room_at_once(check):
    asked = [request("A", 2, 2), request("B", 2, 1, arrival=0.5)]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked, cost=lambda batch: 3.0, depth=3)
    check("passes", timed_trace(steps), ["@0 A2", "@0.5 B2", "@3 A1"])


@pytest.mark.task(7, 3)
@pytest.mark.task(7, 4)
def test_an_earlier_request_has_run_at_least_as_often_as_a_later_one_that_is_still_there(check):
    passes, present, overtaken = Counter(), [asked.id for asked in MIX], []
    for step in recorded(Orca(max_bs=3, n_slots=40), MIX):
        passes.update(span.sequence for span in step.spans)
        present = [name for name in present if name not in dict(step.finished)]
        overtaken += [(early, late) for early, late in pairwise(present) if passes[early] < passes[late]]
    check("requests that a later one overtook", overtaken, [])
    check("requests that never ended", present, [])


# Task 4: settling, and who leaves


@pytest.mark.task(7, 4)
def test_tokens_are_delivered_at_the_end_of_the_pass_that_computed_them(check):
    steps = recorded(Orca(max_bs=2, n_slots=100), [request("A", 3, 2), request("B", 3, 1)])
    check("deliveries", [step.delivered for step in steps], [[("A", 1), ("B", 1)], [("A", 1)]])


@pytest.mark.task(7, 4)
def test_slots_are_reserved_until_the_sequence_ends(check):
    steps = recorded(Orca(max_bs=3, n_slots=24), [request("A", 7, 6), request("B", 7, 6), request("C", 3, 4)])
    reserved = [step.reserved_tokens for step in steps]
    check("reserved slots", reserved, [13] * 6 + [20] * 4 + [13] * 2, axes=("pass",))


@pytest.mark.task(7, 4)
def test_a_settled_pass_delivers_to_all_of_its_sequences_and_counts_what_is_cached(check):
    scheduler = orca([(3, 2), (5, 4)])
    batch = launch(scheduler)
    outcomes = [outcome_of(span) for span in batch.spans]
    check("those who get a token", names(scheduler.settle(batch, outcomes, 1.0)), "AB")
    check("tokens in the cache", [span.sequence.computed for span in batch.spans], [3, 5], axes=("sequence",))
    check("those who run", names(scheduler.running), "AB")


@pytest.mark.task(7, 4)
def test_all_slots_of_a_sequence_come_back_with_its_last_token(check):
    scheduler = orca([(3, 4), (5, 4)])
    batch = launch(scheduler)
    scheduler.settle(batch, [outcome_of(span, end="A") for span in batch.spans], 1.0)
    check("slots in use", scheduler.slots.used_tokens, 9)
    check("those who run", names(scheduler.running), "B")


@pytest.mark.task(7, 4)
def test_an_aborted_request_leaves_the_queue_and_the_running(check):
    scheduler = orca([(3, 4), (5, 4), (2, 2)], max_bs=2)
    run(scheduler)
    scheduler.abort("A", 1.0)
    scheduler.abort("C", 1.0)
    check("those who run", names(scheduler.running), "B")
    check("those who wait", names(scheduler.waiting), "")
    check("slots in use", scheduler.slots.used_tokens, 9)


@pytest.mark.task(7, 4)
def test_an_aborted_sequence_in_flight_keeps_its_slots_until_its_pass_is_back(check):
    scheduler = orca([(3, 4), (5, 4)])
    batch = launch(scheduler)
    scheduler.abort("A", 0.5)
    check("slots in use while the pass is in flight", scheduler.slots.used_tokens, 16)
    land(scheduler, batch)
    scheduler.abort("A", 1.0)
    check("slots in use afterwards", scheduler.slots.used_tokens, 9)


@pytest.mark.task(7, 4)
@pytest.mark.parametrize("reason", ["length", "stop", "abort"])
def test_whatever_ended_a_sequence_it_leaves_with_its_pass(check, reason):
    scheduler = orca([(3, 4), (5, 4)])
    batch = launch(scheduler)
    scheduler.settle(batch, [outcome_of(span, "A", reason) for span in batch.spans], 1.0)
    check("those who run", names(scheduler.running), "B")
    check("slots in use", scheduler.slots.used_tokens, 9)


@pytest.mark.task(7, 4)
def test_selective_batching_leaves_the_tokens_as_they_are(check):
    model = tiny(0)
    tokens = tokens_of(real(model, Orca(max_bs=3, n_slots=40), MIX, depth=2).run())
    check("tokens", tokens, lambda: oracle(model, MIX), axes=("request", "position"))


# Task 5: the pipeline


def ends(seconds, submitted, depth):
    """When batches that take so many seconds, submitted at these moments, leave the last stage."""
    batches = [Batch((next_span(Sequence(request("A", prompt, 1))),)) for prompt in seconds]
    runner = SimulatedRunner(lambda batch: [], lambda batch: float(batch.computed_tokens), depth)
    for batch, moment in zip(batches, submitted, strict=True):
        runner.submit(batch, moment)
    moments = []
    for _ in batches:
        moments.append(runner.ready_at())
        runner.collect()
    return moments


@pytest.mark.task(7, 5)
@pytest.mark.parametrize(
    ("seconds", "submitted", "depth", "expected"),
    [
        ([4], [1.0], 1, [5.0]),
        ([4], [1.0], 2, [5.0]),  # stages divide the work of a batch and do not hasten it
        ([4, 4], [0.0, 0.0], 1, [4.0, 8.0]),
        ([4, 4], [0.0, 0.0], 2, [4.0, 6.0]),  # the second enters when the first is half through
        ([6, 6, 6], [0.0, 0.0, 0.0], 3, [6.0, 8.0, 10.0]),
        ([4, 4], [0.0, 9.0], 2, [4.0, 13.0]),  # an idle pipeline is entered at once
        ([8, 2], [0.0, 0.0], 2, [8.0, 9.0]),  # a short batch waits behind a long one, stage after stage
        ([2, 8], [0.0, 0.0], 2, [2.0, 9.0]),
    ],
)
def test_when_batches_leave_a_pipeline(check, seconds, submitted, depth, expected):
    check("when they leave", ends(seconds, submitted, depth), expected, axes=("batch",))


@pytest.mark.task(7, 5)
def test_a_full_pipeline_finishes_a_batch_per_stage_time(check):
    asked = [request(name, 2, 3) for name in "ABCDEF"]
    steps = recorded(Orca(max_bs=2, n_slots=100), asked, cost=lambda batch: 3.0, depth=3)
    check("the ends of passes", [step.end for step in steps], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])


# The policy as a whole


def test_reservations_never_exceed_the_slots():
    steps = recorded(Orca(max_bs=8, n_slots=31), MIX)
    assert max(step.reserved_tokens for step in steps) <= 31
    assert max(len(step.spans) for step in steps) >= 3


def test_nothing_is_padded():
    assert all(step.computed_tokens == step.useful_tokens for step in recorded(Orca(max_bs=3, n_slots=40), MIX))


def test_a_request_that_needs_more_than_all_slots_is_refused_and_the_others_run():
    engine = simulated(Orca(max_bs=2, n_slots=9), [request("B", 6, 3)])
    with pytest.raises(Refused, match="needs 10 slots and there are 9; shorten the prompt or lower max_tokens"):
        engine.add(request("A", 6, 4))
    engine.run()
    assert trace(engine.steps) == ["B6", "B1", "B1"]


def test_a_wrong_oracle_fails_its_own_request_alone():
    """A says that it will end after 2 tokens and goes on: it ends as failed, its slots return, and B is served."""
    scheduler = Orca(max_bs=2, n_slots=12, reservation=reserve_oracle)
    engine = simulated(scheduler, [request("A", 4, 6, expected_output=2), request("B", 3, 3)])
    last = {output.sequence: output for output in engine.run()}
    assert last["A"].finish_reason == "error" and "give the true length" in last["A"].error
    assert last["B"].finish_reason == "length"
    assert trace(engine.steps) == ["A4 B3", "A1 B1", "A1 B1", "xA"]
    scheduler.check_integrity()
