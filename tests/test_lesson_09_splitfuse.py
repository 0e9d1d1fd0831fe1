"""Lesson 9, SplitFuse: prompts cut and fused, so that every pass has the same number of tokens (DeepSpeed-FastGen)."""

import pytest
from harness import POLICIES, land, launch, oracle, real, recorded, request, simulated, tokens_of, trace

from minillm.batch import next_span
from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.sequence import Sequence


def splitfuse(num_blocks, token_budget, **options):
    return POLICIES["splitfuse"](num_blocks, block_size=4, token_budget=token_budget, **options)


def names(batch):
    return [span.sequence.name for span in batch.spans]


SIZES = [(3, 9), (18, 2), (1, 5), (25, 3), (2, 2), (5, 8), (14, 1), (7, 4)]
MIX = [request(name, *size, arrival=i * 0.7) for i, (name, size) in enumerate(zip("ABCDEFGH", SIZES, strict=True))]


# Pieces


def sequence_of(prompt, computed=0, generated=0):
    """A sequence some of whose tokens are in the cache."""
    sequence = Sequence(request("A", prompt, 9), computed=computed)
    sequence.token_ids += [0] * generated
    return sequence


PIECES = {
    "a whole prompt": (sequence_of(10), None, (0, 10, 1)),
    "the first piece of a prompt": (sequence_of(10), 4, (0, 4, 0)),
    "a piece from the middle": (sequence_of(10, computed=4), 4, (4, 4, 0)),
    "the last piece": (sequence_of(10, computed=8), 4, (8, 2, 1)),
    "a last piece of just the limit": (sequence_of(10, computed=6), 4, (6, 4, 1)),
    "a decode": (sequence_of(10, computed=12, generated=3), None, (12, 1, 1)),
    "a first piece after a reset": (sequence_of(10, generated=3), 12, (0, 12, 0)),
    "a last piece after a reset": (sequence_of(10, computed=12, generated=3), 12, (12, 1, 1)),
}


@pytest.mark.task(9, 1)
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_starts_where_the_cache_ends_and_samples_only_at_the_last_token(check, piece):
    sequence, limit, due = PIECES[piece]
    span = next_span(sequence, limit)
    check(f"start, length and samples of {piece}", (span.start, span.length, span.samples), due)


@pytest.mark.task(9, 1)
def test_the_last_piece_of_a_prompt_samples_all_branches(check):
    sequence = Sequence(request("A", 10, 9, params={"n": 3}), branches=3)
    spans = [next_span(sequence, 7), next_span(sequence, 10)]
    check("samples of a first piece, and of the whole", [span.samples for span in spans], [0, 3])


@pytest.mark.task(9, 1)
@pytest.mark.parametrize(
    ("computed", "limit", "due"),
    [
        (12, None, (4, 1, (7, 8, 9))),  # the newest token and all three drafts
        (12, 2, (2, 1, (7,))),
        (12, 1, (1, 1, ())),
        (4, 6, (6, 0, ())),  # it ends before the last token
    ],
)
def test_drafts_follow_the_last_token_as_far_as_the_limit_allows_and_cost_no_samples(check, computed, limit, due):
    sequence = sequence_of(10, computed, generated=3)
    sequence.draft_token_ids = (7, 8, 9)
    span = next_span(sequence, limit)
    check("length, samples and drafts", (span.length, span.samples, span.draft_token_ids), due)


@pytest.mark.task(9, 1)
def test_a_prompt_is_computed_once_and_its_last_piece_samples(check):
    engine = simulated(splitfuse(9, token_budget=4), [request("A", 10, 3)])
    for _ in range(5):
        engine.step()
    check("passes", trace(engine.steps), ["A4", "A4", "A2", "A1", "A1"])
    check("tokens sampled, by pass", [len(step.sampled) for step in engine.steps], [0, 0, 1, 1, 1])
    check("whether anything is left to do", engine.has_work, False)


# Passes


@pytest.mark.task(9, 4)
def test_who_is_in_a_pass_runs_and_counts_as_computing(check):
    scheduler = splitfuse(9, token_budget=4)
    for name in "AB":
        scheduler.add(request(name, 3, 2), now=0.0)
    batch = launch(scheduler)
    check("sequences in `computing`", [sequence.name for sequence in scheduler.computing], ["A", "B"])
    check("their status", [span.sequence.status.value for span in batch.spans], ["running", "running"])


@pytest.mark.task(9, 5)
def test_after_a_pass_its_tokens_are_cached_and_nobody_is_computing(check):
    scheduler = splitfuse(9, token_budget=4)
    for name in "AB":
        scheduler.add(request(name, 3, 2), now=0.0)
    batch = launch(scheduler)
    land(scheduler, batch)
    check("tokens of A and B in the cache", [span.sequence.computed for span in batch.spans], [3, 1])
    check("sequences in `computing`", [sequence.name for sequence in scheduler.computing], [])


def mixed_steps():
    """The steps of a mix of long and short prompts with a budget of 6 tokens and room for all."""
    return recorded(splitfuse(40, token_budget=6), MIX)


@pytest.mark.task(9, 2)
@pytest.mark.task(9, 3)
def test_no_pass_exceeds_the_token_budget_and_most_fill_it(check):
    totals = [step.computed_tokens for step in mixed_steps()]
    check("most tokens of a pass", max(totals), 6)
    check("whether most passes are full", totals.count(6) > len(totals) / 2, True)


@pytest.mark.task(9, 4)
def test_decodes_precede_prompts(check):
    kinds = [[span.prompt > 0 for span in step.spans] for step in mixed_steps()]
    check("passes in which a prompt precedes a decode", [index for index, k in enumerate(kinds) if k != sorted(k)], [])
    check("whether some pass has both", any(len(set(k)) == 2 for k in kinds), True)


@pytest.mark.task(9, 3)
def test_only_the_last_prompt_of_a_pass_is_cut(check):
    steps = mixed_steps()
    early = [span.sequence for step in steps for span in step.spans[:-1] if not span.samples]
    check("prompts that were cut although others followed", early, [])
    check("whether some prompt was cut", any(step.spans[-1].samples == 0 for step in steps), True)


@pytest.mark.task(9, 3)
@pytest.mark.task(9, 4)
@pytest.mark.task(9, 5)
def test_decodes_go_on_while_long_prompts_are_computed_in_pieces(check):
    steps = recorded(splitfuse(64, token_budget=8), [request("A", 5, 3), request("B", 10, 3), request("C", 4, 3)])
    check("passes", trace(steps), ["A5 B3", "A1 B7", "A1 B1 C4", "B1 C1", "C1"])


@pytest.mark.task(9, 3)
def test_short_prompts_are_fused_and_the_one_that_does_not_fit_whole_is_cut(check):
    steps = recorded(splitfuse(9, token_budget=8), [request("A", 3, 1), request("B", 3, 1), request("C", 4, 1)])
    check("passes", trace(steps), ["A3 B3 C2", "C2"])


@pytest.mark.task(9, 5)
def test_the_rest_of_a_cut_prompt_goes_before_all_other_prompts(check):
    asked = [request("A", 6, 1), request("B", 3, 1), request("C", 5, 1)]
    check("passes", trace(recorded(splitfuse(9, token_budget=5), asked)), ["A5", "A1 B3 C1", "C4"])


@pytest.mark.task(9, 3)
@pytest.mark.task(9, 4)
def test_decodes_take_their_share_of_the_budget_first(check):
    asked = [request("A", 1, 4), request("B", 1, 4), request("C", 5, 1, arrival=0.5)]
    steps = recorded(splitfuse(9, token_budget=4), asked)
    check("passes", trace(steps), ["A1 B1", "A1 B1 C2", "A1 B1 C2", "A1 B1 C1"])


@pytest.mark.task(9, 2)
@pytest.mark.task(9, 3)
def test_a_prompt_waits_while_decodes_take_the_whole_budget(check):
    asked = [request(name, 1, 3) for name in "ABCD"]
    steps = recorded(splitfuse(9, token_budget=3), asked)
    check("passes", trace(steps), ["A1 B1 C1", "A1 B1 C1", "A1 B1 C1", "D1", "D1", "D1"])


@pytest.mark.task(9, 2)
@pytest.mark.task(9, 5)
def test_more_decodes_than_the_budget_take_turns(check):
    scheduler = splitfuse(9, token_budget=2)
    for name in "ABC":
        scheduler.add(request(name, 1, 9), now=0.0)
    in_flight = [launch(scheduler), launch(scheduler)]  # A and B, then C: all three decode from here on
    passes = []
    while len(passes) < 4:
        land(scheduler, in_flight.pop(0))
        if not in_flight:
            in_flight.append(launch(scheduler))
            passes.append(" ".join(names(in_flight[0])))
    check("passes", passes, ["A B", "C A", "B C", "A B"])


@pytest.mark.task(9, 2)
@pytest.mark.parametrize("limit", [{"token_budget": 2}, {"token_budget": 99, "max_num_seqs": 2}], ids=str)
def test_decodes_that_return_from_several_passes_keep_to_budget_and_cap(check, limit):
    scheduler = splitfuse(9, **limit)
    for name in "ABC":
        scheduler.add(request(name, 1, 3), now=0.0)
    first, second = launch(scheduler), launch(scheduler)
    land(scheduler, first)
    land(scheduler, second)
    check("third pass", names(launch(scheduler)), ["A", "B"])


def decoding(scheduler, name, prompt):
    """Let the scheduler hold a sequence whose prompt is in the cache and whose first output token is next."""
    table = scheduler.blocks.allocate(prompt)
    sequence = Sequence(request(name, prompt, 9), computed=prompt, memory=table)
    sequence.token_ids.append(0)
    scheduler.decodes.append(sequence)


@pytest.mark.task(9, 2)
@pytest.mark.parametrize("limit", [{"token_budget": 2}, {"token_budget": 99, "max_num_seqs": 2}], ids=str)
def test_budget_and_cap_count_the_decodes_that_are_looked_at_and_not_those_that_run(check, limit):
    scheduler = splitfuse(3, **limit)
    for name, prompt in [("A", 4), ("B", 2), ("C", 2)]:
        decoding(scheduler, name, prompt)
    check("the pass, where A lacks a block and C is the third", names(launch(scheduler)), ["B"])
    check("decodes that are left, from the front", [sequence.name for sequence in scheduler.decodes], ["A", "C"])


@pytest.mark.task(9, 3)
def test_decodes_and_prompts_together_keep_to_the_sequence_cap(check):
    asked = [request("A", 2, 2), request("B", 2, 3), request("C", 2, 1), request("D", 2, 1)]
    steps = recorded(splitfuse(9, token_budget=99, max_num_seqs=2), asked)
    check("passes", trace(steps), ["A2 B2", "A1 B1", "B1 C2", "D2"])


# Memory


@pytest.mark.task(9, 5)
def test_when_all_have_finished_all_blocks_are_free(check):
    scheduler = splitfuse(9, token_budget=4)
    simulated(scheduler, [request("A", 10, 3), request("B", 2, 2)]).run()
    check("free blocks", scheduler.blocks.num_free, 9)


@pytest.mark.task(9, 2)
@pytest.mark.task(9, 3)
@pytest.mark.task(9, 5)
def test_three_requests_that_do_not_fit_together_share_the_blocks_without_a_reset(check):
    asked = [request("A", 7, 6), request("B", 7, 6), request("C", 3, 4)]
    passes = ["A7 B1", "A1 B6 C1", "A1 B1 C2", "A1 C1", "A1", "A1", "B1 C1", "B1 C1", "B1", "B1"]
    check("passes", trace(recorded(splitfuse(6, token_budget=8), asked)), passes)


@pytest.mark.task(9, 2)
def test_a_decode_whose_block_is_full_is_passed_over_while_a_later_one_has_room(check):
    steps = recorded(splitfuse(2, token_budget=8), [request("A", 4, 2), request("B", 2, 3)])
    check("passes", trace(steps), ["A4 B2", "B1", "B1", "A1"])


@pytest.mark.task(9, 3)
@pytest.mark.parametrize(
    ("num_blocks", "passes"), [(6, ["A4 B4", "A1 B5 C1", "A1"]), (3, ["A4", "A1", "A1", "B8", "B1", "C1"])]
)
def test_a_prompt_starts_only_if_all_of_it_has_blocks(check, num_blocks, passes):
    asked = [request("A", 4, 3), request("B", 9, 1), request("C", 1, 1)]
    check("passes", trace(recorded(splitfuse(num_blocks, token_budget=8), asked)), passes)


@pytest.mark.task(9, 3)
def test_a_piece_takes_no_blocks_for_the_rest(check):
    steps = recorded(splitfuse(9, token_budget=5), [request("A", 14, 2)])
    check("places held, by pass", [step.reserved_tokens for step in steps], [8, 12, 16, 16])


@pytest.mark.task(9, 3)
def test_a_rest_that_fits_its_own_last_block_needs_no_free_one(check):
    check("passes", trace(recorded(splitfuse(2, token_budget=5), [request("A", 6, 1)])), ["A5", "A1"])


@pytest.mark.task(9, 3)
def test_a_rest_of_one_token_without_a_block_is_passed_over(check):
    scheduler = splitfuse(5, token_budget=5)
    in_flight = []
    for asked in (request("A", 3, 9), request("B", 8, 1), request("C", 5, 1)):
        scheduler.add(asked, now=0.0)
        in_flight.append(launch(scheduler))
        if asked.id == "B":
            land(scheduler, in_flight.pop(0))
    check("passes in flight", [names(batch) for batch in in_flight], [["B"], ["A", "C"]])
    for batch in in_flight:
        land(scheduler, batch)  # B lacks 3 tokens, C 1, and A's block is full
    check("next pass, in which A takes the last block", names(launch(scheduler)), ["A", "B"])


def stuck():
    """A and B fill both blocks and want a third: the last who holds one must give it up."""
    scheduler = splitfuse(2, token_budget=8)
    engine = simulated(scheduler, [request("A", 4, 3), request("B", 4, 3), request("C", 2, 1, arrival=0.5)])
    engine.step()
    engine.step()
    engine.step()
    return scheduler, engine


@pytest.mark.task(9, 4)
def test_when_nobody_can_run_a_tick_resets_the_last_holder_and_requeues_it_at_the_tail(check):
    scheduler, engine = stuck()
    check("first passes", trace(engine.steps)[:2], ["A4 B4", "~B"])
    check("prompts that wait, from the front", [sequence.name for sequence in scheduler.prompts], ["C", "B"])
    victim = scheduler.prompts[-1]
    check("blocks of B", victim.memory, [])
    check("tokens of B that are in the cache", victim.computed, 0)
    check("tokens of B", len(victim.token_ids), 4 + 1)
    check("status of B", victim.status.value, "waiting")
    engine.run()
    check("passes", trace(engine.steps), ["A4 B4", "~B", "A1", "A1", "C2", "B5", "B1"])


@pytest.mark.task(9, 4)
def test_the_blocks_of_a_reset_sequence_are_free_for_others(check):
    scheduler = splitfuse(2, token_budget=8)
    for name in "AB":
        scheduler.add(request(name, 4, 3), now=0.0)
    land(scheduler, launch(scheduler))
    batch = scheduler.schedule(0.0)
    check("what happens to whom", [(event.kind, event.sequence.name) for event in batch.events], [("reset", "B")])
    check("free blocks", scheduler.blocks.num_free, 1)


@pytest.mark.task(9, 4)
def test_a_tick_that_resets_computes_nothing_and_takes_no_time(check):
    _, engine = stuck()
    reset = engine.steps[1]
    check("tokens computed by the reset", reset.computed_tokens, 0)
    check("tokens sampled by the reset", len(reset.sampled), 0)
    check("seconds that the reset takes", reset.end - reset.start, 0.0)


@pytest.mark.task(9, 4)
@pytest.mark.task(9, 5)
def test_a_prompt_that_was_reset_is_computed_anew_with_what_it_had_generated(check):
    steps = recorded(splitfuse(4, token_budget=8), [request("A", 7, 6), request("B", 7, 6)])
    b_has_9_tokens = ["B8", "B1", "B1", "B1", "B1"]
    check("passes", trace(steps), ["A7 B1", "A1 B6", "B1", "~B", *["A1"] * 4, *b_has_9_tokens])


@pytest.mark.task(9, 4)
def test_two_resets_in_a_row_choose_different_victims(check):
    steps = recorded(splitfuse(3, token_budget=16), [request(name, 4, 6) for name in "ABC"])
    check("sequences that were reset", [event.sequence for step in steps for event in step.events], ["C", "A"])


@pytest.mark.task(9, 4)
def test_nobody_is_reset_while_a_pass_computes_that_may_free_blocks(check):
    scheduler = splitfuse(2, token_budget=4)
    for asked in (request("A", 4, 3), request("B", 3, 5)):
        scheduler.add(asked, now=0.0)
    first, second = launch(scheduler), launch(scheduler)
    land(scheduler, first)
    check("whether A, whose block is full, waits for B", scheduler.schedule(0.0) is None, True)
    land(scheduler, second)
    check("next pass", names(launch(scheduler)), ["B"])


def test_a_request_that_needs_more_blocks_than_there_are_is_refused_and_the_others_run():
    engine = simulated(splitfuse(2, token_budget=8), [request("B", 4, 2)])
    with pytest.raises(Refused, match="needs 3 blocks and there are 2; shorten the prompt or lower max_tokens"):
        engine.add(request("A", 6, 4))
    engine.run()
    assert trace(engine.steps) == ["B4", "B1"]


@pytest.mark.task(9, 3)
@pytest.mark.task(9, 4)
@pytest.mark.task(9, 5)
@pytest.mark.parametrize(("num_blocks", "token_budget"), [(40, 6), (7, 5), (7, 64)])
def test_cuts_and_resets_leave_the_tokens_as_they_are(check, num_blocks, token_budget):
    model = tiny(0)
    tokens = tokens_of(real(model, splitfuse(num_blocks, token_budget), MIX).run())
    check("tokens", tokens, lambda: oracle(model, MIX), axes=("request", "output token"))
