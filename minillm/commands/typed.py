"""How a command is named to whoever is to type it: as make's target for those who use make."""

import os
from collections.abc import Mapping


def typed(target: str, command: str, environment: Mapping[str, str] = os.environ) -> str:
    """``make TARGET`` where make has started this process, which tells by its level, and ``minillm COMMAND`` else."""
    return f"make {target}" if "MAKELEVEL" in environment else f"minillm {command}"
