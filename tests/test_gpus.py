"""Simulated GPUs cost what the real ones were measured to cost, as far as three terms can tell."""

import pytest

from minillm.batch import Batch, Rectangle
from minillm.simulator.gpus import ENGINE_OVERHEAD, GPUS, MODEL_SHAPES, kv_tokens, pass_cost

TOKENS = (1, 64, 128, 256, 512, 1024, 2048, 4096)
MEASURED = {
    "A100-80GB": (8.5, 8.9, 11.3, 16.1, 30.5, 62.7, 122.4, 238.2),
    "H100": (5.0, 5.2, 5.8, 8.3, 10.5, 18.1, 34.7, 70.8),
}
"""Milliseconds that all matrix products of Llama-2-7B take (Agrawal et al., Vidur, MLSys 2024, published profiles)."""


@pytest.mark.parametrize(("device", "tolerance"), [("A100-80GB", 0.25), ("H100", 0.36)])
def test_products_cost_what_was_measured(device, tolerance):
    gpu, shape = GPUS[device], MODEL_SHAPES["Llama-2-7B"]
    cost = pass_cost(gpu, shape)
    fixed = ENGINE_OVERHEAD + shape.num_layers * gpu.layer_overhead
    for tokens, milliseconds in zip(TOKENS, MEASURED[device], strict=True):
        seconds = cost(Batch(rectangle=Rectangle(rows=1, width=tokens, context=0))) - fixed
        assert seconds * 1e3 == pytest.approx(milliseconds, rel=tolerance)


@pytest.mark.parametrize(("shape", "kib"), [("Llama-2-7B", 512), ("OPT-13B", 800), ("Llama-3.1-8B", 128)])
def test_a_tokens_keys_and_values_take_the_published_bytes(shape, kib):
    assert MODEL_SHAPES[shape].kv_bytes_per_token == kib * 1024


@pytest.mark.parametrize(
    ("shape", "billions"),
    [("Llama-2-7B", 6.74), ("Llama-2-13B", 13.0), ("Llama-3.1-8B", 8.03), ("SmolLM2-135M", 0.135)],
)
def test_shapes_have_the_published_parameters_but_for_the_embedding(shape, billions):
    sizes = MODEL_SHAPES[shape]
    untied = 0 if shape == "SmolLM2-135M" else sizes.vocab_size * sizes.hidden_size
    assert sizes.parameters + untied == pytest.approx(billions * 1e9, rel=0.005)


def test_the_cache_takes_what_the_weights_leave():
    assert kv_tokens(GPUS["A100-80GB"], MODEL_SHAPES["Llama-2-7B"]) == pytest.approx(112_000, rel=0.01)


def test_weights_that_do_not_fit_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"Llama-2-13B needs 26 GB .* choose a larger GPU"):
        kv_tokens(GPUS["RTX4090"], MODEL_SHAPES["Llama-2-13B"])
