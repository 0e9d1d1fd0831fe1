"""GPUs and models by name, and what a pass of a model costs on a GPU. Everything computed from it is simulated.

Peaks are those of NVIDIA's data sheets for dense 16-bit arithmetic. What a real kernel reaches of them was fitted to
layer times that Vidur (Agrawal et al., MLSys 2024) measured with Llama-2-7B at 1 to 4096 tokens; where a GPU has no
such measurement, its ``source`` says what stands in for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.simulator.cost import ThreeTermCost

ENGINE_OVERHEAD = 2e-3
"""Seconds per pass for launching, scheduling and sampling: fitted to the six throughputs that the vLLM project
published for Llama-2-7B on one A100 (blog, 14 November 2023)."""


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU's peaks, and what a model's passes reach of them.

    peak_flops       floating-point operations per second
    peak_bandwidth   bytes per second
    memory           bytes
    flops_share      share of the peak that matrix products reach where arithmetic limits them
    bandwidth_share  share of the peak that they reach where reading weights limits them
    layer_overhead   seconds per layer for norms, rotary embedding and activations, however few tokens there are
    source           where the shares and the overhead come from
    """

    name: str
    peak_flops: float
    peak_bandwidth: float
    memory: float
    flops_share: float
    bandwidth_share: float
    layer_overhead: float
    source: str = "fitted to Vidur's measured layer times"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes, in elements. ``feed_forward_matrices`` is 3 for SwiGLU and 2 for a plain feed-forward."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    kv_heads: int
    vocab_size: int
    feed_forward_matrices: int = 3
    bytes_per_weight: int = 2

    @property
    def parameters(self) -> int:
        """Weights that a token meets: attention and feed-forward of each layer, and the output head."""
        head_dim = self.hidden_size // self.num_heads
        attention = self.hidden_size * (2 * self.num_heads + 2 * self.kv_heads) * head_dim
        feed_forward = self.feed_forward_matrices * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + feed_forward) + self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes that each pass reads for its weights."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        head_dim = self.hidden_size // self.num_heads
        return 2 * self.num_layers * self.kv_heads * head_dim * self.bytes_per_weight


GPUS: Mapping[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        GPU("A100-80GB", 312e12, 2.039e12, 80e9, 0.69, 0.74, 26e-6),
        GPU("A100-40GB", 312e12, 1.555e12, 40e9, 0.69, 0.74, 26e-6, "shares of the A100 with 80 GB"),
        GPU("H100", 989e12, 3.35e12, 80e9, 0.73, 0.72, 20e-6),
        GPU("H200", 989e12, 4.8e12, 141e9, 0.73, 0.72, 20e-6, "extrapolated: shares of the H100"),
        GPU("A40", 149.7e12, 0.696e12, 48e9, 0.74, 0.66, 22e-6),
        GPU("RTX4090", 165.2e12, 1.008e12, 24e9, 1.0, 0.93, 10e-6, "fitted to LLMServingSim's kernel tables"),
    )
}

MODEL_SHAPES: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 49_152),
        ModelShape("Llama-3.1-8B", 32, 4096, 14_336, 32, 8, 128_256),
        ModelShape("Llama-2-7B", 32, 4096, 11_008, 32, 32, 32_000),
        ModelShape("Llama-2-13B", 40, 5120, 13_824, 40, 40, 32_000),
        ModelShape("OPT-13B", 40, 5120, 20_480, 40, 40, 50_272, feed_forward_matrices=2),
    )
}


def gpu_named(name: str) -> GPU:
    """The GPU of that name. Raises ValueError, with all names, when there is none."""
    if name not in GPUS:
        raise ValueError(f"there is no virtual GPU {name!r}; choose from {', '.join(GPUS)}")
    return GPUS[name]


def model_shape_named(name: str) -> ModelShape:
    """The shape of that name. Raises ValueError, with all names, when there is none."""
    if name not in MODEL_SHAPES:
        raise ValueError(f"there is no virtual model {name!r}; choose from {', '.join(MODEL_SHAPES)}")
    return MODEL_SHAPES[name]


def pass_cost(gpu: GPU, shape: ModelShape) -> ThreeTermCost:
    """Seconds of a pass of this model on this GPU.

    Where reading weights and arithmetic take equally long a real pass takes longer than either: about a quarter on an
    A100 and a third on an H100, at some 130 and 300 tokens. The output head is charged for every token.
    """
    return ThreeTermCost(
        overhead=ENGINE_OVERHEAD + shape.num_layers * gpu.layer_overhead,
        weight_bytes=shape.weight_bytes,
        flops_per_token=2 * shape.parameters,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        bandwidth=gpu.peak_bandwidth * gpu.bandwidth_share,
        flops=gpu.peak_flops * gpu.flops_share,
    )


def kv_tokens(gpu: GPU, shape: ModelShape) -> int:
    """Cache places, in tokens, in what the weights leave of 90 % of the memory (vLLM's ``gpu_memory_utilization``).

    Raises ValueError when the weights leave nothing.
    """
    free = 0.9 * gpu.memory - shape.weight_bytes
    if free < shape.kv_bytes_per_token:
        raise ValueError(
            f"{shape.name} needs {shape.weight_bytes / 1e9:.0f} GB for its weights and does not fit 90 % of the "
            f"{gpu.memory / 1e9:.0f} GB of {gpu.name}; choose a larger GPU or a smaller model"
        )
    return int(free // shape.kv_bytes_per_token)
