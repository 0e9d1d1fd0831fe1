"""Lesson 2, the KV cache: the same logits for a fraction of the work, and every cached row matters."""

import pytest
import torch
from harness import real, real_cache, request, simulated, tokens_of, trace
from passes import changed, compute, generate_greedily, teacher_forced, uncached_logits

from minillm.batch import Batch, Rectangle, next_span
from minillm.cache.memory import RectangleMemory, Row
from minillm.model.naive import generate
from minillm.model.tiny import tiny
from minillm.schedulers.single import Single
from minillm.sequence import Sequence

COLUMNS = 80
ASKED = request("A", 24, 1)


def sequence_of(asked=ASKED, row=0, padding=0):
    return Sequence(asked, memory=Row(row, padding))


def fresh_cache(model, rows=1):
    """Filled with NaN: whatever is read before it is written shows."""
    return real_cache(model, RectangleMemory(rows, COLUMNS))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("lengths", [[24], [1] * 24, [23, 1], [5, 1, 1, 9, 8]], ids=str)
def test_cached_logits_equal_uncached_ones(lengths):
    model = tiny(0)
    logits = teacher_forced(model, fresh_cache(model), sequence_of(), lengths)
    close(logits, uncached_logits(model, ASKED.prompt_token_ids))


def test_the_cached_loop_generates_what_the_uncached_one_does():
    model = tiny(0)
    asked = request("A", 7, 20)
    engine = real(model, Single(columns=27), [asked])
    assert tokens_of(engine.run())["A"] == generate(model, list(asked.prompt_token_ids), asked.params).token_ids


def test_a_prefill_of_the_whole_prompt_is_followed_by_decodes_of_one_token():
    engine = simulated(Single(columns=9), [request("A", 5, 4)])
    engine.run()
    assert trace(engine.steps) == ["A5", "A1", "A1", "A1"]


def test_each_token_is_computed_once_and_the_last_one_never():
    engine = simulated(Single(columns=9), [request("A", 5, 4)])
    engine.run()
    assert sum(step.computed_tokens for step in engine.steps) == 8  # without a cache: 5 + 6 + 7 + 8 = 26
    assert [step.context_tokens for step in engine.steps] == [5, 6, 7, 8]


def test_a_row_padded_on_the_left_has_the_logits_of_its_own_tokens():
    model = tiny(0)
    cache = fresh_cache(model, rows=2)
    long, short = request("A", 9, 1), request("B", 4, 1)
    rows = [sequence_of(long, 0), sequence_of(short, 1, padding=5)]
    batch = Batch(tuple(map(next_span, rows)), rectangle=Rectangle(rows=2, width=9, context=9))
    inputs = cache.lower(batch)
    with torch.inference_mode():
        logits = model.logits(model(inputs.token_ids, inputs.positions, inputs.attend))
    close(logits[:9], uncached_logits(model, long.prompt_token_ids))
    close(logits[9 + 5 :], uncached_logits(model, short.prompt_token_ids))


def lose_a_row(cache):
    """Token 5 was never stored."""
    cache.k[:, 0, :, 5] = 0
    cache.v[:, 0, :, 5] = 0


def swap_two_values(cache):
    """The values of tokens 5 and 6 changed places."""
    cache.v[:, 0, :, [5, 6]] = cache.v[:, 0, :, [6, 5]]


def answer(model, damage):
    cache, sequence = fresh_cache(model), sequence_of()
    compute(model, cache, sequence, 23)
    damage(cache)
    return generate_greedily(model, cache, sequence, 48)


@pytest.mark.parametrize("seed", range(5))
def test_one_damaged_row_changes_at_least_half_of_what_follows(seed):
    model = tiny(seed)
    whole = answer(model, damage=lambda cache: None)
    for damage in (lose_a_row, swap_two_values):
        assert changed(whole, answer(model, damage)) >= 1 / 2
