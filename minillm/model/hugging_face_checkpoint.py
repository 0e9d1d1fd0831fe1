"""A Llama model in a Hugging Face folder: ``config.json`` and one or several ``*.safetensors``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from minillm.model.checkpoint import FLOAT_TYPES, Checkpoint, ModelError, Settings
from minillm.model.json_file import read_json
from minillm.model.transformer import ModelConfig, RopeScaling

_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "model.layers.{layer}.input_layernorm.weight",
    "q": "model.layers.{layer}.self_attn.q_proj.weight",
    "k": "model.layers.{layer}.self_attn.k_proj.weight",
    "v": "model.layers.{layer}.self_attn.v_proj.weight",
    "out": "model.layers.{layer}.self_attn.o_proj.weight",
    "feed_forward_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "down": "model.layers.{layer}.mlp.down_proj.weight",
}


def open_hugging_face(folder: Path) -> Checkpoint:
    """Open a folder with a Llama model, or a Mistral model without sliding window, which is the same.

    Raises ModelError for a missing or damaged file, another architecture, or a setting that the model does not
    implement.
    """
    config = _config(_settings(folder / "config.json"))
    shards = _open_shards(_shard_paths(folder))
    return Checkpoint(
        path=folder,
        config=config,
        names=_NAMES,
        shapes={name: tuple(shard.get_slice(name).get_shape()) for name, shard in shards.items()},
        read=lambda name: _read(shards[name], name, folder),
    )


def _settings(path: Path) -> Settings:
    if not path.is_file():
        raise ModelError(f"{path} is missing: give a .gguf file, or a folder with config.json and *.safetensors")
    return Settings(path, read_json(path))


def _config(settings: Settings) -> ModelConfig:
    _refuse_what_is_not_implemented(settings)
    hidden_size, num_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    rope = _rope(settings)
    return settings.model_config(
        vocab_size=settings.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=settings.integer("num_hidden_layers"),
        num_heads=num_heads,
        kv_heads=settings.integer("num_key_value_heads", num_heads),
        head_dim=settings.integer("head_dim", hidden_size // num_heads),
        max_context=settings.integer("max_position_embeddings"),
        rope_theta=rope.real("rope_theta", 10_000.0),
        rope_scaling=_rope_scaling(rope),
        norm_eps=settings.real("rms_norm_eps"),
        tie_embeddings=bool(settings.get("tie_word_embeddings")),
    )


def _refuse_what_is_not_implemented(settings: Settings) -> None:
    architecture = settings.get("model_type")
    if architecture not in ("llama", "mistral"):
        raise ModelError(
            f"{settings.path} describes a model of type {architecture!r}, but only 'llama', and 'mistral' without "
            "sliding window, are implemented: choose one of these"
        )
    if architecture == "mistral" and settings.values.get("sliding_window", 4096) is not None:
        raise ModelError(
            f"{settings.path} leaves the sliding window on (sliding_window is not null), which is not implemented: "
            "choose a model without it"
        )
    settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    settings.require("hidden_act", "silu")
    settings.require("quantization_config")


def _rope(settings: Settings) -> Settings:
    """The rotary settings, wherever they stand.

    transformers 5 writes ``rope_parameters`` with ``rope_theta`` inside; before, ``rope_theta`` stood beside an
    optional ``rope_scaling``, whose ``rope_type`` was first called ``type``.
    """
    scaling = settings.table("rope_parameters") or settings.table("rope_scaling")
    older = {"rope_theta": settings.get("rope_theta"), "rope_type": scaling.get("type")}
    return Settings(settings.path, {**older, **scaling})


def _rope_scaling(rope: Settings) -> RopeScaling | None:
    rope.require("rope_type", "default", "llama3")
    rope.require("partial_rotary_factor", 1)
    if rope.get("rope_type") != "llama3":
        return None
    return RopeScaling(
        factor=rope.real("factor"),
        low_freq_factor=rope.real("low_freq_factor"),
        high_freq_factor=rope.real("high_freq_factor"),
        original_max_position=rope.integer("original_max_position_embeddings"),
    )


def _shard_paths(folder: Path) -> list[Path]:
    """The files that the index names, or without an index every ``*.safetensors``."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = list(Settings(index, read_json(index)).table("weight_map").values())
        if not all(isinstance(name, str) for name in files):
            raise ModelError(f"{index} has a weight_map that does not name files: download it again")
        return [folder / name for name in sorted(set(files))]
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder} holds no *.safetensors: download them, or save the model again with transformers")
    return paths


def _open_shards(paths: Iterable[Path]) -> dict[str, Any]:
    """Tensor name to the open file that holds it."""
    shards: dict[str, Any] = {}
    for path in paths:
        shard = _open_shard(path)
        for name in shard.keys():  # noqa: SIM118
            if name in shards:
                raise ModelError(f"{path} holds {name} a second time: leave only the files of one model in its folder")
            shards[name] = shard
    # Checkpoints of 2023 keep the rotary frequencies, which follow from the config.
    return {name: shard for name, shard in shards.items() if not name.endswith(".rotary_emb.inv_freq")}


def _open_shard(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}, named in the index of its folder, is missing: download it")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{path} is truncated or no safetensors file ({error}): download it again") from None


def _read(shard: Any, name: str, folder: Path) -> Tensor:
    tensor: Tensor = shard.get_tensor(name)
    if tensor.dtype not in FLOAT_TYPES:
        raise ModelError(
            f"{folder}: tensor {name} is of type {tensor.dtype}, but only 16-, 32- and 64-bit floats are read: "
            "choose a model that is not quantised"
        )
    return tensor
