"""A Llama-style decoder whose attention enters through one seam.

Everything but attention treats the tokens of a batch alike, so the model works on one flat list of tokens from any
number of requests. What a token may look back on is decided by ``attend``, which the caller passes in: plain causal
attention, a contiguous cache, a paged cache. The model never learns which.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v)`` stores this pass's k and v and returns the attention output.

q ``[tokens, heads, head_dim]``; k, v ``[tokens, kv_heads, head_dim]``; result ``[tokens, heads, head_dim]``.
"""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's stretching of the slow rotary frequencies (``rope_type: llama3`` in a Hugging Face config)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-style model. Sizes are numbers of elements; ``max_context`` is in tokens.

    Raises ValueError for heads that cannot share the key-value heads evenly, and for an odd ``head_dim``.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding turns pairs of channels")


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Rotary frequencies in radians per position, float64 ``[head_dim / 2]`` (RoFormer, section 3.4.2)."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    inverse = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    turns = scaling.original_max_position * inverse / (2 * torch.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return keep * inverse + (1 - keep) * inverse / scaling.factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn channel i with channel i + head_dim / 2 (the layout of Hugging Face's Llama).

    x ``[tokens, heads, head_dim]``; cos, sin ``[tokens, 1, head_dim / 2]``.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Linear(nn.Module):
    """``x @ weight`` with weight ``[inputs, outputs]``.

    The transpose of ``nn.Linear``'s layout: for batches of 4 to 16 rows the CPU's matrix product runs about twice as
    fast on it (``minillm bench linear``).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, inputs]`` to ``[tokens, outputs]``."""
        return x @ self.weight


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, hidden]``, normalised over the last dimension."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention: projections and rotary positions; the looking back is ``attend``'s."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.kv_heads, config.kv_heads)
        self.head_dim = config.head_dim
        self.qkv = Linear(config.hidden_size, sum(self.heads) * config.head_dim)
        self.out = Linear(config.num_heads * config.head_dim, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        """x ``[tokens, hidden]``; cos, sin ``[tokens, 1, head_dim / 2]``; result ``[tokens, hidden]``."""
        heads, kv_heads, _ = self.heads
        qk, v = self.qkv(x).view(len(x), -1, self.head_dim).split((heads + kv_heads, kv_heads), dim=1)
        q, k = torch.split(rotate(qk, cos, sin), [heads, kv_heads], dim=1)
        attended = attend(layer, q, k, v)  # [tokens, heads, head_dim]
        projected: Tensor = self.out(attended.reshape(len(x), -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        projected: Tensor = self.down(F.silu(gate) * up)
        return projected


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each on a normalised residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        """x ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        x = x + self.attention(self.attention_norm(x), cos, sin, layer, attend)
        transformed: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + transformed


class Transformer(nn.Module):
    """The decoder. ``model(token_ids, positions, attend)`` gives hidden states, ``model.logits`` the vocabulary."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = None if config.tie_embeddings else Linear(config.hidden_size, config.vocab_size)
        angles = torch.outer(torch.arange(config.max_context, dtype=torch.float64), inverse_frequencies(config))
        self.register_buffer("cos", angles.cos().unsqueeze(1), persistent=False)  # [max_context, 1, head_dim / 2]
        self.register_buffer("sin", angles.sin().unsqueeze(1), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and hidden states."""
        return self.embedding.dtype

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids, positions ``[tokens]`` (int64) to hidden states ``[tokens, hidden]``."""
        x = self.embedding[token_ids]
        cos, sin = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, index, attend)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden ``[rows, hidden]`` to logits ``[rows, vocab]``. Call it only for rows that sample."""
        weight = self.embedding.T if self.head is None else self.head.weight
        return hidden @ weight


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The last ``rows`` tokens of a sequence look back on all of it.

    ``softmax(q k^T * scale) v`` (Vaswani et al. 2017, equation 1) with everything to the right masked out.
    q ``[rows, heads, head_dim]``; k, v ``[context, kv_heads, head_dim]``; result ``[rows, heads, head_dim]``.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1 + len(k) - len(q))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def causal_attend(scale: float) -> Attend:
    """Attention without a cache: the tokens of a pass are one sequence from its start."""
    return lambda layer, q, k, v: causal_attention(q, k, v, scale)
