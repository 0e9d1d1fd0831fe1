"""Learn how large language models are served: one small real transformer, one engine, every batching technique.

The package is lazy: importing it imports none of its modules, so a command that needs no tensors starts without torch,
and a module can be replaced (a lab, a mutant) before anything has bound its names.
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# torch's and numba's threads take turns on the same cores. OpenMP's idle workers spin for milliseconds by default, and
# then keep the others, and whatever else the machine runs, from working: with both of 2 cores busy a pass took 2 to 4
# times as long. Without any spinning each of a pass's many short products waits for a thread to wake: a third longer
# on idle cores. A short spin costs neither. Read once, when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

_HOME = {
    "LLM": "minillm.llm",
    "RequestOutput": "minillm.outputs",
    "CompletionOutput": "minillm.outputs",
    "SamplingParams": "minillm.request",
    "Request": "minillm.request",
    "Engine": "minillm.engine",
}

__all__ = ["LLM", "CompletionOutput", "Engine", "Request", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'minillm' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
