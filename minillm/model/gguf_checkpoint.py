"""A llama model in a GGUF file, as llama.cpp's ``convert_hf_to_gguf.py`` writes it."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from minillm.model.checkpoint import Checkpoint, ModelError, Settings
from minillm.model.gguf_file import GGUFFile, GGUFTensor, read_gguf
from minillm.model.transformer import ModelConfig, RopeScaling, inverse_frequencies

_NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "out": "blk.{layer}.attn_output.weight",
    "feed_forward_norm": "blk.{layer}.ffn_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
}
_FREQUENCY_DIVISORS = "rope_freqs.weight"

_UNDERSTOOD = {
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.vocab_size",
}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of architecture ``llama``.

    Raises ModelError for a damaged file, another architecture, or a setting that the model does not implement.
    """
    file = read_gguf(path)
    config = _config(file)
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != _FREQUENCY_DIVISORS}
    return Checkpoint(
        path=path,
        config=config,
        names=_NAMES,
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        read=lambda name: _read(tensors[name], config),
    )


def _config(file: GGUFFile) -> ModelConfig:
    settings = Settings(file.path, file.metadata)
    _refuse_what_is_not_implemented(settings)
    hidden_size, num_heads = settings.integer("llama.embedding_length"), settings.integer("llama.attention.head_count")
    head_dim = settings.integer("llama.attention.key_length", hidden_size // num_heads)
    settings.require("llama.attention.value_length", head_dim)
    settings.require("llama.rope.dimension_count", head_dim)
    config = settings.model_config(
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=settings.integer("llama.feed_forward_length"),
        num_layers=settings.integer("llama.block_count"),
        num_heads=num_heads,
        kv_heads=settings.integer("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_context=settings.integer("llama.context_length"),
        rope_theta=settings.real("llama.rope.freq_base", 10_000.0),
        norm_eps=settings.real("llama.attention.layer_norm_rms_epsilon"),
        tie_embeddings=_NAMES["head"] not in file.tensors,
    )
    return _with_rope_scaling(config, file)


def _refuse_what_is_not_implemented(settings: Settings) -> None:
    architecture = settings.get("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"{settings.path} holds a model of architecture {architecture!r}, but only 'llama' is implemented: "
            "choose a Llama model"
        )
    settings.require("split.count", 0, 1)
    settings.require("llama.rope.scaling.type", "none")
    for key in settings.values:
        if key.startswith("llama.") and key not in _UNDERSTOOD:
            settings.require(key)


def _vocab_size(file: GGUFFile) -> int:
    if _NAMES["embedding"] not in file.tensors:
        raise ModelError(f"{file.path} lacks the tensor {_NAMES['embedding']}: download or convert the model again")
    return file.tensors[_NAMES["embedding"]].shape[0]


def _with_rope_scaling(config: ModelConfig, file: GGUFFile) -> ModelConfig:
    """Llama 3.1 and later: the file keeps only what each frequency was divided by.

    All of these models share every number of the scaling but the factor (``rope_scaling`` of Meta's configs), and the
    slowest frequency is divided by just that. Whether it explains all divisors is checked.
    """
    if _FREQUENCY_DIVISORS not in file.tensors:
        return config
    divisors = file.tensors[_FREQUENCY_DIVISORS].dequantised().double()
    scaled = replace(config, rope_scaling=RopeScaling(divisors.max().item(), 1.0, 4.0, 8192))
    expected = inverse_frequencies(config) / inverse_frequencies(scaled)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-4):
        raise ModelError(
            f"{file.path}: {_FREQUENCY_DIVISORS} is not Llama 3's, the only rotary scaling implemented: "
            "choose another model, or its Hugging Face folder"
        )
    return scaled


def _read(tensor: GGUFTensor, config: ModelConfig) -> Tensor:
    numbers = tensor.dequantised()
    if tensor.name.endswith(".attn_q.weight"):
        return _halves_apart(numbers, config.num_heads)
    if tensor.name.endswith(".attn_k.weight"):
        return _halves_apart(numbers, config.kv_heads)
    return numbers


def _halves_apart(rows: Tensor, heads: int) -> Tensor:
    """Undo the converter's ``permute`` of rows ``[heads * head_dim, inputs]``.

    llama.cpp turns channel 2i of a head with 2i + 1, our model channel i with i + head_dim / 2.
    """
    return rows.reshape(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
