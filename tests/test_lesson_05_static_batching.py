"""Lesson 5, static batching: one rectangle for all, and what it wastes, counted."""

import pytest
from harness import land, launch, oracle, real, recorded, request, simulated, timed_trace, tokens_of, trace

from minillm.batch import Outcome
from minillm.cache.memory import Row
from minillm.metrics import waste
from minillm.model.tiny import tiny
from minillm.records import SpanRecord, StepRecord
from minillm.scheduler import Refused
from minillm.schedulers.single import Single
from minillm.schedulers.static import NaiveStatic, Static
from minillm.sequence import Sequence

# One request at a time.


@pytest.mark.task(5, 1)
def test_single_serves_one_request_after_the_other(check):
    steps = recorded(Single(columns=9), [request("A", 5, 3), request("B", 2, 2)])
    check("passes", trace(steps), ["A5", "A1", "A1", "B2", "B1"])
    check("computed tokens", [step.computed_tokens for step in steps], [5, 1, 1, 2, 1], axes=("pass",))


@pytest.mark.task(5, 1)
def test_single_delivers_each_token_at_once(check):
    steps = recorded(Single(columns=9), [request("A", 5, 3), request("B", 2, 2)])
    delivered = [("A", 1), ("A", 1), ("A", 1), ("B", 1), ("B", 1)]
    check("deliveries of each pass", deliveries(steps), [[each] for each in delivered], axes=("pass",))


@pytest.mark.task(5, 1)
def test_single_hands_over_the_sequence_of_each_outcome(check):
    scheduler = Single(columns=9)
    scheduler.add(request("A", 5, 3), 0.0)
    batch = launch(scheduler)
    outcomes = (Outcome(span.sequence, span, (0,)) for span in batch.spans)
    check("sequences to deliver", [sequence.name for sequence in scheduler.settle(batch, outcomes, 1.0)], ["A"])


@pytest.mark.task(5, 1)
def test_single_waits_for_a_request_that_is_still_to_come(check):
    steps = recorded(Single(columns=9), [request("A", 2, 1), request("B", 2, 2, arrival=3.5)])
    check("passes", timed_trace(steps), ["@0 A2", "@3.5 B2", "@4.5 B1"])


def deliveries(steps):
    return [list(step.delivered) for step in steps]


# A batch is formed.


@pytest.mark.task(5, 2)
def test_batches_fill_up_in_the_order_of_arrival(check):
    steps = recorded(Static(2, columns=9), [request(name, 2, 1) for name in "ABC"])
    check("passes", trace(steps), ["A2 B2", "C2"])


@pytest.mark.task(5, 2)
def test_a_batch_of_one_is_formed_when_only_one_waits(check):
    steps = recorded(Static(4, columns=9), [request("A", 2, 1)])
    check("passes", trace(steps), ["A2"])


@pytest.mark.task(5, 2)
def test_a_batch_has_as_many_sequences_as_there_are_rows_and_no_more(check):
    sequences = [Sequence(request(name, 2, 1)) for name in "ABC"]
    fit = [Static(2, columns=99).fits(sequences[:count]) for count in (1, 2, 3)]
    check("whether 1, 2 and 3 sequences fit 2 rows", fit, [True, True, False])


@pytest.mark.task(5, 2)
def test_a_row_must_hold_the_longest_prompt_and_behind_it_the_longest_answer_of_anyone(check):
    pair = [Sequence(request("A", 8, 2)), Sequence(request("B", 2, 5))]
    alone = [Static(9, columns=12).fits([each]) for each in pair]
    check("whether each fits 12 columns alone", alone, [True, True])
    together = [Static(9, columns).fits(pair) for columns in (10, 11, 12, 13)]
    check("whether both fit 10, 11, 12, 13 columns together", together, [False, False, False, True])


@pytest.mark.task(5, 2)
def test_a_batch_ends_where_the_rows_or_the_columns_do(check):
    formed = []
    for rows, columns in ((2, 99), (9, 12)):
        scheduler = Static(rows, columns)
        for each in (request("A", 8, 2), request("B", 6, 2), request("C", 2, 5)):
            scheduler.add(each, 0.0)
        formed.append([sequence.name for sequence in scheduler.form(0.0)])
    check("batches of A, B and C on 2 rows, and on 12 columns", formed, [["A", "B"], ["A", "B"]])


@pytest.mark.task(5, 2)
def test_nobody_overtakes_a_request_that_does_not_fit_beside_those_before_it(check):
    asked = [request("A", 2, 2), request("B", 7, 1), request("C", 2, 2)]
    check("passes of 9 columns", trace(recorded(Static(3, columns=9), asked)), ["A2 B7 C2", "A1 C1 (B)"])
    check("passes of 8 columns", trace(recorded(Static(3, columns=8), asked)), ["A2", "A1", "B7", "C2", "C1"])


@pytest.mark.task(5, 2)
def test_the_samples_of_a_request_share_a_batch(check):
    asked = [request(name, 2, 1, params={"n": 2}) for name in "AB"]
    check("passes", trace(recorded(Static(3, columns=9), asked)), ["A.0:2 A.1:2", "B.0:2 B.1:2"])


# It is laid out as a rectangle.


@pytest.mark.task(5, 3)
def test_prompts_are_padded_on_the_left_to_the_longest(check):
    sequences = [Sequence(request(name, prompt, 1)) for name, prompt in (("A", 7), ("B", 3), ("C", 5))]
    places = Static(3, columns=8).places(sequences)
    check("each is a Row", [type(place) is Row for place in places], [True] * 3)
    check("row and padding of A, B, C", [(place.index, place.padding) for place in places], [(0, 0), (1, 4), (2, 2)])


@pytest.mark.task(5, 3)
def test_every_row_is_computed_in_every_pass_finished_or_not(check):
    steps = recorded(Static(2, columns=13), [request("A", 7, 6), request("B", 3, 4)])
    check("passes", trace(steps), ["A7 B3", "A1 B1", "A1 B1", "A1 B1", "A1 (B)", "A1 (B)"])
    check("computed tokens", [step.computed_tokens for step in steps], [14, 2, 2, 2, 2, 2], axes=("pass",))
    check("tokens that attention reads", [step.context_tokens for step in steps], [14, 16, 18, 20, 22, 24], ("pass",))


@pytest.mark.task(5, 3)
def test_the_rectangle_stays_as_long_when_its_longest_prompt_has_ended(check):
    steps = recorded(Static(2, columns=13), [request("A", 7, 1), request("B", 3, 4)])
    check("passes", trace(steps), ["A7 B3", "B1 (A)", "B1 (A)", "B1 (A)"])
    check("tokens that attention reads", [step.context_tokens for step in steps], [14, 16, 18, 20], axes=("pass",))


@pytest.mark.task(5, 3)
def test_nobody_has_no_places(check):
    check("places of an empty batch", Static(3, columns=8).places([]), [])


@pytest.mark.task(5, 3)
@pytest.mark.task(5, 5)
def test_padding_and_held_rows_leave_the_tokens_as_they_are(check):
    model = tiny(0)
    asked = [request("A", 7, 6), request("B", 3, 12), request("C", 12, 2)]
    tokens = tokens_of(real(model, Static(3, columns=24), asked).run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("sequence", "position"))


# It runs alone.


@pytest.mark.task(5, 4)
def test_who_arrives_while_a_batch_runs_waits_for_its_end(check):
    steps = recorded(Static(2, columns=9), [request("A", 2, 3), request("B", 2, 2, arrival=0.5)])
    check("passes", timed_trace(steps), ["@0 A2", "@1 A1", "@2 A1", "@3 B2", "@4 B1"])


@pytest.mark.task(5, 4)
def test_a_place_in_the_batch_stays_empty_though_someone_waits(check):
    asked = [request("A", 2, 1), request("B", 2, 3), request("C", 2, 1)]
    check("passes", trace(recorded(Static(2, columns=9), asked)), ["A2 B2", "B1 (A)", "B1 (A)", "C2"])


@pytest.mark.task(5, 4)
def test_the_second_pass_is_that_of_the_first_one_s_rows_though_someone_waits(check):
    scheduler = Static(2, columns=9)
    scheduler.add(request("A", 2, 3), 0.0)
    land(scheduler, launch(scheduler))
    scheduler.add(request("B", 2, 3), 0.5)
    batch = scheduler.schedule(1.0)
    check("sequences of the second pass", [span.sequence.name for span in batch.spans], ["A"])
    check("tokens that it computes", batch.computed_tokens, 1)


@pytest.mark.task(5, 4)
def test_the_next_pass_is_not_planned_before_the_last_is_settled(check):
    scheduler = Static(2, columns=9)
    scheduler.add(request("A", 2, 3), 0.0)
    first = scheduler.schedule(0.0)
    check("tokens of the first pass", first.computed_tokens, 2)
    check("whether another pass is planned", scheduler.schedule(0.0) is not None, False)


@pytest.mark.task(5, 4)
def test_without_requests_there_is_no_pass(check):
    check("whether a pass is planned", Static(2, columns=9).schedule(0.0) is not None, False)


def running_with_its_last_live_row_aborted():
    """A has ended and B was aborted while no pass was in flight: no pass will deliver A's answer."""
    scheduler = Static(2, columns=9)
    for each in (request("A", 2, 1), request("B", 2, 3)):
        scheduler.add(each, 0.0)
    batch = launch(scheduler)
    batch.spans[0].sequence.finish_reason = "length"
    land(scheduler, batch)
    scheduler.abort("B", 0.5)
    return scheduler


def events(batch):
    return [(event.kind, event.sequence.name) for event in batch.events]


@pytest.mark.task(5, 4)
def test_a_batch_whose_last_live_row_was_aborted_makes_room_without_another_pass(check):
    scheduler = running_with_its_last_live_row_aborted()
    scheduler.add(request("C", 2, 1), 1.0)
    batch = scheduler.schedule(1.0)
    check("sequences of the next pass", [span.sequence.name for span in batch.spans], ["C"])
    check("rows held in it", [sequence.name for sequence in batch.held], [])
    check("events", events(batch), [("completed", "A")])


@pytest.mark.task(5, 4)
def test_what_an_aborted_batch_leaves_behind_is_told_though_nobody_waits(check):
    batch = running_with_its_last_live_row_aborted().schedule(1.0)
    check("whether the engine is told anything", batch is not None, True)
    check("events", events(batch), [("completed", "A")])
    check("whether a pass is computed", batch.runs, False)


# It ends, and its tokens are delivered.


@pytest.mark.task(5, 5)
def test_a_short_answer_holds_its_row_as_long_as_the_longest(check):
    steps = recorded(Static(2, columns=110), [request("A", 3, 10), request("B", 3, 100)])
    check("passes that hold A's row", sum("A" in step.held for step in steps), 90)
    check("passes", len(steps), 100)


@pytest.mark.task(5, 5)
def test_tokens_are_computed_one_by_one_and_delivered_together_when_the_batch_ends(check):
    steps = recorded(Static(2, columns=13), [request("A", 7, 6), request("B", 3, 4)])
    sampled = [dict(step.sampled) for step in steps]
    check("sampled tokens", sampled, [{"A": 1, "B": 1}] * 4 + [{"A": 1}] * 2, axes=("pass", "sequence"))
    # so the first token's latency is that of the whole answer
    check("delivered tokens", deliveries(steps), [[]] * 5 + [[("A", 6), ("B", 4)]], axes=("pass",))
    finished = [list(step.finished) for step in steps]
    check("finished", finished, [[]] * 5 + [[("A", "length"), ("B", "length")]], axes=("pass",))


@pytest.mark.task(5, 5)
def test_nobody_leaves_before_the_last_has_finished(check):
    scheduler = Static(2, columns=9)
    scheduler.add(request("A", 2, 2), 0.0)
    scheduler.add(request("B", 2, 1), 0.0)
    left = []
    for finished in ("B", "A"):
        batch = launch(scheduler)
        for span in batch.spans:
            span.sequence.token_ids.append(0)
            span.sequence.finish_reason = "length" if span.sequence.name == finished else None
        outcomes = [Outcome(span.sequence, span, (0,)) for span in batch.spans]
        left.append([sequence.name for sequence in scheduler.settle(batch, outcomes, 0.0)])
    check("sequences delivered after each pass", left, [[], ["A", "B"]], axes=("pass",))
    check("rows that the batch still has", [row.name for row in scheduler.rows], [])


@pytest.mark.task(5, 5)
def test_a_settled_pass_is_accounted_for(check):
    scheduler = Static(2, columns=9)
    scheduler.add(request("A", 2, 3), 0.0)
    scheduler.add(request("B", 5, 3), 0.0)
    land(scheduler, launch(scheduler))
    check("cached tokens of A and B", [row.computed for row in scheduler.rows], [2, 5])
    check("passes that the batch has had", scheduler.passes, 1)
    check("whether a pass is in flight", scheduler.pass_in_flight, False)


@pytest.mark.task(5, 5)
def test_the_next_batch_finds_empty_rows(check):
    steps = recorded(Static(2, columns=9), [request("A", 2, 1), request("B", 2, 2), request("C", 3, 2)])
    check("passes", trace(steps), ["A2 B2", "B1 (A)", "C3", "C1"])


@pytest.mark.task(5, 5)
def test_a_batch_that_everyone_has_given_up_leaves_though_its_policy_would_go_on(check):
    scheduler = NaiveStatic(2, columns=9, passes_per_batch=4)
    scheduler.add(request("A", 2, 3), 0.0)
    batch = launch(scheduler)
    scheduler.abort("A", 0.5)
    outcomes = [Outcome(span.sequence, span, (0,)) for span in batch.spans]
    check("sequences that leave", [sequence.name for sequence in scheduler.settle(batch, outcomes, 1.0)], ["A"])
    check("rows that the batch still has", [row.name for row in scheduler.rows], [])


@pytest.mark.task(5, 5)
def test_the_batch_is_complete_when_its_last_row_is(check):
    scheduler = Static(2, columns=13)
    scheduler.rows = [Sequence(request(name, 2, 2)) for name in "AB"]
    complete = [scheduler.complete]
    for row in scheduler.rows:
        row.finish_reason = "stop"
        complete.append(scheduler.complete)
    check("complete with none, one and both of two rows finished", complete, [False, False, True])


def test_naive_batches_run_to_the_longest_answer_of_the_whole_workload():
    scheduler = NaiveStatic(2, columns=6, passes_per_batch=4)
    steps = recorded(scheduler, [request("A", 2, 1), request("B", 2, 2), request("C", 2, 4)])
    assert trace(steps)[:4] == ["A2 B2", "B1 (A)", "(A) (B)", "(A) (B)"]
    assert trace(steps)[4:] == ["C2", "C1", "C1", "C1"]
    assert [step.computed_tokens for step in steps] == [4, 2, 2, 2, 2, 1, 1, 1]


# What it wastes.


def step(spans, held, computed):
    """A pass over spans of these lengths, held rows, and a rectangle of so many tokens."""
    records = tuple(SpanRecord(name, 0, length, samples=1, prompt=0) for name, length in spans.items())
    useful = sum(spans.values())
    nothing = dict.fromkeys(
        ("context_tokens", "swapped_out", "swapped_in", "copied", "waiting", "running", "swapped", "reserved_tokens"), 0
    )
    return StepRecord(0, 0.0, 1.0, "padded", records, held, (), computed, useful, filled_tokens=0, **nothing)


def counted(steps):
    found = waste(steps)
    return [found.useful, found.padding, found.held]


@pytest.mark.task(5, 6)
def test_places_beside_a_shorter_prompt_are_padding(check):
    check("useful, padding, held tokens", counted([step({"A": 7, "B": 3}, (), 14)]), [10, 4, 0])


@pytest.mark.task(5, 6)
def test_rows_of_finished_sequences_are_held(check):
    steps = [step({"A": 1}, ("B", "C"), 3), step({}, ("A", "B", "C"), 3)]
    check("useful, padding, held tokens", counted(steps), [1, 0, 5])


@pytest.mark.task(5, 6)
def test_a_held_row_is_as_wide_as_the_rectangle(check):
    check("useful, padding, held tokens", counted([step({"A": 4, "B": 2}, ("C",), 12)]), [6, 2, 4])


@pytest.mark.task(5, 6)
def test_a_pass_that_computes_nothing_wastes_nothing(check):
    check("useful, padding, held tokens", counted([step({}, (), 0)]), [0, 0, 0])


@pytest.mark.task(5, 6)
def test_the_waste_of_a_run_is_that_of_its_passes(check):
    steps = recorded(Static(2, columns=13), [request("A", 7, 6), request("B", 3, 4)])
    check("useful, padding, held tokens", counted(steps), [18, 4, 2])


# What no batch can hold.


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
