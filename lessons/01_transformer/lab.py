"""Lesson 1, A small transformer: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-1              all tasks; T=2 for one of them
    make hint L=1 T=2       the next hint for a task
    make peek L=1 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 1 --task 2`, `minillm lab hint 1 2` and `minillm lab peek 1 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from minillm.model.naive import Generated
from minillm.model.sampling import Draw, sample
from minillm.model.transformer import Attend, Transformer, causal_attend
from minillm.request import SamplingParams


class RMSNorm:
    """Divide by the root mean square, then scale (Zhang and Sennrich 2019, equation 4)."""

    # Given in minillm/model/transformer.py:
    #
    # class RMSNorm(nn.Module):
    #     def __init__(self, size: int, eps: float) -> None:
    #         super().__init__()
    #         self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
    #         self.eps = eps

    # Task 1: 10 points, about 8 minutes, section 1.3 Normalise: RMSNorm
    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, hidden]``, normalised over the last dimension."""
        raise NotImplementedError(
            "lesson 1, task 1: divide each token by its root mean square, then scale each channel"
        )


# Task 2: 10 points, about 8 minutes, section 1.4 Tell positions apart: rotary embedding
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn channel i with channel i + head_dim / 2 (the layout of Hugging Face's Llama).

    x ``[tokens, heads, head_dim]``; cos, sin ``[tokens, 1, head_dim / 2]``.
    """
    raise NotImplementedError(
        "lesson 1, task 2: turn channel i together with channel i + head_dim / 2 by the angle of the token's position"
    )


# Task 3: 25 points, about 20 minutes, section 1.5 Look back: causal attention
def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The last ``rows`` tokens of a sequence look back on all of it.

    ``softmax(q k^T * scale) v`` (Vaswani et al. 2017, equation 1) with everything to the right masked out.
    q ``[rows, heads, head_dim]``; k, v ``[context, kv_heads, head_dim]``; result ``[rows, heads, head_dim]``.
    """
    raise NotImplementedError(
        "lesson 1, task 3: let the last tokens of a sequence look back on all of it: softmax of scaled scores, nothing "
        "from the future"
    )


class Attention:
    """Grouped-query attention: projections and rotary positions; the looking back is ``attend``'s."""

    # Given in minillm/model/transformer.py:
    #
    # class Attention(nn.Module):
    #     def __init__(self, config: ModelConfig) -> None:
    #         super().__init__()
    #         self.heads = (config.num_heads, config.kv_heads, config.kv_heads)
    #         self.head_dim = config.head_dim
    #         self.qkv = Linear(config.hidden_size, sum(self.heads) * config.head_dim)
    #         self.out = Linear(config.num_heads * config.head_dim, config.hidden_size)

    # Task 4: 15 points, about 12 minutes, section 1.6 Share keys and values: grouped-query attention
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        """x ``[tokens, hidden]``; cos, sin ``[tokens, 1, head_dim / 2]``; result ``[tokens, hidden]``."""
        raise NotImplementedError(
            "lesson 1, task 4: project to queries, keys and values, turn queries and keys, attend, project back"
        )


class FeedForward:
    """SwiGLU (Shazeer 2020): ``down(silu(gate(x)) * up(x))``."""

    # Given in minillm/model/transformer.py:
    #
    # class FeedForward(nn.Module):
    #     def __init__(self, config: ModelConfig) -> None:
    #         super().__init__()
    #         self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size)
    #         self.down = Linear(config.intermediate_size, config.hidden_size)

    # Task 5: 15 points, about 12 minutes, section 1.7 Think: SwiGLU and the residual stream, for 2 functions together.
    #         The first:
    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        raise NotImplementedError(
            "lesson 1, task 5: write the gated feed-forward, and a layer that adds attention and feed-forward to the "
            "residual stream"
        )


class DecoderLayer:
    """Attention and feed-forward, each on a normalised residual stream."""

    # Given in minillm/model/transformer.py:
    #
    # class DecoderLayer(nn.Module):
    #     def __init__(self, config: ModelConfig) -> None:
    #         super().__init__()
    #         self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
    #         self.attention = Attention(config)
    #         self.feed_forward_norm = RMSNorm(config.hidden_size, config.norm_eps)
    #         self.feed_forward = FeedForward(config)

    # Task 5, function 2 of 2
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        """x ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        raise NotImplementedError(
            "lesson 1, task 5: write the gated feed-forward, and a layer that adds attention and feed-forward to the "
            "residual stream"
        )


# Given in minillm/model/transformer.py:
#
# def causal_attend(scale: float) -> Attend:
#     """Attention without a cache: the tokens of a pass are one sequence from its start."""
#     return lambda layer, q, k, v: causal_attention(q, k, v, scale)
#
# @dataclass(frozen=True, slots=True)
# class ModelConfig:
#     """The shape of a Llama-style model. Sizes are numbers of elements; ``max_context`` is in tokens."""
#     vocab_size: int
#     hidden_size: int
#     intermediate_size: int
#     num_layers: int
#     num_heads: int
#     kv_heads: int
#     head_dim: int
#     max_context: int
#     rope_theta: float = 10_000.0
#     rope_scaling: RopeScaling | None = None
#     norm_eps: float = 1e-5
#     tie_embeddings: bool = False
#
# class Transformer(nn.Module):
#     """The decoder. ``model(token_ids, positions, attend)`` gives hidden states, ``model.logits`` the vocabulary."""
#
#     def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
#         """token_ids, positions ``[tokens]`` (int64) to hidden states ``[tokens, hidden]``."""
#
#     def logits(self, hidden: Tensor) -> Tensor:
#         """hidden ``[rows, hidden]`` to logits ``[rows, vocab]``. Call it only for rows that sample."""

# Given in minillm/request.py:
#
# @dataclass(frozen=True, slots=True)
# class SamplingParams:
#     """How to sample; names and meanings follow vLLM's ``SamplingParams``."""
#     n: int = 1
#     max_tokens: int = 16
#     min_tokens: int = 0
#     temperature: float = 1.0
#     top_k: int = 0
#     top_p: float = 1.0
#     min_p: float = 0.0
#     repetition_penalty: float = 1.0
#     seed: int = 0
#     stop: tuple[str, ...] = ()
#     stop_token_ids: tuple[int, ...] = ()
#     ignore_eos: bool = False
#     logprobs: int | None = None

# Given in minillm/model/sampling.py:
#
# @dataclass(frozen=True, slots=True)
# class Draw:
#     """One token to draw: by which rules, for which branch, as which of its output (from 0), after which tokens."""
#     params: SamplingParams
#     branch: int
#     output_index: int
#     token_ids: Sequence[int]
#     eos_token_ids: frozenset[int] = frozenset()
#
# @dataclass(frozen=True, slots=True)
# class Sampled:
#     """A drawn token, with its log-probability where the parameters ask for it; or no token, and the error."""
#     token_id: int | None
#     logprob: TokenLogprob | None = None
#     error: str | None = None
#
# def sample(logits: Tensor, draws: Sequence[Draw]) -> list[Sampled]:
#     """One token for each row of logits ``[rows, vocab]``, which may lie on any device.
#
#     A row's token depends on that row and its draw alone, never on the rest of the batch. A row of which no token can
#     be drawn (NaN, +inf, nothing above -inf, everything banned) gets an error and disturbs no other. Raises ValueError
#     when rows and draws differ in number.
#     """

# Given in minillm/model/naive.py:
#
# @dataclass(frozen=True, slots=True)
# class Generated:
#     """Output tokens, and the logits that each was drawn from: ``[output, vocab]``."""
#     token_ids: list[int]
#     logits: Tensor


# Task 6: 25 points, about 15 minutes, section 1.8 Generate: the oracle, for 2 functions together. The first:
@torch.inference_mode()
def next_logits(model: Transformer, token_ids: list[int]) -> Tensor:
    """The model's logits after these tokens, ``[vocab]``, with nothing cached.

    The first token has position 0; the scale of attention is ``model.config.head_dim ** -0.5``.
    """
    raise NotImplementedError("lesson 1, task 6: generate token by token, recomputing everything each time: the oracle")


# Task 6, function 2 of 2
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
    raise NotImplementedError("lesson 1, task 6: generate token by token, recomputing everything each time: the oracle")
