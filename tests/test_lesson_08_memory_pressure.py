"""Lesson 8, memory pressure: blocks are taken as tokens come, and given up when none is left (vLLM)."""

from collections import Counter

import pytest
from harness import EOS, POLICIES, oracle, real, recorded, request, simulated, tokens_of, trace

from minillm.batch import Result
from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.sequence import Status


def vllm(num_blocks, **options):
    return POLICIES["vllm"](num_blocks, block_size=4, **options)


def pair(name, prompt, output, **more):
    """A request for two samples."""
    return request(name, prompt, output, params={"n": 2, **more})


# Admission


def test_prompts_go_first_and_no_pass_mixes_them_with_decodes():
    steps = recorded(vllm(8), [request("A", 4, 3), request("B", 4, 2, arrival=0.5)])
    assert trace(steps) == ["A4", "B4", "A1 B1", "A1"]


@pytest.mark.parametrize(("prompt", "first"), [(8, "A4 B8"), (9, "A4")])
def test_a_prompt_enters_if_the_watermark_stays_free(prompt, first):
    steps = recorded(vllm(4, watermark=1), [request("A", 4, 1), request("B", prompt, 1)])
    assert trace(steps)[0] == first


LIMITS = [
    ({"max_num_seqs": 3}, "A5 B3 C1", "A5 B3 C1"),
    ({"max_num_seqs": 2}, "A5 B3", "three sequences"),
    ({"max_num_batched_tokens": 15}, "A5 B3 C1", "three rows of 5 tokens"),
    ({"max_num_batched_tokens": 14}, "A5 B3", "one token less"),
    ({"max_paddings": 6}, "A5 B3 C1", "2 + 4 tokens of padding"),
    ({"max_paddings": 5}, "A5 B3", "one token less"),
]


@pytest.mark.parametrize(("limit", "first", "why"), LIMITS, ids=[str(limit) for limit, *_ in LIMITS])
def test_a_prompt_pass_stops_exactly_at_each_limit(limit, first, why):
    steps = recorded(vllm(9, **limit), [request("A", 5, 1), request("B", 3, 1), request("C", 1, 1)])
    assert trace(steps)[0] == first, why


def test_the_samples_of_a_request_take_a_seat_each():
    asked = [pair("A", 4, 2), request("B", 4, 1)]
    assert trace(recorded(vllm(9, max_num_seqs=3), asked))[0] == "A.0:4 B4"
    assert trace(recorded(vllm(9, max_num_seqs=2), asked))[0] == "A.0:4"


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


# Preemption of lone sequences: recompute


def test_the_latest_arrival_is_preempted_first_and_the_waiting_end_oldest_first():
    scheduler = vllm(3)
    engine = simulated(scheduler, [request(name, 4, 6) for name in "ABC"])
    engine.step()
    engine.step()
    assert trace(engine.steps) == ["A4 B4 C4", "A1 !C !B"]
    assert [group.sequences[0].name for group in scheduler.waiting] == ["B", "C"]


def test_a_preempted_sequence_gives_up_all_blocks_and_keeps_its_tokens():
    scheduler = vllm(4)
    engine = simulated(scheduler, [request(name, 4, 6) for name in "ABC"])
    for _ in range(2):
        engine.step()
    (preempted,) = scheduler.waiting[0].sequences
    assert (preempted.memory, preempted.computed, preempted.output_length) == ([], 0, 1)
    assert preempted.status is Status.WAITING


def test_recomputation_emits_nothing_twice():
    asked = [request(name, 4, 6) for name in "ABC"]
    emitted, preempted = Counter(), 0
    for step in recorded(vllm(4), asked):
        emitted.update(dict(step.delivered))
        preempted += len(step.events)
    assert emitted == {"A": 6, "B": 6, "C": 6}
    assert preempted >= 3
    model = tiny(0)
    assert tokens_of(real(model, vllm(4), asked).run()) == oracle(model, asked)


# Preemption of samples that share blocks: swap

TWO_PAIRS = [
    "A.0:6 B.0:6",
    "A.0:1 A.1:1 B.0:1 B.1:1",
    "A.0:1 A.1:1 >B.0 >B.1",  # one block is free; two samples want two, though their last blocks have room
    "A.0:1 A.1:1",
    "B.0:1 B.1:1 <B.0 <B.1",  # the 3 blocks that come back and 2 to grow: not before A has left
    "B.0:1 B.1:1",
]


def test_a_pair_is_swapped_out_whole_and_comes_back_when_there_is_room_to_grow():
    steps = recorded(vllm(7, swap_blocks=3), [pair("A", 6, 4), pair("B", 6, 4)])
    assert trace(steps) == TWO_PAIRS
    assert [step.swapped_out for step in steps] == [0, 0, 3, 0, 0, 0]
    assert [step.swapped_in for step in steps] == [0, 0, 0, 0, 3, 0]
    assert [step.copied for step in steps] == [0, 2, 0, 0, 0, 0]


def test_no_prompt_enters_before_all_that_was_swapped_out_is_back():
    asked = [pair("A", 6, 4), pair("B", 6, 4), request("C", 4, 1, arrival=2.5)]
    steps = recorded(vllm(7, swap_blocks=3), asked)
    assert trace(steps) == [*TWO_PAIRS[:5], "C4", TWO_PAIRS[5]]


def test_a_pair_comes_back_only_if_each_sample_can_take_one_more_block():
    steps = recorded(vllm(10, swap_blocks=2), [request("A", 4, 5), request("B", 20, 5), pair("C", 6, 4)])
    while_two_blocks_are_free = ["A1 B1", "A1 B1", "A1 B1"]  # C holds 2, and wants 4
    assert trace(steps)[:2] == ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1"]
    assert trace(steps)[2:] == [*while_two_blocks_are_free, "C.0:1 C.1:1 <C.0 <C.1", "C.0:1 C.1:1", "C.0:1 C.1:1"]


def test_nobody_comes_back_in_a_pass_that_preempted():
    steps = recorded(vllm(9, swap_blocks=2), [request("A", 4, 8), request("B", 20, 7), pair("C", 6, 4)])
    assert trace(steps)[:5] == ["A4 B20 C.0:6", "A1 B1 >C.0 >C.1", *["A1 B1"] * 3]
    assert trace(steps)[5:7] == ["A1 !B", "A1 C.0:1 C.1:1 <C.0 <C.1"]  # B gave up 6 blocks, and C wants 4


def test_what_the_host_has_no_room_for_fails_alone():
    scheduler = vllm(7, swap_blocks=2)
    engine = simulated(scheduler, [pair("A", 6, 4), pair("B", 6, 4)])
    outputs = engine.run()
    assert trace(engine.steps) == [*TWO_PAIRS[:2], "A.0:1 A.1:1 xB.0 xB.1", "A.0:1 A.1:1"]
    ends = {output.sequence: (output.finish_reason, output.error) for output in outputs if output.finish_reason}
    too_small = ("error", "preempted, and the swap space is too small; raise swap_blocks")
    assert ends == {"A.0": ("length", None), "A.1": ("length", None), "B.0": too_small, "B.1": too_small}
    scheduler.check_integrity()


def test_a_pair_of_which_one_sample_is_left_is_recomputed():
    def first_sample_of_b_ends_early(batch):
        ends = [span.sequence.name == "B.0" and span.sequence.output_length == 1 for span in batch.spans]
        return [Result((EOS if end else 0,) * span.samples) for end, span in zip(ends, batch.spans, strict=True)]

    asked = [pair("A", 6, 5), pair("B", 6, 5, ignore_eos=False)]
    steps = recorded(vllm(7, swap_blocks=6), asked, execute=first_sample_of_b_ends_early)
    assert trace(steps)[:4] == [*TWO_PAIRS[:2], "A.0:1 A.1:1 B.1:1", "A.0:1 A.1:1 !B.1"]


def test_swapped_and_recomputed_samples_equal_their_own_oracles():
    model = tiny(0)
    asked = [pair(name, 6, 4, temperature=1.0, seed=i) for i, name in enumerate("ABC")]
    engine = real(model, vllm(7, swap_blocks=9), asked)
    tokens = tokens_of(engine.run())
    assert tokens == oracle(model, asked)
    assert tokens["A.0"] != tokens["A.1"]
    assert sum(step.swapped_in for step in engine.steps) > 0


# Sharing


def test_three_samples_share_the_prompts_full_blocks_and_copy_only_its_last():
    scheduler = vllm(10)
    engine = simulated(scheduler, [request("A", 6, 4, params={"n": 3})])
    engine.step()
    engine.step()
    first, second, third = scheduler.running[0].tables
    assert first[0] == second[0] == third[0]
    assert len({first[1], second[1], third[1]}) == 3
    assert [step.copied for step in engine.steps] == [0, 2]  # the last of three writes in place
    assert [step.reserved_tokens for step in engine.steps] == [2 * 4, 4 * 4]  # alone each would hold 2 blocks: 6


def test_samples_of_a_prompt_that_ends_a_block_copy_nothing():
    steps = recorded(vllm(9), [request("A", 8, 2, params={"n": 3})])
    assert [step.copied for step in steps] == [0, 0]
    assert [step.reserved_tokens for step in steps] == [2 * 4, 5 * 4]


@pytest.mark.parametrize("n", [2, 3])
def test_each_sample_equals_its_own_oracle(n):
    model = tiny(0)
    asked = [request("A", 6, 9, params={"n": n, "temperature": 1.0, "seed": 3}), request("B", 5, 7)]
    assert tokens_of(real(model, vllm(16), asked).run()) == oracle(model, asked)
