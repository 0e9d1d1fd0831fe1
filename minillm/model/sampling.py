"""From logits to tokens: greedy, or one random number through the inverse of a filtered distribution.

The order of the steps is that of vLLM's V1 sampler (``vllm/v1/sample/sampler.py``): banned tokens, repetition penalty,
temperature, min-p, top-k, top-p, draw. Log-probabilities are those of the raw logits, before all of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from minillm.batch import TokenLogprob
from minillm.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw: by which rules, for which branch, and as which token of its output (from 0).

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
    """One token for each row of logits ``[rows, vocab]``.

    A row's token depends on that row and its draw alone, never on the rest of the batch. A row of which no token can
    be drawn (NaN, +inf, nothing above -inf, everything banned) gets an error and disturbs no other.
    """
    if len(logits) != len(draws):
        raise ValueError(f"{len(logits)} rows of logits cannot serve {len(draws)} draws; give one draw for each row")
    if not draws:
        return []
    scores = _constrained(logits, draws)
    peaks, likeliest = scores.max(dim=-1)  # a NaN anywhere in a row is its maximum
    errors = [_error(raw, peak) for raw, peak in zip(logits.amax(-1).tolist(), peaks.tolist(), strict=True)]
    token_ids = likeliest.tolist()
    random = [row for row, error in enumerate(errors) if error is None and not draws[row].params.greedy]
    for row, token_id in zip(random, _draw(scores[random], [draws[row] for row in random]), strict=True):
        token_ids[row] = token_id
    return [
        Sampled(None, error=error) if error else Sampled(token_id, _logprob(row, token_id, draw.params.logprobs))
        for row, draw, token_id, error in zip(logits, draws, token_ids, errors, strict=True)
    ]


def uniforms(seeds: ArrayLike, branches: ArrayLike, indices: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1), each a pure function of its seed, branch and output index; arguments broadcast.

    The three are absorbed one after the other by SplitMix64's mixing function (Steele, Lea and Flood 2014, figure 17,
    variant 13 of Stafford's constants), a bijection in which each input bit flips each output bit with probability
    near one half. The upper 53 bits make the number.
    """
    state: NDArray[np.uint64] = np.zeros(1, np.uint64)
    for word in (seeds, branches, indices):
        state = _mixed(state ^ np.asarray(word, np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _error(raw_peak: float, peak: float) -> str | None:
    """Why no token can be drawn from a row with these maxima, before and after bans and penalty."""
    if not np.isfinite(raw_peak):
        return f"the model's logits peak at {raw_peak}, which is not finite; check the weights, or use a wider dtype"
    if not np.isfinite(peak):
        return f"after bans and repetition_penalty the logits peak at {peak}; lower min_tokens or the penalty"
    return None


def _constrained(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits after bans and repetition penalty: the given tensor itself when there are none."""
    banned = {row: draw for row, draw in enumerate(draws) if draw.output_index < draw.params.min_tokens}
    penalised = {row: draw for row, draw in enumerate(draws) if draw.params.repetition_penalty != 1}
    if not banned and not penalised:
        return logits
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row, draw in banned.items():
        _ban(scores[row], draw)
    for row, draw in penalised.items():
        _penalise(scores[row], draw)
    return scores


def _ban(scores: Tensor, draw: Draw) -> None:
    """Rule out, in place, every token that would end the output before ``min_tokens``. scores ``[vocab]``."""
    ends = draw.eos_token_ids.union(draw.params.stop_token_ids)
    scores[[token_id for token_id in ends if token_id < len(scores)]] = -torch.inf


def _penalise(scores: Tensor, draw: Draw) -> None:
    """Discourage, in place, tokens that occurred (Keskar et al. 2019, section 4.1, as mended by Hugging Face).

    The paper divides every logit, which would favour a negative one; those are multiplied. scores ``[vocab]``.
    """
    seen = torch.tensor(draw.token_ids, dtype=torch.int64, device=scores.device)
    values, penalty = scores[seen], draw.params.repetition_penalty
    scores[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _draw(scores: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Temperature, filters, and the first token, by id, at which the cumulative weight passes the random number.

    scores ``[rows, vocab]``, each row with a finite maximum. Weights are probabilities over that of the likeliest
    token, in float64 on the host.
    """
    params = [draw.params for draw in draws]
    scores = scores.to("cpu", torch.float64)
    temperatures = _column([p.temperature for p in params])
    weights = ((scores - scores.amax(-1, keepdim=True)) / temperatures).exp()
    _filter(weights, params)
    cumulative = weights.cumsum(-1)
    random = uniforms([p.seed for p in params], [d.branch for d in draws], [d.output_index for d in draws])
    targets = torch.from_numpy(random)[:, None] * cumulative[:, -1:]
    token_ids: list[int] = torch.searchsorted(cumulative, targets, right=True).squeeze(1).tolist()
    return token_ids


def _filter(weights: Tensor, params: Sequence[SamplingParams]) -> None:
    """Zero, in place, what min-p, top-k and top-p leave out, in this order. weights ``[rows, vocab]``, at most 1.

    Each filter is a floor. Tokens as likely as the last one kept stay too, so that ties need no order.
    """
    if any(p.min_p for p in params):
        weights[weights < _column([p.min_p for p in params])] = 0
    top_k = [row for row, p in enumerate(params) if 0 < p.top_k < weights.shape[1]]
    if top_k:
        kept = weights[top_k]
        weights[top_k] = kept.where(kept >= _kth_largest(kept, [params[row].top_k for row in top_k]), 0)
    top_p = [row for row, p in enumerate(params) if p.top_p < 1]
    if top_p:
        kept = weights[top_p]
        weights[top_p] = kept.where(kept >= _nucleus_floor(kept, [params[row].top_p for row in top_p]), 0)


def _kth_largest(weights: Tensor, ranks: Sequence[int]) -> Tensor:
    """Each row's weight of the given rank, 1 being the largest: ``[rows, vocab]`` to ``[rows, 1]``."""
    return weights.topk(max(ranks)).values.gather(1, torch.tensor(ranks)[:, None] - 1)


def _nucleus_floor(weights: Tensor, shares: Sequence[float]) -> Tensor:
    """Weight of the token with which the likeliest ones reach their share of the mass: ``[rows, 1]``.

    Holtzman et al. 2020, section 3.1.
    """
    descending = torch.from_numpy(np.sort(weights.numpy())).flip(-1)  # NumPy sorts several times as fast as torch
    mass = descending.cumsum(-1)
    return descending.gather(1, torch.searchsorted(mass, _column(shares) * mass[:, -1:]))


def _column(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def _logprob(logits: Tensor, token_id: int, count: int | None) -> TokenLogprob | None:
    """Log-probabilities under raw logits ``[vocab]`` of a token and of the ``count`` likeliest; None asks for none.

    Equally likely tokens stand in the order of their ids.
    """
    if count is None:
        return None
    logprobs = logits.double().log_softmax(-1)
    values, ids = logprobs.topk(min(count, len(logprobs)))
    top = sorted(zip(ids.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprob(logprobs[token_id].item(), tuple(top))
