"""Lesson 1, a small transformer: what its parts compute, by hand, and a model on which mistakes show."""

from dataclasses import replace
from math import log, pi, sqrt

import numpy as np
import pytest
import torch
from passes import changed, uncached_logits

from minillm.model.naive import generate, next_logits
from minillm.model.sampling import Draw, sample
from minillm.model.tiny import TINY, tiny
from minillm.model.transformer import (
    Attention,
    DecoderLayer,
    FeedForward,
    ModelConfig,
    RMSNorm,
    RopeScaling,
    Transformer,
    causal_attend,
    causal_attention,
    inverse_frequencies,
    rotate,
)
from minillm.request import SamplingParams

PROMPT = [(11 * i + 3) % 251 for i in range(24)]
GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
HIDDEN = ("token", "channel")
LOGITS = ("token", "token id")


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


# The parts


@pytest.mark.task(1, 1)
def test_rmsnorm_divides_each_token_by_its_own_root_mean_square_and_scales(check):
    norm = RMSNorm(2, eps=0.0).double()
    norm.weight.data = tensor(1, 2)
    x = tensor([1, 7], [30, 40])  # (1 + 49) / 2 is the square of 5, (900 + 1600) / 2 that of 25 * sqrt(2)
    check("normalised", norm(x), [[1 / 5, 2 * 7 / 5], [1.2 / sqrt(2), 2 * 1.6 / sqrt(2)]], axes=("token", "channel"))


@pytest.mark.task(1, 1)
def test_rmsnorm_adds_eps_under_the_root(check):
    norm = RMSNorm(2, eps=9.0).double()
    check("normalised with eps 9", norm(tensor([4, 4])), [[4 / 5, 4 / 5]], axes=("token", "channel"))


def test_rope_turns_each_pair_more_slowly_than_the_one_before():
    close(inverse_frequencies(replace(TINY, head_dim=8, rope_theta=10_000.0)), tensor(1, 0.1, 0.01, 0.001))


def test_rope_scaling_keeps_fast_pairs_and_stretches_slow_ones():
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
    close(inverse_frequencies(replace(TINY, head_dim=4, rope_theta=1e10, rope_scaling=scaling)), tensor(1, 1e-5 / 8))


@pytest.mark.task(1, 2)
def test_rope_turns_channel_i_with_channel_i_plus_half(check):
    quarter_turn_and_none = tensor([[pi / 2, 0]])
    turned = rotate(tensor([[1, 2, 3, 4]]), quarter_turn_and_none.cos(), quarter_turn_and_none.sin())
    check("turned", turned, [[[-3, 2, 1, 4]]], axes=("token", "head", "channel"))


def values_of_heads(*numbers):
    """``[tokens, heads, head_dim]`` with a head_dim of 1 from a list of heads for each token."""
    return tensor(*numbers).unsqueeze(-1)


def attended(q, k, v, scale=1.0):
    return causal_attention(values_of_heads(*q), values_of_heads(*k), values_of_heads(*v), scale).squeeze(-1)


@pytest.mark.task(1, 3)
def test_attention_averages_the_values_by_the_softmax_of_scaled_scores(check):
    out = attended(q=[[1], [2]], k=[[0], [log(3)]], v=[[4], [8]], scale=0.5)
    check("attended", out, [[4], [7]], axes=("token", "head"))  # token 1: scores 0 and log 3, weights 1/4 and 3/4


@pytest.mark.task(1, 3)
def test_a_token_looks_back_on_itself_and_all_before_it(check):
    out = attended(q=[[0], [0], [0]], k=[[0], [0], [0]], v=[[3], [5], [10]])
    check("attended by equal scores", out, [[3], [4], [6]], axes=("token", "head"))


@pytest.mark.task(1, 3)
def test_the_last_tokens_of_a_sequence_look_back_on_all_of_it(check):
    out = attended(q=[[0], [0]], k=[[0]] * 4, v=[[1], [2], [6], [11]])
    check("attended by the last two of four tokens", out, [[3], [5]], axes=("query", "head"))


@pytest.mark.task(1, 3)
def test_neighbouring_heads_share_a_key_value_head(check):
    out = attended(q=[[0] * 4] * 2, k=[[0, 0]] * 2, v=[[5, 70], [7, 90]])
    check("attended by four heads that share two", out, [[5, 5, 70, 70], [6, 6, 80, 80]], axes=("token", "head"))


def test_grouped_queries_attend_as_if_each_key_value_head_were_repeated():
    shared = tiny(0)
    repeated = Transformer(replace(TINY, kv_heads=TINY.num_heads)).double()
    state = shared.state_dict()
    for name, weight in state.items():
        if name.endswith("qkv.weight"):
            heads = weight.view(TINY.hidden_size, -1, TINY.head_dim)
            query, key_value = heads.split([TINY.num_heads, 2 * TINY.kv_heads], dim=1)
            state[name] = torch.cat([query, key_value.repeat_interleave(2, dim=1)], dim=1).flatten(1)
    repeated.load_state_dict(state)
    close(uncached_logits(repeated, PROMPT), uncached_logits(shared, PROMPT))


@pytest.mark.task(1, 3)
def test_no_token_sees_those_after_it(check):
    model = tiny(0)
    edited = uncached_logits(model, [*PROMPT[:10], 250, *PROMPT[11:]])
    check("logits before the edited token", edited[:10], lambda: uncached_logits(model, PROMPT)[:10], LOGITS)
    moved = (edited - uncached_logits(model, PROMPT)).abs().amax(dim=-1) > 1e-3
    check("tokens that notice the edited one", moved, [False] * 10 + [True] * 14, axes=("token",))


def listening(answer):
    """An ``attend`` that gives this answer, and a list of what it was called with."""
    calls = []

    def attend(*call):
        calls.append(call)
        return answer

    return attend, calls


SMALL = ModelConfig(
    vocab_size=1,
    hidden_size=2,
    intermediate_size=1,
    num_layers=1,
    num_heads=2,
    kv_heads=1,
    head_dim=2,
    max_context=1,
)


def small_attention():
    """Query heads that are once and twice the token, a key head of three times, a value head of four times it."""
    attention, unit = Attention(SMALL).double(), torch.eye(2, dtype=torch.float64)
    attention.qkv.weight.data = torch.cat([unit, 2 * unit, 3 * unit, 4 * unit], dim=1)
    attention.out.weight.data = torch.cat([unit, 10 * unit])
    return attention


QUARTER_TURN = (tensor([[0]]), tensor([[1]]))
NO_TURN = (tensor([[1]]), tensor([[0]]))


@pytest.mark.task(1, 4)
def test_queries_and_keys_are_turned_and_values_are_not(check):
    attend, calls = listening(torch.zeros(1, 2, 2, dtype=torch.float64))
    small_attention()(tensor([1, 5]), *QUARTER_TURN, 7, attend)
    [(layer, q, k, v)] = calls
    check("the layer that attend is called for", layer, 7)
    check("queries", q, [[[-5, 1], [-10, 2]]], axes=("token", "head", "channel"))
    check("keys", k, [[[-15, 3]]], axes=("token", "head", "channel"))
    check("values", v, [[[4, 20]]], axes=("token", "head", "channel"))


@pytest.mark.task(1, 4)
def test_the_answers_of_the_heads_are_laid_side_by_side_and_projected(check):
    attend, _ = listening(tensor([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    out = small_attention()(tensor([0, 0], [0, 0]), *NO_TURN, 0, attend)
    check("projected", out, [[1 + 30, 2 + 40], [5 + 70, 6 + 80]], axes=("token", "channel"))


@torch.inference_mode()
def hidden_states(model, positions):
    return model(torch.tensor(PROMPT), positions, causal_attend(TINY.head_dim**-0.5))


@pytest.mark.task(1, 2)
@pytest.mark.task(1, 4)
def test_only_the_distances_between_tokens_matter(check):
    model, positions = tiny(0), torch.arange(len(PROMPT))
    later, stretched = hidden_states(model, positions + 99), hidden_states(model, positions * 2)
    check("hidden states, 99 positions later", later, lambda: hidden_states(model, positions), HIDDEN)
    moved = (stretched - later)[1:].abs().amax(dim=-1) > 1e-3
    check("tokens that notice that all distances doubled", moved, [True] * (len(PROMPT) - 1), axes=("token",))


@pytest.mark.task(1, 5)
def test_swiglu_gates_one_projection_by_the_silu_of_another(check):
    feed_forward = FeedForward(replace(SMALL, hidden_size=1)).double()
    feed_forward.gate_up.weight.data, feed_forward.down.weight.data = tensor([log(3), 5]), tensor([2])
    out = feed_forward(tensor([1]))  # the sigmoid of log 3 is 3/4
    check("transformed", out, [[log(3) * 0.75 * 5 * 2]], axes=("token", "channel"))


def layer_that_adds(attention, feed_forward):
    """Its attention adds this many times the attended values, its feed-forward so many times what it computes."""
    layer, ones = DecoderLayer(SMALL).double(), torch.ones(4, 2, dtype=torch.float64)
    layer.attention.qkv.weight.data = torch.ones(2, 8, dtype=torch.float64)
    layer.attention.out.weight.data = attention * ones
    layer.feed_forward.gate_up.weight.data = ones[:2]
    layer.feed_forward.down.weight.data = feed_forward * ones[:1]
    return layer


@pytest.mark.task(1, 5)
def test_attention_and_feed_forward_are_added_to_what_they_read(check):
    attend, _ = listening(tensor([[1, 2], [3, 4]]))
    untouched = layer_that_adds(attention=0, feed_forward=0)(tensor([30, 40]), *NO_TURN, 0, attend)
    check("a layer whose parts add nothing", untouched, [[30, 40]], axes=("token", "channel"))
    attended = layer_that_adds(attention=1, feed_forward=0)(tensor([30, 40]), *NO_TURN, 0, attend)
    check("a layer whose attention adds 10", attended, [[40, 50]], axes=("token", "channel"))


@pytest.mark.task(1, 5)
def test_the_feed_forward_reads_what_attention_has_added(check):
    attend, _ = listening(tensor([[0, -1], [0, 0]]))
    layer = layer_that_adds(attention=30, feed_forward=1)
    out = layer(tensor([30, 30]), *NO_TURN, 0, attend)  # attention takes all away, so nothing is left to transform
    check("a layer whose attention subtracts all", out, [[0, 0]], axes=("token", "channel"))


def normed(x, weight):
    return x / np.sqrt((x**2).mean() + TINY.norm_eps) * weight


def logits_token_by_token(model, token_ids):
    """The whole decoder once more, in numpy, with no batch of anything and complex numbers that turn."""
    weights = {name.removesuffix(".weight"): parameter.numpy() for name, parameter in model.named_parameters()}
    heads, half = TINY.num_heads, TINY.head_dim // 2
    stream = [weights["embedding"][token_id] for token_id in token_ids]
    for layer in range(TINY.num_layers):
        own = {name.removeprefix(f"layers.{layer}."): weight for name, weight in weights.items()}
        keys, values = [], []
        for position, x in enumerate(stream):
            rows = (normed(x, own["attention_norm"]) @ own["attention.qkv"]).reshape(-1, TINY.head_dim)
            turn = np.exp(1j * position * TINY.rope_theta ** (-np.arange(half) / half))
            turned = (rows[:, :half] + 1j * rows[:, half:]) * turn
            keys.append(turned[heads : heads + TINY.kv_heads])
            values.append(rows[heads + TINY.kv_heads :])
            attended = []
            for head in range(heads):
                shared = head * TINY.kv_heads // heads
                scores = [(turned[head] * key[shared].conj()).real.sum() for key in keys]
                shares = np.exp(np.array(scores) / np.sqrt(TINY.head_dim))
                attended.append(shares @ [value[shared] for value in values] / shares.sum())
            middle = x + np.concatenate(attended) @ own["attention.out"]
            gate, up = np.split(normed(middle, own["feed_forward_norm"]) @ own["feed_forward.gate_up"], 2)
            stream[position] = middle + (gate / (1 + np.exp(-gate)) * up) @ own["feed_forward.down"]
    return np.stack([normed(x, weights["norm"]) @ weights["head"] for x in stream])


@pytest.mark.task(1, 1)
@pytest.mark.task(1, 2)
@pytest.mark.task(1, 3)
@pytest.mark.task(1, 4)
@pytest.mark.task(1, 5)
def test_the_decoder_computes_what_a_plain_loop_over_tokens_and_heads_does(check):
    model, generator = tiny(0), torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # the norms' weights, which are all 1 and would hide a mistake
            parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
    check("logits", uncached_logits(model, PROMPT), lambda: logits_token_by_token(model, PROMPT), LOGITS)


# Generation


def continued(model, params, branch=0, eos_token_ids=frozenset()):
    """As many tokens as asked for, each drawn from the logits of one pass over all before it."""
    token_ids = list(PROMPT)
    for index in range(params.max_tokens):
        logits = uncached_logits(model, token_ids)[-1:]
        (drawn,) = sample(logits, [Draw(params, branch, index, token_ids, eos_token_ids)])
        token_ids.append(drawn.token_id)
    return token_ids[len(PROMPT) :]


def last_logits(model, count):
    """The logits after the prompt and after each of the first greedy tokens: ``[count, vocab]``."""
    whole = [*PROMPT, *continued(model, replace(GREEDY, max_tokens=count - 1))]
    return uncached_logits(model, whole)[-count:]


@pytest.mark.task(1, 6)
def test_the_next_logits_are_those_after_the_last_token(check):
    model = tiny(0)
    check("next logits", next_logits(model, PROMPT), lambda: uncached_logits(model, PROMPT)[-1], axes=("token id",))


@pytest.mark.task(1, 6)
def test_greedy_generation_takes_the_likeliest_token_each_time(check):
    model = tiny(0)
    tokens = generate(model, PROMPT, replace(GREEDY, max_tokens=8)).token_ids
    check("greedy tokens", tokens, lambda: continued(model, replace(GREEDY, max_tokens=8)), axes=("output token",))


@pytest.mark.task(1, 6)
def test_generation_returns_the_logits_that_each_token_was_drawn_from(check):
    model = tiny(0)
    logits = generate(model, PROMPT, replace(GREEDY, max_tokens=4)).logits
    check("logits", logits, lambda: last_logits(model, 4), axes=("output token", "token id"))


@pytest.mark.task(1, 6)
def test_each_token_is_drawn_for_its_branch_and_place(check):
    model, params = tiny(0), SamplingParams(max_tokens=12, seed=5, ignore_eos=True)
    tokens = generate(model, PROMPT, params, branch=3).token_ids
    check("sampled tokens of branch 3", tokens, lambda: continued(model, params, branch=3), axes=("output token",))


@pytest.mark.task(1, 6)
def test_generation_leaves_the_prompt_as_it_was(check):
    prompt = list(PROMPT)
    generate(tiny(0), prompt, replace(GREEDY, max_tokens=2))
    check("the caller's prompt", prompt, PROMPT, axes=("token",))


@pytest.mark.task(1, 6)
@pytest.mark.parametrize(
    ("stop", "eos", "ignore_eos", "length"),
    [(1, 0, 0, 6), (1, 0, 1, 6), (0, 1, 0, 6), (0, 1, 1, 9)],
    ids=["of the request", "of the request while end tokens are ignored", "end token", "ignored end token"],
)
def test_generation_ends_with_the_first_stop_token(check, stop, eos, ignore_eos, length):
    model = tiny(0)
    sixth = continued(model, replace(GREEDY, max_tokens=6))[-1:]
    params = replace(GREEDY, max_tokens=9, stop_token_ids=tuple(sixth * stop), ignore_eos=bool(ignore_eos))
    tokens = generate(model, PROMPT, params, eos_token_ids=frozenset(sixth * eos)).token_ids
    check(
        "tokens where the sixth is a stop token", tokens, lambda: continued(model, GREEDY)[:length], ("output token",)
    )


@pytest.mark.task(1, 6)
def test_no_end_token_is_drawn_before_min_tokens(check):
    model, params = tiny(0), replace(GREEDY, max_tokens=9, min_tokens=9, ignore_eos=False)
    sixth = frozenset(continued(model, replace(GREEDY, max_tokens=6))[-1:])
    tokens = generate(model, PROMPT, params, eos_token_ids=sixth).token_ids
    check(
        "tokens where the sixth would be an end token",
        tokens,
        lambda: continued(model, params, eos_token_ids=sixth),
        axes=("output token",),
    )


@pytest.mark.task(1, 6)
def test_the_repetition_penalty_counts_prompt_and_output(check):
    model, params = tiny(0), replace(GREEDY, max_tokens=8, repetition_penalty=2.0)
    tokens = generate(model, PROMPT, params).token_ids
    check("tokens with a penalty", tokens, lambda: continued(model, params), axes=("output token",))


@pytest.mark.task(1, 6)
def test_generation_fails_where_no_token_can_be_drawn():
    model = tiny(0)
    model.head.weight.data[:] = torch.nan
    with pytest.raises(FloatingPointError):
        generate(model, PROMPT, GREEDY)


def drawn(keys):
    """The tokens of equally likely ones that come out for each (seed, branch, output index)."""
    draws = [Draw(SamplingParams(seed=seed), branch, index, token_ids=[]) for seed, branch, index in keys]
    return [sampled.token_id for sampled in sample(torch.zeros(len(draws), 10_000, dtype=torch.float64), draws)]


def test_a_sampled_token_is_a_function_of_seed_branch_and_output_index():
    keys = [(seed, branch, index) for seed in range(3) for branch in range(3) for index in range(3)]
    together = drawn(keys)
    assert [drawn([key])[0] for key in keys] == together
    assert drawn(keys[::-1]) == together[::-1]
    assert len(set(together)) >= 25


# A test on a model that hardly listens sees nothing.


@pytest.mark.parametrize("seed", range(5))
def test_the_tiny_model_is_sensitive_to_an_early_token(seed):
    model = tiny(seed)
    tokens = generate(model, PROMPT, GREEDY).token_ids
    assert len(set(tokens)) >= 10
    edited = generate(model, [PROMPT[0], 250, *PROMPT[2:]], GREEDY).token_ids
    assert changed(tokens, edited) >= 1 / 2
