"""From a model file to a running engine: the parts that serve a real model, put together."""

from dataclasses import dataclass, replace
from pathlib import Path

import numba.cuda
import torch
from torch import Tensor

from minillm.batch import Batch, BlockMoves
from minillm.cache.flat import Pass
from minillm.cache.memory import Memory, PagedMemory
from minillm.cache.paged_kernels import KernelPagedCache
from minillm.cache.rectangle import RectangleCache
from minillm.clock import WallClock
from minillm.engine import Engine, Limits
from minillm.executor import Cache, TorchExecutor
from minillm.model.checkpoint import FLOAT_TYPES
from minillm.model.tokenizer import Tokenizer, load_tokenizer
from minillm.model.transformer import Attend, ModelConfig, Transformer
from minillm.model.weights import default_model_path, load_model
from minillm.runner import WallRunner
from minillm.scheduler import Scheduler

LONGEST_DEFAULT_CONTEXT = 8192
"""In tokens. Some models take 128 k, whose cache alone would fill a laptop's memory: that has to be asked for."""

CPU = torch.device("cpu")
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOAT_TYPES}
"""The types that a model can compute in, by name."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A transformer, and the tokenizer of its vocabulary."""

    transformer: Transformer
    tokenizer: Tokenizer

    def limits(self, max_model_len: int | None = None) -> Limits:
        """What requests must respect: prompt and output take ``max_model_len`` tokens at most.

        By default as many as the model was made for, but no more than ``LONGEST_DEFAULT_CONTEXT``. Raises ValueError
        for more than the model was made for.
        """
        longest = self.transformer.config.max_context
        length = min(longest, LONGEST_DEFAULT_CONTEXT) if max_model_len is None else max_model_len
        if not 1 <= length <= longest:
            raise ValueError(f"max_model_len is {length}; this model's context has room for 1 to {longest} tokens")
        return Limits(self.transformer.config.vocab_size, length, self.tokenizer.eos_token_ids)


def load(path: str | Path | None = None, dtype: str = "auto", device: str = "cpu") -> LanguageModel:
    """The model at ``path``, or the default one. Raises ValueError for what cannot be loaded or computed here."""
    found = default_model_path() if path is None else Path(path)
    return LanguageModel(load_model(found, dtype_named(dtype), device_named(device)), load_tokenizer(found))


def ready(model: LanguageModel, dtype: str, device: str) -> LanguageModel:
    """A loaded model, if it computes in this dtype on this device. Raises ValueError if not: it is never converted."""
    lies_on = model.transformer.embedding.device.type
    if device_named(device).type != lies_on:
        raise ValueError(f"the model was loaded to {lies_on}, not {device}; say device={lies_on!r}, or load it anew")
    if dtype != "auto" and dtype_named(dtype) != model.transformer.dtype:
        raise ValueError(
            f"the model was loaded in {model.transformer.dtype}, not {dtype}; leave dtype out, or load it anew"
        )
    return model


def dtype_named(name: str) -> torch.dtype:
    """The type to compute in. "auto" is float32, fast on every CPU and exact enough that policies agree.

    Products in bfloat16 by a matrix of 576 x 3072 run, against float32, at 0.6, 1.5 and 3 times the speed for 1, 16 and
    64 rows where the CPU has AMX; at 0.9, 0.6 and 0.6 with AVX512-BF16 alone; at 0.14, 0.02 and 0.01 with AVX2. (One
    Sapphire Rapids core, oneDNN held to each instruction set by ONEDNN_MAX_CPU_ISA; ``minillm doctor`` measures yours.)
    And eight bits of mantissa are few: near ties between tokens then depend on who else is in the batch.

    Raises ValueError for a name that is not "auto" or in ``DTYPES``.
    """
    if name == "auto":
        return torch.float32
    if name not in DTYPES:
        raise ValueError(f"the dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def device_named(name: str) -> torch.device:
    """The device to compute on: ``cpu`` or ``cuda``. Raises ValueError for any other, and says what is missing.

    Another device is never taken instead.
    """
    if name == "cpu":
        return CPU
    if name != "cuda":
        raise ValueError(f"the device {name!r} has no kernels; use cpu or cuda (CUDA_VISIBLE_DEVICES chooses the GPU)")
    if not torch.cuda.is_available():
        raise ValueError(f"the device {name!r} needs a CUDA GPU and torch's CUDA build, and torch sees none; use cpu")
    if not numba.cuda.is_available():
        raise ValueError("the device 'cuda' needs numba's CUDA compiler, which finds none; install minillm[cuda]")
    return torch.device("cuda")


def make_cache(config: ModelConfig, memory: Memory, dtype: torch.dtype, device: torch.device = CPU) -> Cache:
    """The tensors that a policy's memory asks for, for a model that computes in ``dtype`` on this device.

    On the CPU keys and values of a 16-bit model are kept in float32, as its attention reads them. Raises ValueError
    for a dtype or a memory that a GPU has no kernels for.
    """
    if device.type == "cuda":
        return _cuda_cache(config, memory, dtype, device)
    kept = torch.promote_types(dtype, torch.float32)
    cache: Cache = (
        KernelPagedCache(config, memory, kept)
        if isinstance(memory, PagedMemory)
        else RectangleCache(config, memory, kept)
    )
    return cache if dtype == kept else _Widened(cache, kept)


def _cuda_cache(config: ModelConfig, memory: Memory, dtype: torch.dtype, device: torch.device) -> Cache:
    from minillm.cache.paged_cuda import CudaPagedCache  # numba's CUDA side, which a CPU needs not load

    if not isinstance(memory, PagedMemory):
        raise ValueError("a padded batch has no cache on a GPU; use a policy with paged memory, or cpu")
    return CudaPagedCache(config, memory, dtype, device)


def wall_engine(model: LanguageModel, scheduler: Scheduler, limits: Limits, depth: int = 1) -> Engine:
    """An engine that runs a policy on the real model in real time, with ``depth`` batches in flight."""
    share_threads()
    transformer = model.transformer
    cache = make_cache(transformer.config, scheduler.memory, transformer.dtype, transformer.embedding.device)
    executor = TorchExecutor(transformer, cache, limits.eos_token_ids)
    clock = WallClock()
    return Engine(scheduler, WallRunner(executor, clock, depth), clock, limits, model.tokenizer)


def share_threads() -> None:
    """Let numba use no more threads than torch, whose default is one for each physical core.

    When numba starts its threads, one for each logical core, it raises the number for all who share its OpenMP, so
    torch's is set back.
    """
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.get_num_threads()))
    torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class _Widened:
    """A cache for a model of fewer bits: what it is to keep and to look up is widened, its answer narrowed."""

    cache: Cache
    dtype: torch.dtype

    def apply(self, moves: BlockMoves) -> None:
        self.cache.apply(moves)

    def lower(self, batch: Batch) -> Pass:
        inputs = self.cache.lower(batch)
        return replace(inputs, attend=self._widened(inputs.attend))

    def _widened(self, attend: Attend) -> Attend:
        def widened(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(layer, q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)).to(q.dtype)

        return widened
