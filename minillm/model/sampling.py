"""From logits to tokens: greedy, or one random number through the inverse of a filtered distribution.

The order of the steps is that of vLLM's V1 sampler (``vllm/v1/sample/sampler.py``): banned tokens, repetition penalty,
temperature, min-p, top-k, top-p, draw. Log-probabilities are those of the raw logits, before all of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from minillm.batch import TokenLogprob
from minillm.request import SamplingParams

Row = NDArray[np.floating[Any]]
"""One number for each token of the vocabulary: ``[vocab]``."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw: by which rules, for which branch, as which of its output (from 0), after which tokens.

    ``token_ids`` is the sequence so far, prompt and output, which the repetition penalty discourages.
    """

    params: SamplingParams
    branch: int
    output_index: int
    token_ids: Sequence[int]
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token, with its log-probability where the parameters ask for it; or no token, and the error."""

    token_id: int | None
    logprob: TokenLogprob | None = None
    error: str | None = None


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[Sampled]:
    """One token for each row of logits ``[rows, vocab]``, which may lie on any device.

    A row's token depends on that row and its draw alone, never on the rest of the batch. A row of which no token can
    be drawn (NaN, +inf, nothing above -inf, everything banned) gets an error and disturbs no other. Raises ValueError
    when rows and draws differ in number.
    """
    if len(logits) != len(draws):
        raise ValueError(f"{len(logits)} rows of logits cannot serve {len(draws)} draws; give one draw for each row")
    if not draws:
        return []
    rows = logits.detach().to("cpu", torch.promote_types(logits.dtype, torch.float32)).numpy()
    likeliest = rows.argmax(-1).tolist()
    seeds, branches = [draw.params.seed for draw in draws], [draw.branch for draw in draws]
    random = uniforms(seeds, branches, [draw.output_index for draw in draws]).tolist()
    return [_sample_row(*row) for row in zip(rows, likeliest, draws, random, strict=True)]


def uniforms(seeds: ArrayLike, branches: ArrayLike, indices: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1), each a pure function of its seed, branch and output index; ``[draws]`` each.

    The three are absorbed one after the other by the mixing function of SplitMix64 (Steele, Lea and Flood 2014,
    section 3), a bijection of 64 bits in which every input bit sways every output bit. The upper 53 bits of the last
    state make the number.
    """
    state = np.zeros(1, np.uint64)
    for words in (seeds, branches, indices):
        state = _mixed(state ^ np.asarray(words, np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _sample_row(logits: Row, likeliest: int, draw: Draw, random: float) -> Sampled:
    """Rows are sampled one by one: a row fits the processor's cache, and cannot see its neighbours."""
    if not np.isfinite(logits[likeliest]):  # NumPy takes a NaN for the largest number
        peak = logits[likeliest]
        return Sampled(None, error=f"the model's logits peak at {peak}; check the weights, or use a wider dtype")
    scores = _constrained(logits, draw)
    if scores is not logits:
        likeliest = int(scores.argmax())
    if not np.isfinite(scores[likeliest]):
        return Sampled(None, error="min_tokens bans every token that the model holds possible; lower it")
    token_id = likeliest if draw.params.greedy else _draw(scores, draw.params, random)
    return Sampled(token_id, _logprob(logits, token_id, draw.params.logprobs))


def _constrained(logits: Row, draw: Draw) -> Row:
    """Logits after bans and repetition penalty: the given array itself when there are none."""
    bans, penalises = draw.output_index < draw.params.min_tokens, draw.params.repetition_penalty != 1
    if not bans and not penalises:
        return logits
    scores = logits.copy()
    if bans:
        _ban(scores, draw)
    if penalises:
        _penalise(scores, draw)
    return scores


def _ban(scores: Row, draw: Draw) -> None:
    """Rule out, in place, every token that would end the output before ``min_tokens``."""
    ends = draw.eos_token_ids.union(draw.params.stop_token_ids)
    scores[[token_id for token_id in ends if token_id < len(scores)]] = -np.inf


def _penalise(scores: Row, draw: Draw) -> None:
    """Discourage, in place, tokens that occurred (Keskar et al. 2019, section 4.1).

    The paper divides every logit, which would favour a token with a negative one; like Hugging Face and vLLM we
    multiply those.
    """
    seen = np.asarray(draw.token_ids, np.int64)
    values, penalty = scores[seen], draw.params.repetition_penalty
    scores[seen] = np.where(values > 0, values / penalty, values * penalty)


def _draw(scores: Row, params: SamplingParams, random: float) -> int:
    """The first token, by id, whose cumulative weight exceeds the random number's share of the whole."""
    cumulative = _filtered(_weights(scores, params.temperature), params).cumsum()
    return int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))


def _weights(scores: Row, temperature: float) -> Row:
    """Each token's probability divided by the likeliest one's, in float64: the likeliest weighs 1."""
    with np.errstate(over="ignore"):  # at a temperature near 0 all others weigh nothing
        weights: Row = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return weights


def _filtered(weights: Row, params: SamplingParams) -> Row:
    """Zero, in place, what min-p, top-k and top-p leave out, in this order.

    Each filter is a floor under the weights. Tokens as likely as the last one kept stay too, so ties need no order.
    """
    if params.min_p > 0:
        weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < np.partition(weights, -params.top_k)[-params.top_k]] = 0
    if params.top_p < 1:
        weights[weights < _nucleus_floor(weights, params.top_p)] = 0
    return weights


def _nucleus_floor(weights: Row, share: float) -> float:
    """Weight of the token with which the likeliest ones reach their share of the mass (Holtzman et al. 2020, 3.1).

    Tokens so light that all of them together could not fill the rest are left out of the sort.
    """
    total = weights.sum()
    descending = np.sort(weights[weights * len(weights) > (1 - share) * total])[::-1]
    reached = np.searchsorted(descending.cumsum(), share * total)
    return float(descending[min(reached, len(descending) - 1)])


def _logprob(logits: Row, token_id: int, count: int | None) -> TokenLogprob | None:
    """Log-probabilities under raw logits of a token and of the ``count`` likeliest; None asks for none."""
    if count is None:
        return None
    shifted = logits.astype(np.float64) - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    top = _likeliest(logits, min(count, len(logits)))
    return TokenLogprob(float(logprobs[token_id]), tuple(zip(top.tolist(), logprobs[top].tolist(), strict=True)))


def _likeliest(logits: Row, count: int) -> NDArray[np.intp]:
    """Ids of the ``count`` likeliest tokens, the likeliest first, equally likely ones by id."""
    if count == 0:
        return np.empty(0, np.intp)
    ids = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return ids[np.argsort(-logits[ids], kind="stable")][:count]
