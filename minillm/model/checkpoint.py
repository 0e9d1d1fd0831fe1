"""What every format of model file gives: the model's shape, and its tensors under the file's own names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.model.transformer import ModelConfig

FLOAT_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The types that weights are read from and computed in."""


class ModelError(ValueError):
    """A model file that cannot be loaded faithfully. The message names the file, what is wrong and the remedy."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model file or folder.

    names   part of the model, in our words, to the file's name for it; ``{layer}`` stands for the layer's number
    shapes  shape ``[outputs, inputs]`` of every tensor in the file, by the file's name
    read    the numbers of the tensor of that name, in that shape, rows and columns ordered as the model has them
    """

    path: Path
    config: ModelConfig
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """A model file's hyperparameters, and the file, so that a complaint can name both. None means absent."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value as it stands in the file, or None."""
        return self.values.get(key)

    def table(self, key: str) -> Mapping[str, Any]:
        """A group of settings, empty where it is absent. Raises ModelError for anything else."""
        value = {} if self.get(key) is None else self.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a JSON object")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A count; ``default`` where it is absent. Raises ModelError unless it is a whole number above 0."""
        value = default if self.get(key) is None else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise self._wrong(key, value, "a whole number above 0 and below 2^31")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A positive quantity; ``default`` where it is absent. Raises ModelError unless it is a number above 0."""
        value = default if self.get(key) is None else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def model_config(self, **fields: Any) -> ModelConfig:
        """The model's shape. Raises ModelError for one that no model can have."""
        try:
            return ModelConfig(**fields)
        except ValueError as error:
            raise ModelError(f"{self.path} is wrong: {error}: download or convert the model again") from None

    def require(self, key: str, *allowed: Any) -> None:
        """Raise ModelError unless the value is absent or one of ``allowed``: the only ones the model implements."""
        if self.get(key) not in (None, *allowed):
            rule = " or ".join(map(repr, allowed)) if allowed else "absent"
            raise ModelError(
                f"{self.path} sets {key} to {self.get(key)!r}, which minillm does not implement (it must be {rule}): "
                "choose a plain Llama model"
            )

    def _wrong(self, key: str, value: Any, rule: str) -> ModelError:
        found = "lacks it" if value is None else f"has {value!r}"
        return ModelError(f"{key} must be {rule}, but {self.path} {found}: download or convert the model again")
