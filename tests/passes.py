"""One sequence through the model and a cache, pass by pass, without a scheduler."""

import torch

from minillm.batch import Batch, Rectangle, next_span
from minillm.cache.memory import Row
from minillm.model.transformer import causal_attend


@torch.inference_mode()
def uncached_logits(model, token_ids):
    """The logits after each of these tokens, ``[tokens, vocab]``, from one pass that caches nothing."""
    attend = causal_attend(model.config.head_dim**-0.5)
    return model.logits(model(torch.tensor(token_ids), torch.arange(len(token_ids)), attend))


@torch.inference_mode()
def compute(model, cache, sequence, length=None):
    """Compute the next ``length`` tokens, or all that are left, and return the logits after each of them."""
    span = next_span(sequence, length)
    rectangle = Rectangle(1, span.length, span.end) if isinstance(sequence.memory, Row) else None
    inputs = cache.lower(Batch((span,), rectangle=rectangle))
    sequence.computed = span.end
    return model.logits(model(inputs.token_ids, inputs.positions, inputs.attend))


def teacher_forced(model, cache, sequence, lengths):
    """The logits after each token of a sequence that is computed in passes of these lengths."""
    return torch.cat([compute(model, cache, sequence, length) for length in lengths])


def generate_greedily(model, cache, sequence, count):
    """Compute what is left of the sequence, then append its ``count`` likeliest tokens one by one."""
    for _ in range(count):
        sequence.token_ids.append(int(compute(model, cache, sequence)[-1].argmax()))
    return sequence.token_ids[-count:]


def changed(before, after):
    """The share of tokens that differ."""
    return sum(a != b for a, b in zip(before, after, strict=True)) / len(before)
