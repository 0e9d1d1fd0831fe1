"""Lesson 2, the KV cache: the same logits for a fraction of the work, and every cached row matters."""

from dataclasses import replace
from math import nan

import pytest
import torch
from harness import oracle, real, real_cache, request, simulated, tokens_of, trace
from passes import changed, compute, generate_greedily, teacher_forced, uncached_logits

from minillm.batch import Batch, Rectangle, next_span
from minillm.cache.memory import RectangleMemory, Row
from minillm.cache.rectangle import RectangleCache, attention_mask, by_row
from minillm.model.tiny import tiny
from minillm.model.transformer import ModelConfig
from minillm.schedulers.single import Single
from minillm.sequence import Sequence

COLUMNS = 80
ASKED = request("A", 24, 1)
LOGITS = ("token", "token id")

SMALL = ModelConfig(
    vocab_size=1,
    hidden_size=2,
    intermediate_size=1,
    num_layers=2,
    num_heads=1,
    kv_heads=1,
    head_dim=2,
    max_context=9,
)


def sequence_of(asked=ASKED, row=0, padding=0):
    return Sequence(asked, memory=Row(row, padding))


def fresh_cache(model, rows=1):
    """Filled with NaN: whatever is read before it is written shows."""
    return real_cache(model, RectangleMemory(rows, COLUMNS))


# Storing


def small_cache(rows=1):
    return RectangleCache(SMALL, RectangleMemory(rows, columns=4), torch.float64, fill=nan)


def entries(*numbers):
    """``[tokens, heads, 2]`` from each token's number, or from a list with one for each head."""
    return torch.tensor(numbers, dtype=torch.float64).view(len(numbers), -1, 1).repeat(1, 1, 2)


def numbers(x):
    return x[..., 0]


@pytest.mark.task(2, 1)
def test_flat_tokens_become_rows_with_their_heads_first(check):
    rows = by_row(entries([1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]), Rectangle(2, 3, 3))
    check("by row", numbers(rows), [[[1, 2, 3], [10, 20, 30]], [[4, 5, 6], [40, 50, 60]]], ("row", "head", "token"))


@pytest.mark.task(2, 1)
def test_new_tokens_are_appended_to_those_of_earlier_passes(check):
    cache = small_cache()
    for width, context, tokens in ((2, 2, [1, 2]), (1, 3, [3]), (1, 4, [4])):
        keys, values = cache.store(Rectangle(1, width, context), 0, entries(*tokens), -entries(*tokens))
        stored = list(range(1, context + 1))
        check(f"keys of a context of {context}", numbers(keys), [[stored]], axes=("row", "head", "column"))
        check(f"values of a context of {context}", numbers(-values), [[stored]], axes=("row", "head", "column"))


@pytest.mark.task(2, 1)
def test_each_layer_has_a_cache_of_its_own(check):
    cache = small_cache()
    for layer in (0, 1):
        cache.store(Rectangle(1, 1, 1), layer, entries(1 + layer), entries(10 + layer))
    keys, values = cache.store(Rectangle(1, 1, 2), 0, entries(3), entries(30))
    check("keys of layer 0", numbers(keys), [[[1, 3]]], axes=("row", "head", "column"))
    check("values of layer 0", numbers(values), [[[10, 30]]], axes=("row", "head", "column"))


@pytest.mark.task(2, 1)
def test_nothing_else_is_written(check):
    cache = small_cache(rows=2)
    cache.store(Rectangle(1, 2, 3), 1, entries(1, 2), entries(1, 2))
    empty = [nan] * 4
    for name, tensor in (("keys", cache.k), ("values", cache.v)):
        due = [[[empty], [empty]], [[[nan, 1, 2, nan]], [empty]]]
        check(f"the cache's {name}", numbers(tensor), due, axes=("layer", "row", "head", "column"))


# The mask


def drawn_mask(shape, padding):
    """One line for each query: x for a column that it looks at."""
    mask = attention_mask(shape, torch.tensor(padding).unsqueeze(1))
    return [["".join(".x"[seen] for seen in query) for query in row[0]] for row in mask.tolist()]


@pytest.mark.task(2, 2)
@pytest.mark.parametrize(
    ("width", "context", "due"),
    [(3, 3, ["x..", "xx.", "xxx"]), (1, 4, ["xxxx"]), (2, 4, ["xxx.", "xxxx"])],
    ids=["a prompt", "one token more", "two tokens more"],
)
def test_a_token_looks_at_its_own_column_and_all_before_it(check, width, context, due):
    check("mask", drawn_mask(Rectangle(1, width, context), [0]), [due], axes=("row", "query"))


@pytest.mark.task(2, 2)
def test_no_token_looks_at_the_padding_before_it_and_padding_only_at_padding(check):
    due = [["x...", "xx..", "xxx.", "xxxx"], ["x...", "xx..", "..x.", "..xx"]]
    check("mask", drawn_mask(Rectangle(2, 4, 4), [0, 2]), due, axes=("row", "query"))


@pytest.mark.task(2, 2)
def test_padding_stays_hidden_in_later_passes(check):
    check("mask", drawn_mask(Rectangle(2, 1, 5), [0, 2]), [["xxxxx"], ["..xxx"]], axes=("row", "query"))


# Attending


def attended(cache, width, context, tokens, heads=1):
    """What a pass of one row attends, where all scores are equal and these are the values."""
    shape, values = Rectangle(1, width, context), entries(*tokens)
    mask = attention_mask(shape, torch.zeros(1, 1, dtype=torch.int64))
    q = torch.zeros(width, heads, 2, dtype=torch.float64)
    return numbers(cache.attend(shape, mask, 0, q, torch.zeros_like(values), values))


@pytest.mark.task(2, 3)
def test_a_new_token_attends_to_what_earlier_passes_stored_and_to_itself(check):
    cache = small_cache()
    check("a prompt of two", attended(cache, 2, 2, [3, 5]), [[3], [4]], axes=("token", "head"))
    check("one token more", attended(cache, 1, 3, [10]), [[6]], axes=("token", "head"))
    check("and one more", attended(cache, 1, 4, [22]), [[10]], axes=("token", "head"))


@pytest.mark.task(2, 3)
def test_each_head_of_each_token_gets_its_own_answer(check):
    cache = RectangleCache(replace(SMALL, num_heads=4, kv_heads=2), RectangleMemory(1, 4), torch.float64, fill=nan)
    out = attended(cache, 2, 2, [[3, 30], [5, 50]], heads=4)
    check("four heads that share two", out, [[3, 3, 30, 30], [4, 4, 40, 40]], axes=("token", "head"))


# Laying out a pass


def lowered(sequences, rectangle, limit=None):
    """Ids, positions and rows to sample from, of a padded pass over all that these sequences lack."""
    spans = tuple(next_span(sequence, limit) for sequence in sequences)
    inputs = small_cache(rows=3).lower(Batch(spans, rectangle=rectangle))
    return inputs.token_ids, inputs.positions, inputs.sample_rows


@pytest.mark.task(2, 4)
def test_a_prompt_is_laid_out_from_position_0_and_samples_after_its_last_token(check):
    ids, positions, rows = lowered([sequence_of(request("A", 4, 1))], Rectangle(1, 4, 4))
    check("token ids", ids, [65, 72, 79, 86], axes=("token",))
    check("positions", positions, [0, 1, 2, 3], axes=("token",))
    check("rows to sample from", rows, [3])


@pytest.mark.task(2, 4)
def test_a_later_token_keeps_its_position_in_the_sequence(check):
    sequence = sequence_of(request("A", 4, 1))
    sequence.computed = 3
    ids, positions, rows = lowered([sequence], Rectangle(1, 1, 4))
    check("token ids", ids, [86], axes=("token",))
    check("positions", positions, [3], axes=("token",))
    check("rows to sample from", rows, [0])


@pytest.mark.task(2, 4)
def test_an_unfinished_prompt_samples_nothing(check):
    ids, _, rows = lowered([sequence_of(request("A", 4, 1))], Rectangle(1, 2, 2), limit=2)
    check("token ids", ids, [65, 72], axes=("token",))
    check("rows to sample from", rows, [])


@pytest.mark.task(2, 4)
def test_prompts_are_padded_on_the_left_and_count_from_their_first_token(check):
    sequences = [sequence_of(request("A", 3, 1), row=1), sequence_of(request("B", 1, 1), row=0, padding=2)]
    ids, positions, rows = lowered(sequences, Rectangle(2, 3, 3))
    check("token ids", ids, [0, 0, 66, 65, 72, 79], axes=("token",))
    check("positions", positions, [0, 0, 0, 0, 1, 2], axes=("token",))
    check("rows to sample from, span by span", rows, [5, 2])


@pytest.mark.task(2, 4)
def test_a_row_without_a_span_is_filled_with_padding(check):
    ids, positions, rows = lowered([sequence_of(request("A", 2, 1), row=1)], Rectangle(3, 2, 2))
    check("token ids", ids, [0, 0, 65, 72, 0, 0], axes=("token",))
    check("positions of row 1", positions[2:4], [0, 1], axes=("token",))
    check("rows to sample from", rows, [3])


@pytest.mark.task(2, 4)
def test_a_batch_without_a_rectangle_is_refused():
    with pytest.raises(ValueError):
        small_cache().lower(Batch((next_span(sequence_of()),)))


# The whole cache


def whole_cache(test):
    """Mark a test that judges each of this lesson's tasks."""
    for task in (1, 2, 3, 4):
        test = pytest.mark.task(2, task)(test)
    return test


@whole_cache
@pytest.mark.parametrize(
    "lengths",
    [[24], [1] * 24, [23, 1], [5, 1, 1, 9, 8]],
    ids=["at once", "token by token", "a prompt and a token", "in pieces"],
)
def test_cached_logits_equal_uncached_ones(check, lengths):
    model = tiny(0)
    logits = teacher_forced(model, fresh_cache(model), sequence_of(), lengths)
    check("logits", logits, lambda: uncached_logits(model, ASKED.prompt_token_ids), LOGITS)


@whole_cache
def test_the_cached_loop_generates_what_the_uncached_one_does(check):
    model, asked = tiny(0), request("A", 7, 20)
    tokens = tokens_of(real(model, Single(columns=27), [asked]).run())
    check("tokens", tokens, lambda: oracle(model, [asked]), axes=("request", "output token"))


@whole_cache
def test_a_row_padded_on_the_left_has_the_logits_of_its_own_tokens(check):
    model = tiny(0)
    cache = fresh_cache(model, rows=2)
    long, short = request("A", 9, 1), request("B", 4, 1)
    rows = [sequence_of(long, 0), sequence_of(short, 1, padding=5)]
    batch = Batch(tuple(map(next_span, rows)), rectangle=Rectangle(rows=2, width=9, context=9))
    inputs = cache.lower(batch)
    with torch.inference_mode():
        logits = model.logits(model(inputs.token_ids, inputs.positions, inputs.attend))
    check("logits of the long row", logits[:9], lambda: uncached_logits(model, long.prompt_token_ids), LOGITS)
    check("logits of the short row", logits[9 + 5 :], lambda: uncached_logits(model, short.prompt_token_ids), LOGITS)


# What is computed


def test_a_prefill_of_the_whole_prompt_is_followed_by_decodes_of_one_token():
    engine = simulated(Single(columns=9), [request("A", 5, 4)])
    engine.run()
    assert trace(engine.steps) == ["A5", "A1", "A1", "A1"]


def test_each_token_is_computed_once_and_the_last_one_never():
    engine = simulated(Single(columns=9), [request("A", 5, 4)])
    engine.run()
    assert sum(step.computed_tokens for step in engine.steps) == 8  # without a cache: 5 + 6 + 7 + 8 = 26
    assert [step.context_tokens for step in engine.steps] == [5, 6, 7, 8]


# A test on a model that hardly listens sees nothing.


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
