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

    Its head is untied: a random model with a tied head repeats one token, and a test on it sees nothing. Queries and
    keys are scaled up so that attention is sharp and each cached row matters.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).to(dtype)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            fan_in = parameter.shape[0] if name != "embedding" else 1
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=dtype) / fan_in**0.5
    for block in model.blocks:
        block.attention.qkv.weight.data[:, : (config.num_heads + config.kv_heads) * config.head_dim] *= 2
    return model
