"""The JSON files of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from minillm.model.checkpoint import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError for a file that holds anything else."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object: download it again")
    return content
