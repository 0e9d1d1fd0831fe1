"""A small random model on which mistakes show."""

import torch

from minillm.model.transformer import ModelConfig, Transformer

TINY = ModelConfig(
    vocab_size=257,
    hidden_size=48,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    kv_heads=2,
    head_dim=12,
    max_context=512,
)


def tiny(seed: int = 0, config: ModelConfig = TINY, dtype: torch.dtype = torch.float64) -> Transformer:
    """A random model in float64 for the byte tokenizer.

    Its head is untied: a random model with a tied head repeats one token, and a test on it sees nothing. Queries, keys
    and values are doubled, so that attention is sharp and what it finds outweighs the token itself: of 48 tokens that
    follow a prompt of 24, a lost row of the cache, or two whose values changed places, changed 28 at least, 45 on
    average (ten seeds, nine rows of the prompt).
    """
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).to(dtype)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            fan_in = parameter.shape[0] if name != "embedding" else 1
            scale = (2 if name.endswith("qkv.weight") else 1) / fan_in**0.5
            parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return model
