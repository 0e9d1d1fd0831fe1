"""Sampling: every row by its own parameters and its own random number, whoever shares the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from minillm.model import sampling
from minillm.model.sampling import Draw, sample, uniforms
from minillm.request import SamplingParams

EOS = 4
RANDOM_PARAMS = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_p=0.8),
    SamplingParams(seed=3, temperature=1.5, top_k=40),
    SamplingParams(seed=4, min_p=0.05),
    SamplingParams(seed=5, temperature=0.9, min_p=0.01, top_k=100, top_p=0.95, repetition_penalty=1.3),
    SamplingParams(temperature=0),
]


def draw(params: SamplingParams, index: int = 0, branch: int = 0, token_ids: tuple[int, ...] = (0,)) -> Draw:
    return Draw(params, branch, index, token_ids, frozenset({EOS}))


def token_ids(logits: torch.Tensor, draws: list[Draw]) -> list[int | None]:
    return [sampled.token_id for sampled in sample(logits, draws)]


def drawn(probabilities: list[float], draws: int = 300, **params) -> list[int | None]:
    """Tokens of so many draws from one distribution, each with the random number of its output index."""
    logits = torch.tensor(probabilities, dtype=torch.float64).log().expand(draws, -1)
    return token_ids(logits, [draw(SamplingParams(**params), index) for index in range(draws)])


# Greedy


def test_temperature_zero_takes_the_likeliest_token_and_of_equals_the_first():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 3.0]])
    assert token_ids(logits, [draw(SamplingParams(temperature=0))] * 2) == [1, 0]


def test_a_temperature_near_zero_is_greedy():
    assert set(drawn([0.3, 0.4, 0.3], temperature=1e-300)) == {1}


# Filters, on probabilities for which the kept set is plain


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": -1}, {0, 1, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.45}, {0}),
        ({"top_p": 0.55}, {0, 1}),
        ({"top_p": 0.85}, {0, 1, 2}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        # top-p is a share of what the others left, here 0.8: the first token alone reaches 0.6 of that
        ({"top_k": 2, "top_p": 0.6}, {0}),
        ({"min_p": 0.5, "top_p": 0.6}, {0}),
        # temperature comes first: it lifts the third token from 0.3 to 0.74 of the first
        ({"temperature": 4.0, "min_p": 0.7}, {0, 1, 2}),
    ],
)
def test_filters_keep(params, kept):
    assert set(drawn([0.5, 0.3, 0.15, 0.05], **params)) == kept


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_tokens_as_likely_as_the_last_one_kept_stay(params):
    assert set(drawn([0.2, 0.4, 0.2, 0.2], **params)) == {0, 1, 2, 3}


def reference(probabilities: np.ndarray, params: SamplingParams, random: float) -> int:
    """The same rules, token by token, on sorted pairs."""
    pairs = sorted(((p ** (1 / params.temperature), token) for token, p in enumerate(probabilities)), reverse=True)
    pairs = [pair for pair in pairs if pair[0] >= params.min_p * pairs[0][0]]
    pairs = pairs[: params.top_k] if params.top_k > 0 else pairs
    total, mass, nucleus = sum(weight for weight, _ in pairs), 0.0, []
    for weight, token in pairs:
        if mass < params.top_p * total:
            nucleus.append((token, weight))
        mass += weight
    target = random * sum(weight for _, weight in nucleus)
    for token, weight in sorted(nucleus):
        target -= weight
        if target < 0:
            return token
    raise AssertionError("a random number below 1 always finds a token")


def test_draws_agree_with_a_plain_reading_of_the_rules():
    generator = np.random.default_rng(0)
    for seed in range(200):
        probabilities = generator.dirichlet(np.full(60, 0.3)) + 1e-12
        params = SamplingParams(
            seed=seed,
            temperature=generator.uniform(0.3, 2),
            top_p=generator.choice([1.0, generator.uniform(0.05, 1)]),
            top_k=int(generator.choice([0, generator.integers(1, 60)])),
            min_p=generator.choice([0.0, generator.uniform(0, 0.5)]),
        )
        expected = reference(probabilities, params, uniforms([seed], [2], [seed + 5]).item())
        assert token_ids(torch.from_numpy(probabilities).log()[None], [draw(params, seed + 5, 2)]) == [expected]


def test_tokens_come_as_often_as_they_are_likely():
    counts = np.bincount(drawn([0.5, 0.3, 0.15, 0.05], draws=10_000), minlength=4)
    expected = np.array([5000, 3000, 1500, 500])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees of freedom, p = 0.001


# Random numbers


def splitmix(seed: int, branch: int, index: int) -> float:
    """The documented function in Python's unbounded integers."""
    state = 0
    for word in (seed, branch, index):
        state = ((state ^ word) + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return (state >> 11) / 2**53


def test_random_numbers_are_the_documented_function():
    triples = [(0, 0, 0), (1, 2, 3), (2**63 - 1, 7, 8191)]
    assert uniforms(*zip(*triples, strict=True)).tolist() == [splitmix(*triple) for triple in triples]


@pytest.mark.parametrize("varied", range(3), ids=["seed", "branch", "index"])
def test_random_numbers_fill_the_interval_evenly_and_neighbours_are_independent(varied):
    words = [np.full(2**16, 5), np.full(2**16, 1), np.full(2**16, 9)]
    words[varied] = np.arange(2**16)
    numbers = uniforms(*words)
    pairs, _, _ = np.histogram2d(numbers[:-1], numbers[1:], bins=16, range=((0, 1), (0, 1)))
    chi_squared = ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum()
    assert chi_squared < 330  # 255 degrees of freedom, p = 0.001
    assert 0 <= numbers.min() < 1e-3 < 1 - 1e-3 < numbers.max() < 1


def test_seed_branch_and_index_do_not_stand_for_one_another():
    numbers = uniforms(*np.indices((20, 20, 20)).reshape(3, -1))
    assert len(set(numbers.tolist())) == 20**3


# Batches


def mixed_batch(vocab: int) -> tuple[torch.Tensor, list[Draw]]:
    logits = torch.randn(24, vocab, generator=torch.Generator().manual_seed(0)) * 4
    draws = [draw(RANDOM_PARAMS[row % 6], index=row, branch=row % 3, token_ids=(1, 2, row)) for row in range(24)]
    return logits, draws


def test_a_row_draws_the_same_token_alone_and_in_any_company():
    logits, draws = mixed_batch(40_009)
    together = token_ids(logits, draws)
    assert together == [token_ids(logits[[row]], [draws[row]])[0] for row in range(24)]
    order = np.random.default_rng(1).permutation(24).tolist()
    assert token_ids(logits[order], [draws[row] for row in order]) == [together[row] for row in order]
    assert len(set(together)) > 12


def test_another_seed_branch_or_index_draws_another_sequence():
    base = drawn([0.1] * 10)
    assert drawn([0.1] * 10) == base
    assert drawn([0.1] * 10, seed=1) != base
    logits = torch.zeros(300, 10)
    assert token_ids(logits, [draw(SamplingParams(), index, branch=1) for index in range(300)]) != base


def test_half_precision_logits_are_widened():
    logits = torch.tensor([[0.0, 5.0, 1.0]], dtype=torch.bfloat16)
    assert token_ids(logits, [draw(SamplingParams(temperature=0))]) == [1]


def test_rows_and_draws_must_match():
    with pytest.raises(ValueError, match="2 rows of logits cannot serve 1 draws"):
        sample(torch.zeros(2, 4), [draw(SamplingParams())])


def test_no_rows_give_no_tokens():
    assert sample(torch.zeros(0, 4), []) == []


# Penalty and bans


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits_once():
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    positive = torch.tensor([[3.0, 1.6, 1.4]])
    assert token_ids(positive, [draw(params, token_ids=(0, 0, 0))]) == [1]
    assert token_ids(positive, [draw(params, token_ids=(0, 1))]) == [0]
    negative = torch.tensor([[-1.0, -1.9, -2.1]])
    assert token_ids(negative, [draw(params, token_ids=(0,))]) == [1]


def test_stops_are_banned_before_min_tokens():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(3,))
    assert [token_ids(logits, [draw(params, index)])[0] for index in range(3)] == [2, 2, EOS]
    assert token_ids(logits, [draw(replace(params, ignore_eos=True))]) == [2]


def test_stop_tokens_outside_the_vocabulary_ban_nothing():
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(99,))
    assert token_ids(torch.tensor([[0.0, 1.0]]), [draw(params)]) == [1]


def test_constraints_leave_the_logits_alone():
    logits = torch.ones(1, 5)
    sample(logits, [draw(SamplingParams(min_tokens=1, repetition_penalty=2.0, top_k=1))])
    assert torch.equal(logits, torch.ones(1, 5))


# Log-probabilities


def test_logprobs_are_those_of_the_raw_logits():
    probabilities = torch.tensor([[0.1, 0.2, 0.4, 0.3]], dtype=torch.float64)
    params = SamplingParams(logprobs=2, temperature=0.1, top_k=1, repetition_penalty=9.0)
    [sampled] = sample(probabilities.log(), [draw(params, token_ids=(2,))])
    assert sampled.token_id == 3
    assert sampled.logprob.logprob == pytest.approx(np.log(0.3))
    assert [token for token, _ in sampled.logprob.top] == [2, 3]
    assert [logprob for _, logprob in sampled.logprob.top] == pytest.approx(np.log([0.4, 0.3]))


def test_logprobs_zero_reports_the_chosen_token_alone_and_none_nothing():
    logits = torch.zeros(2, 4)
    zero, none = sample(logits, [draw(SamplingParams(logprobs=0)), draw(SamplingParams())])
    assert zero.logprob.logprob == pytest.approx(np.log(0.25))
    assert zero.logprob.top == ()
    assert none.logprob is None


def test_equally_likely_tokens_are_reported_in_the_order_of_their_ids():
    [sampled] = sample(torch.tensor([[1.0, 2.0, 1.0, 1.0]]), [draw(SamplingParams(temperature=0, logprobs=3))])
    assert [token for token, _ in sampled.logprob.top] == [1, 0, 2]


def test_more_logprobs_than_tokens_reports_all():
    [sampled] = sample(torch.zeros(1, 4), [draw(SamplingParams(logprobs=20))])
    assert len(sampled.logprob.top) == 4


# Rows that cannot be sampled


@pytest.mark.parametrize("params", RANDOM_PARAMS, ids=range(6))
@pytest.mark.parametrize("bad", [[float("nan"), 1, 2], [float("inf"), 1, 2], [-float("inf")] * 3])
def test_a_row_that_is_not_finite_fails_alone(bad, params):
    logits = torch.tensor([[0.0, 1.0, 9.0], bad, [9.0, 1.0, 0.0]])
    first, failed, last = sample(logits, [draw(replace(params, logprobs=1))] * 3)
    assert failed.token_id is None
    assert failed.logprob is None
    assert "the model's logits peak at" in failed.error
    assert [first, last] == sample(logits[[0, 2]], [draw(replace(params, logprobs=1))] * 2)
    assert first.error is None


def test_a_row_whose_tokens_are_all_banned_fails():
    logits = torch.full((1, 5), -torch.inf)
    logits[0, EOS] = 1.0
    [sampled] = sample(logits, [draw(SamplingParams(temperature=0, min_tokens=1))])
    assert sampled.token_id is None
    assert "min_tokens bans every token" in sampled.error


def test_a_nan_is_found_on_a_banned_token():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, torch.nan]])
    [sampled] = sample(logits, [draw(SamplingParams(temperature=0, min_tokens=1))])
    assert "the model's logits peak at nan" in sampled.error


@pytest.mark.parametrize("random", [0.0, 0.5, 1 - 2.0**-53])
def test_impossible_tokens_are_never_drawn(monkeypatch, random):
    monkeypatch.setattr(sampling, "uniforms", lambda *_: np.array([random]))
    [token_id] = drawn([0.0, 0.25, 0.25, 0.0, 0.5, 0.0], draws=1)
    assert token_id == (1 if random == 0 else 4)
