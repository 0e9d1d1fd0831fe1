"""Generation without a cache: every token recomputes all tokens before it. Slow, obvious, and the oracle.

Whatever a cache, a kernel or a scheduler generates must equal this loop in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.model.sampling import Draw, sample
from minillm.model.transformer import Transformer, causal_attend
from minillm.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Generated:
    """Output tokens, and the logits that each was drawn from: ``[output, vocab]``."""

    token_ids: list[int]
    logits: Tensor


@torch.inference_mode()
def next_logits(model: Transformer, token_ids: list[int]) -> Tensor:
    """The model's logits after these tokens, ``[vocab]``, with nothing cached.

    The first token has position 0; the scale of attention is ``model.config.head_dim ** -0.5``.
    """
    attend = causal_attend(model.config.head_dim**-0.5)
    hidden = model(torch.tensor(token_ids), torch.arange(len(token_ids)), attend)
    return model.logits(hidden[-1:])[0]


def generate(
    model: Transformer,
    prompt_token_ids: list[int],
    params: SamplingParams,
    branch: int = 0,
    eos_token_ids: frozenset[int] = frozenset(),
) -> Generated:
    """Sample one branch token by token until ``max_tokens`` or a stop token. Stop strings need text: not here.

    Stop tokens are ``params.stop_token_ids`` and, unless ``params.ignore_eos``, the model's own ``eos_token_ids``. The
    one that ends the output is kept. Each token has a ``Draw`` of its own: its index in the output, and all tokens
    before it, the prompt's included. Raises FloatingPointError, with the sampler's error, where none can be drawn.
    """
    token_ids, rows = list(prompt_token_ids), []
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else eos_token_ids)
    for index in range(params.max_tokens):
        rows.append(next_logits(model, token_ids))
        (draw,) = sample(rows[-1][None], [Draw(params, branch, index, token_ids, eos_token_ids)])
        if draw.token_id is None:
            raise FloatingPointError(draw.error)
        token_ids.append(draw.token_id)
        if draw.token_id in stops:
            break
    return Generated(token_ids[len(prompt_token_ids) :], torch.stack(rows))
