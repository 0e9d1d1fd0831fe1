"""Lesson 8, memory pressure: blocks are taken as tokens come, and given up when none is left (vLLM)."""

from collections import Counter

import pytest
from harness import EOS, POLICIES, land, launch, oracle, real, recorded, request, simulated, tokens_of, trace

from minillm.batch import Outcome, Result
from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.schedulers.vllm import Plan


def vllm(num_blocks, **options):
    return POLICIES["vllm"](num_blocks, block_size=4, **options)


def pair(name, prompt, output, **more):
    """A request for two samples."""
    return request(name, prompt, output, params={"n": 2, **more})


W0 = [request("A", 7, 6), request("B", 7, 6), request("C", 3, 4)]


@pytest.mark.task(8, 2)
@pytest.mark.task(8, 3)
@pytest.mark.task(8, 4)
def test_without_a_watermark_two_sequences_take_each_other_s_blocks_by_turns(check):
    passes = ["A7 B7 C3", "A1 B1 C1", "A1 B1 !C", "A1 !B", "B10", "A1 !B", "B11", "A1 !B", "B12 C5", "C1"]
    check("passes", trace(recorded(vllm(6, watermark=0), W0)), passes)


@pytest.mark.task(8, 2)
@pytest.mark.task(8, 3)
@pytest.mark.task(8, 4)
def test_with_a_watermark_nobody_enters_before_there_is_room_to_grow(check):
    passes = ["A7 B7 C3", "A1 B1 C1", "A1 B1 !C", "A1 !B", "A1", "A1", "B10 C5", "B1 C1", "B1"]
    check("passes", trace(recorded(vllm(6, watermark=1), W0)), passes)


# Admission


@pytest.mark.task(8, 1)
def test_prompts_go_first_and_no_pass_mixes_them_with_decodes(check):
    steps = recorded(vllm(8), [request("A", 4, 3), request("B", 4, 2, arrival=0.5)])
    check("passes", trace(steps), ["A4", "B4", "A1 B1", "A1"])


@pytest.mark.task(8, 1)
def test_who_decodes_waits_for_a_pass_while_a_prompt_is_computed(check):
    scheduler = vllm(8)
    scheduler.add(request("A", 4, 3), now=0.0)
    land(scheduler, launch(scheduler))
    scheduler.add(request("B", 4, 2), now=1.0)
    batch = launch(scheduler)
    check("sequences of the second pass", [span.sequence.name for span in batch.spans], ["B"])


@pytest.mark.task(8, 1)
def test_a_pass_that_computes_nothing_still_tells_whom_it_preempted(check):
    scheduler = vllm(2)
    scheduler.add(request("A", 4, 4), now=0.0)
    for _ in range(2):
        land(scheduler, launch(scheduler))
    batch = scheduler.schedule(2.0)  # A has both blocks, and the rule wants a free one
    events = [] if batch is None else [f"{event.kind} {event.sequence.name}" for event in batch.events]
    check("events of a pass without spans", events, ["preempted A"])


@pytest.mark.task(8, 2)
@pytest.mark.parametrize(("prompt", "first"), [(8, "A4 B8"), (9, "A4")])
def test_a_prompt_enters_if_the_watermark_stays_free(check, prompt, first):
    steps = recorded(vllm(4, watermark=1), [request("A", 4, 1), request("B", prompt, 1)])
    check("first pass", trace(steps)[0], first)


@pytest.mark.task(8, 2)
def test_who_is_admitted_runs(check):
    scheduler = vllm(4)
    scheduler.add(request("A", 4, 3), now=0.0)
    scheduler.add(request("B", 4, 3), now=0.0)
    batch = launch(scheduler)
    check("groups that run", [group.request_id for group in scheduler.running], ["A", "B"])
    check("their status", [span.sequence.status.value for span in batch.spans], ["running", "running"])


@pytest.mark.task(8, 2)
def test_a_short_prompt_does_not_overtake_a_long_one_that_has_to_wait(check):
    steps = recorded(vllm(4), [request("A", 8, 2), request("B", 12, 1), request("C", 4, 1)])
    check("passes", trace(steps), ["A8", "A1", "B12 C4"])


LIMITS = [
    ({"max_num_seqs": 3}, "A5 B3 C1", "A5 B3 C1"),
    ({"max_num_seqs": 2}, "A5 B3", "three sequences"),
    ({"max_num_batched_tokens": 15}, "A5 B3 C1", "three rows of 5 tokens"),
    ({"max_num_batched_tokens": 14}, "A5 B3", "one token less"),
    ({"max_paddings": 6}, "A5 B3 C1", "2 + 4 tokens of padding"),
    ({"max_paddings": 5}, "A5 B3", "one token less"),
]


@pytest.mark.task(8, 2)
@pytest.mark.parametrize(("limit", "first", "why"), LIMITS, ids=[str(limit) for limit, *_ in LIMITS])
def test_a_prompt_pass_stops_exactly_at_each_limit(check, limit, first, why):
    steps = recorded(vllm(9, **limit), [request("A", 5, 1), request("B", 3, 1), request("C", 1, 1)])
    check(f"first pass ({why})", trace(steps)[0], first)


@pytest.mark.task(8, 2)
@pytest.mark.parametrize(("seats", "first"), [(3, "A.0:4 B4"), (2, "A.0:4")])
def test_the_samples_of_a_request_take_a_seat_each(check, seats, first):
    steps = recorded(vllm(9, max_num_seqs=seats), [pair("A", 4, 2), request("B", 4, 1)])
    check("first pass", trace(steps)[0], first)


@pytest.mark.task(8, 2)
def test_those_who_run_keep_their_seats(check):
    steps = recorded(vllm(9, max_num_seqs=2), [request("A", 4, 2), request("B", 4, 3), request("C", 4, 1, arrival=0.5)])
    check("passes, with two seats", trace(steps), ["A4 B4", "A1 B1", "C4", "B1"])


NEVER = {
    "blocks": (vllm(4, watermark=1), request("A", 9, 5), "needs 5 blocks and there are 4"),  # 13 tokens, one block free
    "a pair's blocks": (vllm(6), pair("A", 6, 6), "needs 7 blocks and there are 6"),  # 1 shared, 2 each, to grow 1 each
    "seats": (vllm(9, max_num_seqs=1), pair("A", 1, 1), "needs 2 seats .* and there are 1"),
    "tokens": (vllm(9, max_num_batched_tokens=10), request("A", 6, 6), "needs 11 tokens a pass and there are 10"),
}


@pytest.mark.parametrize(("scheduler", "asked", "reason"), NEVER.values(), ids=NEVER)
def test_a_request_that_could_not_finish_even_alone_is_refused_and_the_others_run(scheduler, asked, reason):
    engine = simulated(scheduler, [request("B", 4, 2)])
    with pytest.raises(Refused, match=reason):
        engine.add(asked)
    engine.run()
    assert trace(engine.steps) == ["B4", "B1"]


# Decodes


@pytest.mark.task(8, 3)
def test_a_sequence_takes_a_block_only_when_its_last_one_is_full(check):
    steps = recorded(vllm(8), [request("A", 3, 4)])
    check("places that A holds, by pass", [step.reserved_tokens for step in steps], [4, 4, 8, 8])


@pytest.mark.task(8, 3)
def test_a_sequence_goes_on_only_if_a_block_is_free_even_where_its_last_one_has_room(check):
    steps = recorded(vllm(3), [request("A", 6, 3), request("B", 1, 2)])
    check("passes", trace(steps), ["A6 B1", "A1 !B", "B2", "A1"])


@pytest.mark.task(8, 3)
def test_the_oldest_is_served_first_though_it_came_back_last(check):
    scheduler = vllm(3)
    engine = simulated(scheduler, [request(name, 4, 6) for name in "AB"])
    engine.step()
    scheduler.running.reverse()  # as when A was recomputed while B, a pair that came later, was swapped in
    engine.step()
    check("passes", trace(engine.steps), ["A4 B4", "A1 !B"])


@pytest.mark.task(8, 3)
def test_who_is_in_flight_gets_no_second_span_and_is_no_victim(check):
    scheduler = vllm(3)
    scheduler.add(request("A", 4, 6), now=0.0)
    first = launch(scheduler)
    scheduler.add(request("B", 8, 5), now=0.0)
    launch(scheduler)
    land(scheduler, first)
    batch = scheduler.schedule(1.0)  # all 3 blocks are taken, and B's pass is still being computed
    check("sequences in the pass", [span.sequence.name for span in batch.spans], [])
    check("events of the pass", [f"{event.kind} {event.sequence.name}" for event in batch.events], ["preempted A"])
    check("groups that run", [group.request_id for group in scheduler.running], ["B"])


@pytest.mark.task(8, 3)
def test_a_pass_decodes_those_who_are_back_and_leaves_out_who_is_in_flight(check):
    scheduler = vllm(8)
    scheduler.add(request("A", 4, 6), now=0.0)
    first = launch(scheduler)
    scheduler.add(request("B", 4, 6), now=0.0)
    launch(scheduler)
    land(scheduler, first)
    check("sequences in the pass", [span.sequence.name for span in launch(scheduler).spans], ["A"])


# Preemption of lone sequences: recompute


@pytest.mark.task(8, 3)
@pytest.mark.task(8, 4)
def test_the_latest_arrival_is_preempted_first_and_the_waiting_end_oldest_first(check):
    scheduler = vllm(3)
    engine = simulated(scheduler, [request(name, 4, 6) for name in "ABC"])
    engine.step()
    engine.step()
    check("passes", trace(engine.steps), ["A4 B4 C4", "A1 !C !B"])
    check("waiting, from the front", [group.sequences[0].name for group in scheduler.waiting], ["B", "C"])


@pytest.mark.task(8, 4)
def test_a_preempted_sequence_waits_before_those_that_arrived_later(check):
    scheduler = vllm(2)
    engine = simulated(scheduler, [request(name, 4, 4) for name in "ABCD"])
    engine.step()
    engine.step()
    check("passes", trace(engine.steps), ["A4 B4", "A1 !B"])
    check("waiting, from the front", [group.sequences[0].name for group in scheduler.waiting], ["B", "C", "D"])


@pytest.mark.task(8, 4)
def test_a_preempted_sequence_waits_behind_an_earlier_one_that_was_preempted_before(check):
    scheduler = vllm(2)
    simulated(scheduler, [request(name, 4, 4) for name in "AB"]).step()
    for group in list(scheduler.running):  # A first: so it goes where B was in flight when A lacked a block
        scheduler._preempt(group, Plan())
    check("waiting, from the front", [group.request_id for group in scheduler.waiting], ["A", "B"])


@pytest.mark.task(8, 4)
def test_a_preempted_group_leaves_those_who_run(check):
    scheduler = vllm(2)
    engine = simulated(scheduler, [request(name, 4, 4) for name in "AB"])
    engine.step()
    engine.step()
    check("groups that run after B was preempted", [group.request_id for group in scheduler.running], ["A"])


@pytest.mark.task(8, 4)
def test_a_preempted_sequence_gives_up_all_blocks_and_keeps_its_tokens(check):
    scheduler = vllm(4)
    engine = simulated(scheduler, [request(name, 4, 6) for name in "ABC"])
    for _ in range(2):
        engine.step()
    (preempted,) = scheduler.waiting[0].sequences
    check("free blocks, A and B holding 2 each", scheduler.blocks.num_free, 0)
    check("blocks of C", preempted.memory, [])
    check("tokens of C that are in the cache", preempted.computed, 0)
    check("tokens of C", len(preempted.token_ids), 4 + 1)
    check("status of C", preempted.status.value, "waiting")


@pytest.mark.task(8, 4)
def test_the_blocks_of_a_preempted_sequence_are_free_for_others(check):
    scheduler = vllm(5)
    scheduler.add(request("A", 8, 4), now=0.0)
    scheduler.add(request("B", 9, 4), now=0.0)
    land(scheduler, launch(scheduler))
    batch = launch(scheduler)
    check("free blocks, after B gave up 3 and A took one of them", scheduler.blocks.num_free, 2)
    check("sequences that go on", [span.sequence.name for span in batch.spans], ["A"])


@pytest.mark.task(8, 4)
def test_recomputation_emits_nothing_twice(check):
    emitted, preempted = Counter(), 0
    for step in recorded(vllm(4), [request(name, 4, 6) for name in "ABC"]):
        emitted.update(dict(step.delivered))
        preempted += len(step.events)
    check("tokens that each client got", dict(emitted), {"A": 6, "B": 6, "C": 6})
    check("whether there were 3 preemptions or more", preempted >= 3, True)


@pytest.mark.task(8, 2)
@pytest.mark.task(8, 3)
@pytest.mark.task(8, 4)
def test_recomputed_sequences_equal_their_oracles(check):
    model = tiny(0)
    asked = [request(name, 4, 6) for name in "ABC"]
    tokens = tokens_of(real(model, vllm(4), asked).run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("request", "output token"))


# Preemption of samples that share blocks: swap

TWO_PAIRS = [
    "A.0:6 B.0:6",
    "A.0:1 A.1:1 B.0:1 B.1:1",
    "A.0:1 A.1:1 >B.0 >B.1",  # one block is free; two samples want two, though their last blocks have room
    "A.0:1 A.1:1",
    "B.0:1 B.1:1 <B.0 <B.1",  # the 3 blocks that come back and 2 to grow: not before A has left
    "B.0:1 B.1:1",
]


@pytest.mark.task(8, 3)
@pytest.mark.task(8, 4)
@pytest.mark.task(8, 5)
def test_a_pair_is_swapped_out_whole_and_comes_back_when_there_is_room_to_grow(check):
    steps = recorded(vllm(7, swap_blocks=3), [pair("A", 6, 4), pair("B", 6, 4)])
    check("passes", trace(steps), TWO_PAIRS)


def raised_by(call):
    """The name of the exception that a call ends with, or None. A task that is not written is none of these."""
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return None


@pytest.mark.task(8, 5)
def test_a_group_that_is_swapped_out_has_left_those_who_run_before(check):
    scheduler = vllm(7, swap_blocks=3)
    simulated(scheduler, [pair("A", 6, 4)]).step()
    group = scheduler.running.pop()  # as _preempt does
    check("what _swap_out raises", raised_by(lambda: scheduler._swap_out(group, Plan())), None)
    check("groups that are swapped out", [each.request_id for each in scheduler.swapped], ["A"])


@pytest.mark.task(8, 5)
def test_the_status_of_a_pair_tells_where_its_blocks_are(check):
    scheduler = vllm(7, swap_blocks=3)
    engine = simulated(scheduler, [pair("A", 6, 4), pair("B", 6, 4)])
    for _ in range(3):
        engine.step()
    (b,) = scheduler.swapped
    check("status of B's samples, swapped out", [sample.status.value for sample in b.sequences], ["swapped"] * 2)
    for _ in range(2):
        engine.step()
    check("status of B's samples, back", [sample.status.value for sample in b.sequences], ["running"] * 2)


@pytest.mark.task(8, 3)
@pytest.mark.task(8, 5)
def test_a_swap_moves_the_blocks_of_a_pair_once_and_a_sample_copies_before_it_writes(check):
    steps = recorded(vllm(7, swap_blocks=3), [pair("A", 6, 4), pair("B", 6, 4)])
    check("blocks swapped out, by pass", [step.swapped_out for step in steps], [0, 0, 3, 0, 0, 0])
    check("blocks swapped in, by pass", [step.swapped_in for step in steps], [0, 0, 0, 0, 3, 0])
    check("blocks copied, by pass", [step.copied for step in steps], [0, 2, 0, 0, 0, 0])


@pytest.mark.task(8, 1)
def test_no_prompt_enters_before_all_that_was_swapped_out_is_back(check):
    asked = [pair("A", 6, 4), pair("B", 6, 4), request("C", 4, 1, arrival=2.5)]
    steps = recorded(vllm(7, swap_blocks=3), asked)
    check("passes", trace(steps), [*TWO_PAIRS[:5], "C4", TWO_PAIRS[5]])


@pytest.mark.task(8, 5)
def test_a_pair_comes_back_only_if_each_sample_can_take_one_more_block(check):
    steps = recorded(vllm(10, swap_blocks=2), [request("A", 4, 5), request("B", 20, 5), pair("C", 6, 4)])
    while_two_blocks_are_free = ["A1 B1", "A1 B1", "A1 B1"]  # C holds 2, and wants 4
    back = ["C.0:1 C.1:1 <C.0 <C.1", "C.0:1 C.1:1", "C.0:1 C.1:1"]
    check("passes", trace(steps), ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1", *while_two_blocks_are_free, *back])


@pytest.mark.task(8, 5)
@pytest.mark.parametrize(("watermark", "after_a"), [(0, ["B1 C.0:1 C.1:1 <C.0 <C.1"]), (1, ["B1", "B1"])])
def test_a_pair_comes_back_only_if_the_watermark_stays_free(check, watermark, after_a):
    asked = [request("A", 4, 3), request("B", 20, 5), pair("C", 6, 4)]  # A leaves 4 blocks, all that C wants
    steps = recorded(vllm(10, swap_blocks=2, watermark=watermark), asked)
    check("passes", trace(steps)[: 3 + len(after_a)], ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1", "A1 B1", *after_a])


@pytest.mark.task(8, 5)
def test_a_pair_comes_back_only_if_it_has_its_seats(check):
    scheduler = vllm(10, swap_blocks=2)
    engine = simulated(scheduler, [request("A", 4, 3), request("B", 20, 5), pair("C", 6, 4)])
    for _ in range(2):
        engine.step()
    scheduler.max_num_seqs = 2  # C needs both, and B has one
    engine.run()
    back = ["C.0:1 C.1:1 <C.0 <C.1", "C.0:1 C.1:1", "C.0:1 C.1:1"]
    check("passes", trace(engine.steps), ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1", "A1 B1", "B1", "B1", *back])


@pytest.mark.task(8, 5)
def test_of_two_pairs_the_earlier_comes_back_first_although_it_left_last(check):
    steps = recorded(vllm(8, swap_blocks=5), [pair("A", 6, 4), pair("B", 6, 4), pair("C", 6, 4)])
    leaving = [
        "A.0:6 B.0:6 C.0:6",
        "A.0:1 A.1:1 B.0:1 B.1:1 >C.0 >C.1",
        "A.0:1 A.1:1 B.0:1 B.1:1",
        "A.0:1 A.1:1 >B.0 >B.1",
    ]
    check("passes", trace(steps)[:5], [*leaving, "B.0:1 B.1:1 <B.0 <B.1"])


@pytest.mark.task(8, 1)
def test_nobody_comes_back_in_a_pass_that_preempted(check):
    steps = recorded(vllm(9, swap_blocks=2), [request("A", 4, 8), request("B", 20, 7), pair("C", 6, 4)])
    b_gave_up_6_blocks_and_c_wants_4 = ["A1 !B", "A1 C.0:1 C.1:1 <C.0 <C.1"]
    before = ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1", *["A1 B1"] * 3]
    check("passes", trace(steps)[:7], [*before, *b_gave_up_6_blocks_and_c_wants_4])


@pytest.mark.task(8, 1)
def test_nobody_comes_back_in_the_pass_that_swapped_it_out(check):
    asked = [request("A", 6, 3, params={"n": 3}), pair("B", 6, 3)]  # in pass 2 A wants 3 free blocks and takes none
    steps = recorded(vllm(9, swap_blocks=3), asked)
    events = [[f"{event.kind} {event.sequence}" for event in step.events] for step in steps]
    out, back = (["swapped out B.0", "swapped out B.1"], ["swapped in B.0", "swapped in B.1"])
    check("events, by pass", events, [[], [], out, back])


@pytest.mark.task(8, 4)
def test_what_the_host_has_no_room_for_fails_alone(check):
    scheduler = vllm(7, swap_blocks=2)
    engine = simulated(scheduler, [pair("A", 6, 4), pair("B", 6, 4)])
    outputs = engine.run()
    check("passes", trace(engine.steps), [*TWO_PAIRS[:2], "A.0:1 A.1:1 xB.0 xB.1", "A.0:1 A.1:1"])
    ends = {output.sequence: (output.finish_reason, output.error) for output in outputs if output.finish_reason}
    too_small = ("error", "preempted, and the swap space is too small; raise swap_blocks")
    due = {"A.0": ("length", None), "A.1": ("length", None), "B.0": too_small, "B.1": too_small}
    check("how each sample ended", ends, due)
    scheduler.check_integrity()


def ends_early(name):
    """A model that ends this sample with its second token."""

    def execute(batch):
        ends = [span.sequence.name == name and span.sequence.output_length == 1 for span in batch.spans]
        return [Result((EOS if end else 0,) * span.samples) for end, span in zip(ends, batch.spans, strict=True)]

    return execute


@pytest.mark.task(8, 4)
def test_a_pair_of_which_one_sample_is_left_is_recomputed(check):
    asked = [pair("A", 6, 5), pair("B", 6, 5, ignore_eos=False)]
    steps = recorded(vllm(7, swap_blocks=6), asked, execute=ends_early("B.0"))
    check("passes", trace(steps)[:4], [*TWO_PAIRS[:2], "A.0:1 A.1:1 B.1:1", "A.0:1 A.1:1 !B.1"])


@pytest.mark.task(8, 3)
@pytest.mark.task(8, 5)
@pytest.mark.task(8, 6)
def test_swapped_and_recomputed_samples_equal_their_own_oracles(check):
    model = tiny(0)
    asked = [pair(name, 6, 4, temperature=1.0, seed=i) for i, name in enumerate("ABC")]
    engine = real(model, vllm(7, swap_blocks=9), asked)
    tokens = tokens_of(engine.run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("sample", "output token"))
    check("whether the samples of A differ", tokens["A.0"] != tokens["A.1"], True)
    check("whether blocks were swapped in", sum(step.swapped_in for step in engine.steps) > 0, True)


# Sharing


@pytest.mark.task(8, 6)
def test_three_samples_share_the_prompt_s_full_blocks_and_copy_only_its_last(check):
    scheduler = vllm(10)
    engine = simulated(scheduler, [request("A", 6, 4, params={"n": 3})])
    engine.step()
    engine.step()
    first, second, third = scheduler.running[0].tables
    check("distinct blocks of the prompt's first 4 tokens", len({first[0], second[0], third[0]}), 1)
    check("distinct blocks of what follows", len({first[1], second[1], third[1]}), 3)
    copied = [step.copied for step in engine.steps]
    check("blocks copied, by pass (the last of three writes in place)", copied, [0, 2])
    held = [step.reserved_tokens for step in engine.steps]
    check("places held, by pass (6 blocks, were each sample alone)", held, [2 * 4, 4 * 4])


@pytest.mark.task(8, 6)
def test_after_the_prompt_each_sample_runs_with_the_prompt_in_the_cache(check):
    scheduler = vllm(10)
    simulated(scheduler, [request("A", 6, 4, params={"n": 3})]).step()
    samples = sorted(scheduler.running[0].sequences, key=lambda sequence: sequence.name)
    check("tokens of A.0, A.1 and A.2 in the cache", [sample.computed for sample in samples], [6, 6, 6])
    check("their status", [sample.status.value for sample in samples], ["running"] * 3)


@pytest.mark.task(8, 6)
def test_samples_of_a_prompt_that_ends_a_block_copy_nothing(check):
    steps = recorded(vllm(9), [request("A", 8, 2, params={"n": 3})])
    check("blocks copied, by pass", [step.copied for step in steps], [0, 0])
    check("places held, by pass", [step.reserved_tokens for step in steps], [2 * 4, 5 * 4])


@pytest.mark.task(8, 6)
def test_a_sample_that_ends_gives_up_its_own_blocks_and_leaves_the_others_theirs(check):
    steps = recorded(vllm(7), [pair("A", 6, 4, ignore_eos=False)], execute=ends_early("A.0"))
    check("passes", trace(steps), ["A.0:6", "A.0:1 A.1:1", "A.1:1", "A.1:1"])
    check("places held, by pass", [step.reserved_tokens for step in steps], [2 * 4, 3 * 4, 2 * 4, 3 * 4])


@pytest.mark.task(8, 6)
def test_when_all_have_finished_all_blocks_are_free_and_nobody_runs(check):
    scheduler = vllm(9)
    simulated(scheduler, [pair("A", 6, 3), request("B", 5, 2)]).run()
    check("free blocks", scheduler.blocks.num_free, 9)
    check("groups that run", len(scheduler.running), 0)


@pytest.mark.task(8, 6)
def test_a_sequence_that_was_aborted_in_flight_leaves_when_its_pass_is_back(check):
    scheduler = vllm(4)
    for name in "AB":
        scheduler.add(request(name, 4, 3), now=0.0)
    batch = launch(scheduler)
    a, b = (span.sequence for span in batch.spans)
    a.finish_reason = "abort"
    scheduler.abort("A", 0.5)
    scheduler.settle(batch, [Outcome(a, batch.spans[0], (), "abort"), Outcome(b, batch.spans[1], (0,))], 1.0)
    check("groups that run", [group.request_id for group in scheduler.running], ["B"])
    check("free blocks", scheduler.blocks.num_free, 3)


@pytest.mark.task(8, 6)
@pytest.mark.parametrize("n", [2, 3])
def test_each_sample_equals_its_own_oracle(check, n):
    model = tiny(0)
    asked = [request("A", 6, 9, params={"n": n, "temperature": 1.0, "seed": 3}), request("B", 5, 7)]
    tokens = tokens_of(real(model, vllm(16), asked).run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("sample", "output token"))
