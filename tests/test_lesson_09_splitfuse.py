"""Lesson 9, SplitFuse: prompts cut and fused, so that every pass has the same number of tokens (DeepSpeed-FastGen)."""

import pytest
from harness import POLICIES, land, launch, oracle, real, recorded, request, simulated, tokens_of, trace

from minillm.model.tiny import tiny
from minillm.scheduler import Refused
from minillm.sequence import Status


def splitfuse(num_blocks, token_budget, **options):
    return POLICIES["splitfuse"](num_blocks, block_size=4, token_budget=token_budget, **options)


def names(batch):
    return [span.sequence.name for span in batch.spans]


SIZES = [(3, 9), (18, 2), (1, 5), (25, 3), (2, 2), (5, 8), (14, 1), (7, 4)]
MIX = [request(name, *size, arrival=i * 0.7) for i, (name, size) in enumerate(zip("ABCDEFGH", SIZES, strict=True))]


@pytest.fixture(scope="module")
def mixed():
    """The steps of a mix of long and short prompts with a budget of 6 tokens and room for all."""
    return recorded(splitfuse(40, token_budget=6), MIX)


def test_no_pass_exceeds_the_token_budget_and_most_fill_it(mixed):
    totals = [step.computed_tokens for step in mixed]
    assert max(totals) == 6
    assert totals.count(6) > len(totals) / 2


def test_decodes_precede_prompts(mixed):
    for step in mixed:
        kinds = [span.prompt > 0 for span in step.spans]
        assert kinds == sorted(kinds)
    assert any(len({span.prompt > 0 for span in step.spans}) == 2 for step in mixed)


def test_only_the_last_prompt_of_a_pass_is_cut(mixed):
    assert all(span.samples == 1 for step in mixed for span in step.spans[:-1])
    assert any(step.spans[-1].samples == 0 for step in mixed)


def test_a_prompt_is_computed_once_and_its_last_piece_samples():
    steps = recorded(splitfuse(9, token_budget=4), [request("A", 10, 3)])
    assert trace(steps) == ["A4", "A4", "A2", "A1", "A1"]
    assert [step.sampled for step in steps] == [(), (), (("A", 1),), (("A", 1),), (("A", 1),)]


def test_short_prompts_are_fused_and_the_one_that_does_not_fit_whole_is_cut():
    steps = recorded(splitfuse(9, token_budget=8), [request("A", 3, 1), request("B", 3, 1), request("C", 4, 1)])
    assert trace(steps) == ["A3 B3 C2", "C2"]


def test_the_rest_of_a_cut_prompt_goes_before_all_other_prompts():
    asked = [request("A", 6, 1), request("B", 3, 1), request("C", 5, 1)]
    assert trace(recorded(splitfuse(9, token_budget=5), asked)) == ["A5", "A1 B3 C1", "C4"]


def test_decodes_take_their_share_of_the_budget_first():
    asked = [request("A", 1, 4), request("B", 1, 4), request("C", 5, 1, arrival=0.5)]
    assert trace(recorded(splitfuse(9, token_budget=4), asked)) == ["A1 B1", "A1 B1 C2", "A1 B1 C2", "A1 B1 C1"]


def test_more_decodes_than_the_budget_take_turns():
    asked = [request("A", 1, 3), request("B", 1, 3), request("C", 1, 3)]
    steps = recorded(splitfuse(9, token_budget=3), [*asked, request("D", 1, 3)])
    assert trace(steps) == ["A1 B1 C1", "A1 B1 C1", "A1 B1 C1", "D1", "D1", "D1"]


@pytest.mark.parametrize("limit", [{"token_budget": 2}, {"token_budget": 99, "max_num_seqs": 2}], ids=str)
def test_decodes_that_return_from_several_passes_keep_to_budget_and_cap(limit):
    scheduler = splitfuse(9, **limit)
    for name in "ABC":
        scheduler.add(request(name, 1, 3), now=0.0)
    first, second = launch(scheduler), launch(scheduler)
    land(scheduler, first)
    land(scheduler, second)
    assert names(launch(scheduler)) == ["A", "B"]


def test_decodes_and_prompts_together_keep_to_the_sequence_cap():
    asked = [request("A", 2, 2), request("B", 2, 3), request("C", 2, 1), request("D", 2, 1)]
    steps = recorded(splitfuse(9, token_budget=99, max_num_seqs=2), asked)
    assert trace(steps) == ["A2 B2", "A1 B1", "B1 C2", "D2"]


# Memory


def test_a_decode_whose_block_is_full_is_passed_over_while_a_later_one_has_room():
    steps = recorded(splitfuse(2, token_budget=8), [request("A", 4, 2), request("B", 2, 3)])
    assert trace(steps) == ["A4 B2", "B1", "B1", "A1"]


def test_a_prompt_starts_only_if_all_of_it_has_blocks():
    asked = [request("A", 4, 3), request("B", 9, 1), request("C", 1, 1)]
    assert trace(recorded(splitfuse(6, token_budget=8), asked)) == ["A4 B4", "A1 B5 C1", "A1"]
    assert trace(recorded(splitfuse(3, token_budget=8), asked)) == ["A4", "A1", "A1", "B8", "B1", "C1"]


def test_a_rest_that_fits_its_own_last_block_needs_no_free_one():
    assert trace(recorded(splitfuse(2, token_budget=5), [request("A", 6, 1)])) == ["A5", "A1"]


def test_a_rest_of_one_token_without_a_block_is_passed_over():
    scheduler = splitfuse(5, token_budget=5)
    in_flight = []
    for asked in (request("A", 3, 9), request("B", 8, 1), request("C", 5, 1)):
        scheduler.add(asked, now=0.0)
        in_flight.append(launch(scheduler))
        if asked.id == "B":
            land(scheduler, in_flight.pop(0))
    assert [names(batch) for batch in in_flight] == [["B"], ["A", "C"]]  # B lacks 3 tokens, C 1, and A's block is full
    for batch in in_flight:
        land(scheduler, batch)
    assert names(launch(scheduler)) == ["A", "B"]  # A took the last block


def stuck():
    """A and B fill both blocks and want a third: the last who holds one must give it up."""
    scheduler = splitfuse(2, token_budget=8)
    engine = simulated(scheduler, [request("A", 4, 3), request("B", 4, 3), request("C", 2, 1, arrival=0.5)])
    engine.step()
    engine.step()
    engine.step()
    return scheduler, engine


def test_when_nobody_can_run_a_tick_resets_the_last_holder_and_requeues_it_at_the_tail():
    scheduler, engine = stuck()
    assert trace(engine.steps)[:2] == ["A4 B4", "~B"]
    assert [sequence.name for sequence in scheduler.prompts] == ["C", "B"]
    victim = scheduler.prompts[-1]
    assert (victim.memory, victim.computed, victim.output_length) == ([], 0, 1)
    assert victim.status is Status.WAITING
    engine.run()
    assert trace(engine.steps) == ["A4 B4", "~B", "A1", "A1", "C2", "B5", "B1"]


def test_a_tick_that_resets_computes_nothing_and_takes_no_time():
    _, engine = stuck()
    reset = engine.steps[1]
    assert (reset.computed_tokens, reset.sampled, reset.end - reset.start) == (0, (), 0.0)


def test_two_resets_in_a_row_choose_different_victims():
    steps = recorded(splitfuse(3, token_budget=16), [request(name, 4, 6) for name in "ABC"])
    assert [event.sequence for step in steps for event in step.events] == ["C", "A"]


def test_a_request_that_needs_more_blocks_than_there_are_is_refused_and_the_others_run():
    engine = simulated(splitfuse(2, token_budget=8), [request("B", 4, 2)])
    with pytest.raises(Refused, match="needs 3 blocks and there are 2; shorten the prompt or lower max_tokens"):
        engine.add(request("A", 6, 4))
    engine.run()
    assert trace(engine.steps) == ["B4", "B1"]


@pytest.mark.parametrize(("num_blocks", "token_budget"), [(40, 6), (7, 5), (7, 64)])
def test_cuts_and_resets_leave_the_tokens_as_they_are(num_blocks, token_budget):
    model = tiny(0)
    assert tokens_of(real(model, splitfuse(num_blocks, token_budget), MIX).run()) == oracle(model, MIX)
