"""Lesson 1, a small transformer: what its parts compute, by hand, and a model on which mistakes show."""

from dataclasses import replace
from math import log, pi

import numpy as np
import pytest
import torch
from passes import changed, uncached_logits

from minillm.model.naive import generate
from minillm.model.sampling import Draw, sample
from minillm.model.tiny import TINY, tiny
from minillm.model.transformer import (
    FeedForward,
    ModelConfig,
    RMSNorm,
    RopeScaling,
    Transformer,
    causal_attend,
    inverse_frequencies,
    rotate,
)
from minillm.request import SamplingParams

PROMPT = [(11 * i + 3) % 251 for i in range(24)]
GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


# The parts


def test_rmsnorm_divides_by_the_root_of_the_mean_square_and_scales():
    norm = RMSNorm(2, eps=0.0).double()
    norm.weight.data = tensor(1, 2)
    close(norm(tensor([1, 7])), tensor([1 / 5, 2 * 7 / 5]))  # (1 + 49) / 2 is the square of 5


def test_rmsnorm_adds_eps_under_the_root():
    close(RMSNorm(2, eps=9.0).double()(tensor([4, 4])), tensor([4 / 5, 4 / 5]))


def test_rope_turns_channel_i_with_channel_i_plus_half():
    quarter_turn_and_none = tensor(pi / 2, 0)
    turned = rotate(tensor([[1, 2, 3, 4]]), quarter_turn_and_none.cos(), quarter_turn_and_none.sin())
    close(turned, tensor([[-3, 2, 1, 4]]))


def test_rope_turns_each_pair_more_slowly_than_the_one_before():
    close(inverse_frequencies(replace(TINY, head_dim=8, rope_theta=10_000.0)), tensor(1, 0.1, 0.01, 0.001))


def test_rope_scaling_keeps_fast_pairs_and_stretches_slow_ones():
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
    close(inverse_frequencies(replace(TINY, head_dim=4, rope_theta=1e10, rope_scaling=scaling)), tensor(1, 1e-5 / 8))


@torch.inference_mode()
def test_only_the_distances_between_tokens_matter():
    model = tiny(0)
    positions = torch.arange(len(PROMPT))
    attend = causal_attend(TINY.head_dim**-0.5)
    hidden, later, stretched = (
        model(torch.tensor(PROMPT), p, attend) for p in (positions, positions + 99, positions * 2)
    )
    torch.testing.assert_close(later, hidden, rtol=0, atol=1e-9)
    assert (stretched - hidden)[1:].abs().amax(dim=-1).min() > 1e-3


def test_attention_averages_the_values_by_the_softmax_of_scaled_scores():
    attend = causal_attend(scale=0.5)
    q, k, v = tensor(1, 2).view(2, 1, 1), tensor(0, log(3)).view(2, 1, 1), tensor(4, 8).view(2, 1, 1)
    close(attend(0, q, k, v), tensor(4, 7).view(2, 1, 1))  # the second token: scores 0 and log 3, weights 1/4 and 3/4


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


def test_swiglu_gates_one_projection_by_the_silu_of_another():
    one = ModelConfig(
        1, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1, kv_heads=1, head_dim=2, max_context=1
    )
    feed_forward = FeedForward(one).double()
    feed_forward.gate_up.weight.data, feed_forward.down.weight.data = tensor([log(3), 5]), tensor([2])
    close(feed_forward(tensor([1])), tensor([log(3) * 0.75 * 5 * 2]))  # the sigmoid of log 3 is 3/4


def test_no_token_sees_those_after_it():
    model = tiny(0)
    logits = uncached_logits(model, PROMPT)
    edited = uncached_logits(model, [*PROMPT[:10], 250, *PROMPT[11:]])
    close(edited[:10], logits[:10])
    assert (edited[10:] - logits[10:]).abs().amax(dim=-1).min() > 1e-3


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


def test_the_decoder_computes_what_a_plain_loop_over_tokens_and_heads_does():
    model, generator = tiny(0), torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # the norms' weights, which are all 1 and would hide a mistake
            parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
    expected = torch.from_numpy(logits_token_by_token(model, PROMPT))
    torch.testing.assert_close(uncached_logits(model, PROMPT), expected, rtol=0, atol=1e-9)


# Generation


def test_greedy_generation_takes_the_likeliest_token_each_time():
    model = tiny(0)
    generated = generate(model, PROMPT, replace(GREEDY, max_tokens=8))
    logits = uncached_logits(model, PROMPT + generated.token_ids)[len(PROMPT) - 1 : -1]
    assert generated.token_ids == logits.argmax(-1).tolist()
    torch.testing.assert_close(generated.logits, logits, rtol=0, atol=1e-9)


def test_generation_ends_with_the_first_stop_token():
    model = tiny(0)
    tokens = generate(model, PROMPT, GREEDY).token_ids
    first = tokens.index(tokens[5])
    assert generate(model, PROMPT, replace(GREEDY, stop_token_ids=(tokens[5],))).token_ids == tokens[: first + 1]


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
