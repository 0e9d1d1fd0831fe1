"""The engine on the CUDA kernels: in the lab, on the tiny model, the tokens are those of the uncached loop."""

import pytest
import torch
from harness import LIMITS, oracle, paged, request, simulated, tokens_of

from kernels import lab
from minillm.cache.memory import PagedMemory, RectangleMemory
from minillm.cache.paged_cuda import CudaPagedCache, require_default_stream
from minillm.cache.paged_kernels import KernelPagedCache
from minillm.executor import TorchExecutor
from minillm.model.tiny import TINY, tiny
from minillm.schedulers.splitfuse import SplitFuse
from minillm.schedulers.vllm import VLLM
from minillm.serving import LanguageModel, device_named, make_cache, ready

CPU = torch.device("cpu")


class Watched(CudaPagedCache):
    """Notes which kinds of block moves it was asked for."""

    def apply(self, moves):
        self.kinds = getattr(self, "kinds", set()) | {
            kind for kind in ("swap_out", "swap_in", "copies") if getattr(moves, kind)
        }
        super().apply(moves)


def on_cuda_kernels(model, memory):
    return Watched(model.config, memory, model.dtype, CPU, torch.Tensor.numpy, fill=torch.nan)


def on_cpu_kernels(model, memory):
    return KernelPagedCache(model.config, memory, model.dtype, fill=torch.nan)


POLICIES = {
    "vllm": lambda: paged(VLLM)(num_blocks=7, block_size=3, swap_blocks=9),
    "splitfuse": lambda: paged(SplitFuse)(num_blocks=9, block_size=4, token_budget=5),
}
BACKENDS = [(on_cuda_kernels, torch.float32), (on_cpu_kernels, torch.float32), (on_cpu_kernels, torch.float64)]


def served(model, policy, make_cache):
    """The tokens that the engine gives, with CUDA kernels run by the lab; what the oracle gives; and the cache."""
    branches = {"n": 2, "temperature": 1.0, "seed": 3}
    requests = [request("a", 5, 4), request("b", 7, 3), request("c", 4, 3, params=branches)]
    scheduler = POLICIES[policy]()
    cache = make_cache(model, scheduler.memory)
    engine = simulated(scheduler, requests, execute=TorchExecutor(model, cache, LIMITS.eos_token_ids))
    with lab.run():
        return tokens_of(engine.run()), oracle(model, requests), cache


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("make_cache", "dtype"), BACKENDS)
def test_the_engine_on_the_kernels_gives_the_tokens_of_the_uncached_loop(policy, make_cache, dtype):
    tokens, expected, _ = served(tiny(0, dtype=dtype), policy, make_cache)
    assert tokens == expected


def test_that_run_swaps_and_copies_blocks():
    _, _, cache = served(tiny(0, dtype=torch.float32), "vllm", on_cuda_kernels)
    assert cache.kinds == {"swap_out", "swap_in", "copies"}


def test_a_gpu_that_is_not_there_is_asked_for_in_vain(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="'cuda' needs a CUDA GPU"):
        device_named("cuda")


def test_numba_must_see_the_gpu_as_well(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("numba.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"install minillm\[cuda\]"):
        device_named("cuda")


@pytest.mark.parametrize("name", ["cuda:1", "mps"])
def test_other_devices_are_refused(name):
    with pytest.raises(ValueError, match="has no kernels"):
        device_named(name)


def test_a_model_on_the_cpu_is_not_served_as_if_it_were_on_a_gpu(monkeypatch):
    monkeypatch.setattr("minillm.serving.device_named", torch.device)
    with pytest.raises(ValueError, match="loaded to cpu, not cuda"):
        ready(LanguageModel(tiny(0), None), "auto", "cuda")


def test_padded_batches_have_no_cache_on_a_gpu():
    with pytest.raises(ValueError, match="use a policy with paged memory"):
        make_cache(TINY, RectangleMemory(2, 8), torch.float32, torch.device("cuda"))


def test_a_dtype_without_kernels_is_refused():
    with pytest.raises(ValueError, match=r"not torch\.bfloat16"):
        CudaPagedCache(TINY, PagedMemory(2, 4), torch.bfloat16, CPU)


def test_kernels_are_not_launched_beside_torchs_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "default")
    require_default_stream(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "another")
    require_default_stream(CPU)
    with pytest.raises(RuntimeError, match="nothing orders them"):
        require_default_stream(torch.device("cuda"))
