"""The CUDA kernels and the engine on them, checked and timed on a GPU: ``make gpu-check``.

It needs torch, numba (with numba-cuda where that is installed) and numpy, and takes minutes. Without a GPU the same
checks run in the kernel lab on small sizes: numbers are checked, nothing is timed, and the report says so.
"""

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numba.cuda
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import cuda
from kernels.cuda.flash_attention import flash_attention
from kernels.cuda.map import axpy, axpy_grid_stride
from kernels.cuda.matmul import matmul_naive, matmul_tiled
from kernels.cuda.paged_flash_decoding import combine, parts_for
from kernels.cuda.reduction import sum_rows_shared, sum_rows_shuffle
from kernels.cuda.softmax import softmax_online, softmax_two_pass
from minillm.batch import BlockMoves
from minillm.cache.memory import PagedMemory
from minillm.cache.paged_cuda import CudaPagedCache
from minillm.model.tiny import TINY, tiny
from minillm.model.transformer import ModelConfig, causal_attention

SMOLLM2 = ModelConfig(49_152, 576, 1536, 30, 9, 3, 64, 2048, rope_theta=100_000.0)
"""SmolLM2-135M's shape (its configuration on the Hugging Face hub), with an untied head, as ``tiny`` has it."""
TOLERANCE = {torch.float16: 2e-3, torch.float32: 1e-4}
"""Of an error, against what is right there plus the root mean square of all that is right: storing a result in float16
rounds it by 2**-11, 5e-4, of itself; float32's errors come from sums of thousands."""
SMOLLM2_HEADS, LLAMA_3_8B_HEADS = (9, 3, 64), (32, 8, 128)
"""Query heads, key heads and head_dim (the models' configurations on the Hugging Face hub)."""
HEADS = (SMOLLM2_HEADS, (8, 2, 80), (8, 8, 128), (18, 2, 256))
"""Those of the checks: also a head_dim that is no multiple of a warp, a key head for each query head, and the longest
head_dim, with more query heads to a key head than a block has warps."""
DECODES = (
    (SMOLLM2_HEADS, 64, 2048),
    (SMOLLM2_HEADS, 512, 2048),
    (SMOLLM2_HEADS, 64, 16_384),
    (SMOLLM2_HEADS, 1, 131_072),
    (LLAMA_3_8B_HEADS, 64, 2048),
)
"""Heads, sequences and the context of each, in the comparison of decode kernels."""
BLOCK_SIZE = 16
COPY_BYTES = 2**30
REPORT = Path("gpu-check.json")


Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where kernels run. ``array`` makes of a tensor a kernel's argument that shares its memory."""

    device: torch.device
    array: Callable[[Tensor], Any]
    launching: Callable[[], AbstractContextManager[Any]]
    """Kernels may be launched within this."""
    large: bool
    """Whether sizes are a GPU's, not a test's."""

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random numbers, the same for the same shape."""
        generator = torch.Generator(self.device).manual_seed(sum(shape))
        return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Room for a result: NaN, so that what is not written shows."""
        return torch.full(shape, torch.nan, dtype=dtype, device=self.device)

    def ints(self, values: Any) -> Any:
        """A kernel's argument of int64."""
        return self.array(torch.as_tensor(np.asarray(values, np.int64)).to(self.device))

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a host function, tensors as kernels take them."""
        self.ready(function, *arguments)()

    def ready(self, function: Callable[..., None], *arguments: Any) -> Run:
        """The same call, ready to be repeated."""
        return partial(function, *(self.array(each) if isinstance(each, Tensor) else each for each in arguments))


@dataclass(frozen=True, slots=True)
class Check:
    """A kernel's largest error against float64, as ``TOLERANCE`` counts it; and what is allowed."""

    kernel: str
    storage: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the error is within bounds; NaN is not."""
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class Decode:
    """One decode step in float16 over ``kv_bytes`` of keys and values; the kernel's or torch's median time."""

    name: str
    heads: tuple[int, int, int]
    sequences: int
    context: int
    kv_bytes: int
    seconds: float

    @property
    def gigabytes_per_s(self) -> float:
        """Keys and values read, in 10^9 bytes."""
        return self.kv_bytes / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class Served:
    """The engine's run: how many of its sequences have the tokens of the uncached loop, and how fast it was."""

    dtype: str
    sequences: int
    equal: int
    tokens: int
    seconds: float


@dataclass(slots=True)
class Report:
    """Everything that was found. ``copy_gigabytes_per_s`` counts bytes read and written."""

    date: str
    device: str
    versions: dict[str, str]
    missing: list[str]
    failures: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    copy_gigabytes_per_s: float | None = None
    decodes: list[Decode] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all numbers are right; float16's tokens may differ from float32's loop and do not count."""
        served = all(run.equal == run.sequences for run in self.served if run.dtype == "float32")
        return not self.failures and served and all(check.passed for check in self.checks)


def missing() -> list[str]:
    """What a measurement needs and this machine has not, a sentence each."""
    found = []
    if not torch.cuda.is_available():
        found.append("torch sees no CUDA GPU")
    if not numba.cuda.is_available():
        found.append("numba sees no CUDA GPU, or finds no driver or compiler for it")
    return found


def machine() -> Machine:
    """The GPU, or the kernel lab where there is none."""
    if not missing():
        return Machine(torch.device("cuda"), numba.cuda.as_cuda_array, nullcontext, large=True)
    from kernels import lab

    return Machine(torch.device("cpu"), Tensor.numpy, lab.run, large=False)


def measure(on: Machine, report: Report, note: Callable[[], None] = lambda: None) -> None:
    """Fill the report, step by step, and ``note`` each; a step that fails is reported, and the others go on."""
    with on.launching():
        for name, step in steps(on, report):
            try:
                step()
            except Exception as error:
                traceback.print_exc()
                report.failures.append(f"{name}: {type(error).__name__}: {error}")
            note()


def steps(on: Machine, report: Report) -> Iterator[tuple[str, Run]]:
    """What is to be done, each by its name."""
    for storage in TOLERANCE:
        checks = {"practice": _practice_checks, "cache": _cache_checks, "attention": _attention_checks}
        for name, check in checks.items():
            yield f"{name} checks in {_name(storage)}", partial(_extend, report.checks, check, on, storage)
    for dtype in TOLERANCE if on.large else [torch.float32]:
        yield f"engine in {_name(dtype)}", partial(_extend, report.served, serve, on, dtype)
    if on.large:
        yield "copy", partial(time_copy, on, report)
        for case in DECODES:
            yield f"decode {case}", partial(_extend, report.decodes, decodes, on, *case)


def _extend(found: list[Any], what: Callable[..., Iterable[Any]], *arguments: Any) -> None:
    """One after the other, so that what was found before an error is kept."""
    for each in what(*arguments):
        found.append(each)


def _check(kernel: Any, storage: torch.dtype, out: Tensor, expected: Tensor) -> Check:
    """A NaN anywhere makes the error NaN, which passes no check."""
    right = expected.double()
    errors = (out.double() - right).abs() / (right.abs() + right.square().mean().sqrt())
    return Check(kernel.__qualname__, _name(storage), errors.max().item(), TOLERANCE[storage])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _practice_checks(on: Machine, storage: torch.dtype) -> Iterator[Check]:
    elements, rows, columns = (1_000_003, 1000, 5001) if on.large else (300, 2, 300)
    x, y = on.randn(2, elements, dtype=storage)
    kernel: Any  # the steps of the ladder take different arguments
    for kernel in (axpy, axpy_grid_stride):
        out = on.empty(elements, dtype=storage)
        on.call(kernel, 1.5, x, y, out)
        yield _check(kernel, storage, out, 1.5 * x.double() + y.double())
    table = on.randn(rows, columns, dtype=storage)
    for kernel in (sum_rows_shared, sum_rows_shuffle):
        out = on.empty(rows)
        on.call(kernel, table, out)
        yield _check(kernel, storage, out, table.double().sum(1))
    for kernel in (softmax_two_pass, softmax_online):
        out = on.empty(rows, columns, dtype=storage)
        on.call(kernel, table, out)
        yield _check(kernel, storage, out, table.double().softmax(1))
    m, k, n = (1000, 515, 777) if on.large else (17, 19, 5)
    a, b = on.randn(m, k, dtype=storage), on.randn(k, n, dtype=storage)
    for kernel in (matmul_naive, matmul_tiled):
        out = on.empty(m, n)
        on.call(kernel, a, b, out)
        yield _check(kernel, storage, out, a.double() @ b.double())


@dataclass(frozen=True, slots=True)
class Pages:
    """A random paged cache: every block is used, in a random order."""

    k: Tensor
    v: Tensor
    block_tables: Any
    context_lens: Any

    def sequence(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence in order, ``[context, kv_heads, head_dim]``."""
        length = self.context_lens[number]
        blocks = torch.as_tensor(self.block_tables[number][: -(-length // self.k.shape[2])], device=self.k.device)
        keys, values = (pages[blocks].transpose(1, 2).flatten(0, 1)[:length] for pages in (self.k, self.v))
        return keys, values


def pages(on: Machine, context_lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype) -> Pages:
    """A cache that holds sequences of these lengths."""
    blocks = [-(-length // BLOCK_SIZE) for length in context_lens]
    order = np.random.default_rng(0).permutation(sum(blocks))
    tables = np.full((len(blocks), max(blocks)), -1, np.int64)
    for row, (end, count) in enumerate(zip(np.cumsum(blocks), blocks, strict=True)):
        tables[row, :count] = order[end - count : end]
    k, v = on.randn(2, sum(blocks), kv_heads, BLOCK_SIZE, head_dim, dtype=dtype)
    return Pages(k, v, tables, np.array(context_lens, np.int64))


def _cache_checks(on: Machine, storage: torch.dtype) -> Iterator[Check]:
    cache, other = pages(on, [40, 7], 3, 64, storage), pages(on, [50, 20], 3, 64, storage)
    expected, slots = torch.stack((cache.k, cache.v)), [3, 17, 40]
    new = on.randn(2, 3, 3, 64, dtype=storage)
    on.call(cuda.reshape_and_cache, *new, cache.k, cache.v, on.ints(slots))
    for token, slot in enumerate(slots):
        expected[:, slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = new[:, token]
    yield _check(cuda.reshape_and_cache, storage, torch.stack((cache.k, cache.v)), expected)
    on.call(cuda.copy_blocks, cache.k, cache.v, on.ints([[0, 3], [1, 2]]))
    expected[:, [3, 2]] = expected[:, [0, 1]]
    yield _check(cuda.copy_blocks, storage, torch.stack((cache.k, cache.v)), expected)
    on.call(cuda.swap_blocks, cache.k, cache.v, other.k, other.v, on.ints([[0, 4], [1, 0]]))
    yield _check(cuda.swap_blocks, storage, torch.stack((other.k, other.v))[:, [4, 0]], expected[:, [0, 1]])
    yield _moves_check(on, storage)


def _moves_check(on: Machine, storage: torch.dtype) -> Check:
    """The engine's cache: blocks 0 and 2 go to the host and come back as 3 and 1, and then 4 is a copy of 3."""
    cache = CudaPagedCache(TINY, PagedMemory(5, BLOCK_SIZE, swap_blocks=2), storage, on.device, on.array)
    for pool in (cache.k, cache.v):
        pool.copy_(on.randn(*pool.shape, dtype=storage))
    expected = torch.stack((cache.k, cache.v))[:, :, [0, 2, 0]]
    cache.apply(BlockMoves(swap_out=((0, 1), (2, 0))))
    for pool in (cache.k, cache.v):
        pool.fill_(torch.nan)
    cache.apply(BlockMoves(swap_in=((1, 3), (0, 1)), copies=((3, 4),)))
    return _check(CudaPagedCache.apply, storage, torch.stack((cache.k, cache.v))[:, :, [3, 1, 4]], expected)


def _attention_checks(on: Machine, storage: torch.dtype) -> Iterator[Check]:
    for heads, kv_heads, head_dim in HEADS if on.large else ((3, 1, 24),):
        lengths = [1, 300, 1000, 17] if on.large else [1, 40]
        scale = head_dim**-0.5
        cache = pages(on, lengths, kv_heads, head_dim, storage)
        q = on.randn(len(lengths), heads, head_dim, dtype=storage)
        expected = _expected(q, cache, [1] * len(lengths), scale)
        for kernel in (_decode, _flash_decode, _token_decode):
            out = on.empty(*q.shape, dtype=storage)
            kernel(on, q, cache, scale, out)()
            yield replace(_check(kernel, storage, out, expected), kernel=f"{KERNEL_NAMES[kernel]} {(heads, head_dim)}")
        yield _prefill_check(on, storage, cache, heads, scale)
        yield _flash_check(on, storage, cache, heads, scale)
    yield _combine_check(on, storage)


def _expected(q: Tensor, cache: Pages, rows: list[int], scale: float) -> Tensor:
    """Attention in float64, ``[tokens, heads, head_dim]``."""
    parts, start = [], 0
    for number, count in enumerate(rows):
        keys, values = cache.sequence(number)
        parts.append(causal_attention(q[start : start + count].double(), keys.double(), values.double(), scale))
        start += count
    return torch.cat(parts)


def _prefill_check(on: Machine, storage: torch.dtype, cache: Pages, heads: int, scale: float) -> Check:
    rows = [int(min(length, 100 if on.large else 3)) for length in cache.context_lens]
    q = on.randn(sum(rows), heads, cache.k.shape[3], dtype=storage)
    out = on.empty(*q.shape, dtype=storage)
    tables = on.ints(cache.block_tables), on.ints(cache.context_lens), on.ints(np.concatenate(([0], np.cumsum(rows))))
    on.call(cuda.paged_prefill_attention, q, cache.k, cache.v, *tables, scale, out, max(rows))
    found = _check(cuda.paged_prefill_attention, storage, out, _expected(q, cache, rows, scale))
    return replace(found, kernel=f"{found.kernel} {(heads, cache.k.shape[3])}")


def _flash_check(on: Machine, storage: torch.dtype, cache: Pages, heads: int, scale: float) -> Check:
    keys, values = (each.contiguous() for each in cache.sequence(1))
    q = on.randn(20, heads, keys.shape[2], dtype=storage)
    out, log_sums = on.empty(*q.shape, dtype=storage), on.empty(20, heads)
    on.call(flash_attention, q, keys, values, scale, out, log_sums)
    expected = causal_attention(q.double(), keys.double(), values.double(), scale)
    return replace(_check(flash_attention, storage, out, expected), kernel=f"flash_attention {(heads, keys.shape[2])}")


def _combine_check(on: Machine, storage: torch.dtype) -> Check:
    partial_outputs, log_sums = on.randn(5, 3, 4, 64), on.randn(5, 3, 4)
    out = on.empty(3, 4, 64, dtype=storage)
    on.call(combine, partial_outputs, log_sums, out)
    weights = log_sums.double().softmax(0).unsqueeze(-1)
    return _check(combine, storage, out, (weights * partial_outputs.double()).sum(0))


def _decode(on: Machine, q: Tensor, cache: Pages, scale: float, out: Tensor) -> Run:
    """A launch of the plain decode kernel, ready to be repeated."""
    tables = on.ints(cache.block_tables), on.ints(cache.context_lens)
    return on.ready(cuda.paged_decode_attention, q, cache.k, cache.v, *tables, scale, out)


def _flash_decode(on: Machine, q: Tensor, cache: Pages, scale: float, out: Tensor) -> Run:
    """Launches of Flash-Decoding's two kernels."""
    tables = on.ints(cache.block_tables), on.ints(cache.context_lens)
    parts = parts_for(int(cache.context_lens.max()))
    workspace = on.empty(parts, *q.shape), on.empty(parts, *q.shape[:2])
    return on.ready(cuda.paged_flash_decoding, q, cache.k, cache.v, *tables, scale, out, *workspace)


def _token_decode(on: Machine, q: Tensor, cache: Pages, scale: float, out: Tensor) -> Run:
    """A launch of the kernel for tables of single tokens, on the same cache laid out by tokens."""
    _, kv_heads, block_size, head_dim = cache.k.shape
    k, v = (each.transpose(1, 2).reshape(-1, kv_heads, head_dim).contiguous() for each in (cache.k, cache.v))
    offsets = np.arange(block_size)
    tables = (cache.block_tables[:, :, None] * block_size + offsets).reshape(len(q), -1)
    tokens = on.ints(tables), on.ints(cache.context_lens)
    return on.ready(cuda.token_attention, q, k, v, *tokens, scale, out)


def _torch_decode(q: Tensor, cache: Pages, scale: float) -> Run:
    """torch's attention over the same keys and values, gathered before: its time is without the gathering."""
    gathered = [cache.sequence(number) for number in range(len(q))]
    keys, values = (torch.stack(each).transpose(1, 2).contiguous() for each in zip(*gathered, strict=True))
    queries = q.unsqueeze(2)

    def run() -> None:
        F.scaled_dot_product_attention(queries, keys, values, scale=scale, enable_gqa=True)

    return run


KERNEL_NAMES: dict[Any, str] = {
    _decode: "paged_decode_attention",
    _flash_decode: "paged_flash_decoding",
    _token_decode: "token_attention",
}


def decodes(on: Machine, heads: tuple[int, int, int], sequences: int, context: int) -> Iterator[Decode]:
    """One decode step in float16, by each kernel and by torch."""
    query_heads, kv_heads, head_dim = heads
    cache = pages(on, [context] * sequences, kv_heads, head_dim, torch.float16)
    q = on.randn(sequences, query_heads, head_dim, dtype=torch.float16)
    kv_bytes = 2 * sequences * context * kv_heads * head_dim * 2
    scale = head_dim**-0.5
    runs = {name: kernel(on, q, cache, scale, torch.empty_like(q)) for kernel, name in KERNEL_NAMES.items()}
    runs["scaled_dot_product_attention"] = _torch_decode(q, cache, scale)
    for name, run in runs.items():
        yield Decode(name, heads, sequences, context, kv_bytes, _seconds(on, run))


def time_copy(on: Machine, report: Report) -> None:
    """How fast the device copies ``COPY_BYTES``, the measure of all the others."""
    source, target = (torch.zeros(COPY_BYTES, dtype=torch.uint8, device=on.device) for _ in "st")
    report.copy_gigabytes_per_s = 2 * COPY_BYTES / _seconds(on, partial(target.copy_, source)) / 1e9


def _seconds(on: Machine, run: Run, repeats: int = 20) -> float:
    """Median time on the GPU, by its own clock.

    Before each run the GPU is given a millisecond or so of writing. That leaves nothing of the run's data in its
    caches, and the host has launched the run before the GPU comes to it, so that no launch is waited for.
    """
    other = torch.empty(COPY_BYTES, dtype=torch.uint8, device=on.device)
    times: list[float] = []
    for _ in range(3 + repeats):
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        for _ in range(4):
            other.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return median(times[3:])


def serve(on: Machine, dtype: torch.dtype) -> Iterator[Served]:
    """The engine on a random model of SmolLM2's shape (a tiny one in the lab), against the uncached loop."""
    let_tokenizers_be_missing()
    from minillm.clock import WallClock
    from minillm.engine import Engine, Limits
    from minillm.executor import TorchExecutor
    from minillm.model.naive import generate
    from minillm.request import Request, SamplingParams
    from minillm.runner import WallRunner
    from minillm.schedulers.vllm import VLLM

    config, length, count = (SMOLLM2, 16, 8) if on.large else (TINY, 3, 2)
    model = tiny(0, config, torch.float32).to(on.device, dtype)
    params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(range(1 + i, 6 + 20 * i)), params) for i in range(count)]

    def served() -> dict[str, list[int]]:
        scheduler = VLLM(PagedMemory(128 if on.large else 8, BLOCK_SIZE))
        cache = CudaPagedCache(config, scheduler.memory, dtype, on.device, on.array)
        clock = WallClock()
        runner = WallRunner(TorchExecutor(model, cache), clock)
        engine = Engine(scheduler, runner, clock, Limits(config.vocab_size, config.max_context))
        for request in requests:
            engine.add(request)
        tokens: dict[str, list[int]] = {}
        for output in engine.run():
            tokens.setdefault(output.sequence, []).extend(output.token_ids)
        return tokens

    tokens = served()  # compiles the kernels
    start = time.perf_counter()
    served()
    took = time.perf_counter() - start
    expected = [generate(model, list(request.prompt_token_ids), params).token_ids for request in requests]
    equal = sum(tokens[request.id] == wanted for request, wanted in zip(requests, expected, strict=True))
    yield Served(_name(dtype), count, equal, count * length, took)


def let_tokenizers_be_missing() -> None:
    """Where the tokenizer's packages are not installed, stand in for it: requests of token ids need none."""
    if all(find_spec(name) for name in ("tokenizers", "gguf", "jinja2")):
        return
    stand_in: Any = ModuleType("minillm.model.tokenizer")
    stand_in.Tokenizer = stand_in.IncrementalDetokenizer = object
    sys.modules.setdefault("minillm.model.tokenizer", stand_in)


def _device_name(on: Machine) -> str:
    return torch.cuda.get_device_name() if on.large else "the kernel lab, on the CPU"


def _versions() -> dict[str, str]:
    versions = {"torch": torch.__version__, "numba": numba.__version__, "numpy": np.__version__}
    return versions | ({"numba-cuda": version("numba-cuda")} if find_spec("numba_cuda") else {})


def lines(report: Report) -> Iterator[str]:
    """The report as one table."""
    yield ", ".join((report.date, report.device, *map(" ".join, report.versions.items())))
    for sentence in report.missing:
        yield f"missing: {sentence}"
    for check in report.checks:
        verdict = "ok" if check.passed else "WRONG"
        yield f"{verdict:6}{check.kernel:42}{check.storage:9}error {check.error:.1e}, allowed {check.allowed:.1e}"
    for run in report.served:
        what = f"engine, {run.sequences} sequences, {run.tokens} tokens"
        yield f"{'':6}{what:42}{run.dtype:9}{run.equal} as without a cache, {run.tokens / run.seconds:.0f} tokens/s"
    for decode in report.decodes:
        what = f"{decode.name} {decode.heads} {decode.sequences} x {decode.context}"
        yield f"{'':6}{what:51}{decode.gigabytes_per_s:.0f} GB/s, {decode.seconds * 1e6:.0f} us"
    for sentence in report.failures:
        yield f"failed: {sentence}"
    if report.missing:
        yield "unmeasured: bandwidth and speed, for there is no GPU; the checks ran in the kernel lab on small sizes"
    if report.copy_gigabytes_per_s is not None:
        yield f"{'':6}{'copy on the device':51}{report.copy_gigabytes_per_s:.0f} GB/s"


def main() -> int:
    """Check, time, write the table to standard output and the report to ``REPORT``; 1 if a number is wrong."""
    warnings.filterwarnings("ignore", "Grid size")  # numba warns of small ones, and the checks' are
    on = machine()
    report = Report(datetime.now(UTC).isoformat(timespec="seconds"), _device_name(on), _versions(), missing())

    def note() -> None:
        REPORT.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")

    measure(on, report, note)
    sys.stdout.writelines(f"{line}\n" for line in lines(report))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
