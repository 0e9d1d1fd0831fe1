"""Every policy by name, sized for the same machine: one cache capacity, one batch limit, one longest request."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from minillm.cache.memory import PagedMemory
from minillm.request import Request
from minillm.scheduler import Scheduler
from minillm.schedulers.dynamic import Dynamic
from minillm.schedulers.orca import Orca, Reservation, reserve_exact, reserve_max, reserve_oracle, reserve_pow2
from minillm.schedulers.ragged import Ragged
from minillm.schedulers.single import Single
from minillm.schedulers.splitfuse import SplitFuse
from minillm.schedulers.static import NaiveStatic, Static
from minillm.schedulers.vllm import VLLM


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a policy may use. All policies get the same cache memory, whatever they make of it.

    kv_tokens     cache places, in tokens; at least one longest row
    max_length    longest prompt plus longest output that a batch may have to hold side by side, in tokens
    max_output    longest output of any request, in tokens
    block_size    tokens of a block, where the policy has blocks
    max_num_seqs  most sequences in one pass
    token_budget  most tokens in one pass, for policies that cut prompts
    queue_delay   seconds that dynamic batching may hold a request back to fill a batch

    Raises ValueError for sizes below 1, and for a memory that could not hold the longest request.
    """

    kv_tokens: int
    max_length: int
    max_output: int
    block_size: int = 16
    max_num_seqs: int = 16
    token_budget: int = 64
    queue_delay: float = 0.05

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "max_length", "max_output", "block_size", "max_num_seqs", "token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.kv_tokens < self.max_length:
            raise ValueError(
                f"kv_tokens is {self.kv_tokens}, and the longest row (longest prompt plus longest output) needs "
                f"{self.max_length}; give at least that many, or shorten the requests"
            )

    @property
    def num_blocks(self) -> int:
        """The memory as blocks, the last one rounded up."""
        return -(-self.kv_tokens // self.block_size)

    @property
    def rows(self) -> int:
        """The memory as rows of the longest length, at most as many as a batch has."""
        return min(self.max_num_seqs, self.kv_tokens // self.max_length)


def capacity_for(requests: Iterable[Request], kv_tokens: int, max_num_seqs: int, token_budget: int) -> Capacity:
    """The capacity that serves these requests: its longest row has their longest prompt and their longest output."""
    requests = list(requests)
    max_prompt = max(len(request.prompt_token_ids) for request in requests)
    max_output = max(request.params.max_tokens for request in requests)
    return Capacity(
        kv_tokens, max_prompt + max_output, max_output, max_num_seqs=max_num_seqs, token_budget=token_budget
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy's name, what it does in one line, and how it is made for a capacity."""

    name: str
    summary: str
    build: Callable[[Capacity], Scheduler]


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises ValueError, with all names, when there is none."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; choose from {', '.join(POLICIES)}")
    return POLICIES[name]


def _single(capacity: Capacity) -> Scheduler:
    return Single(capacity.max_length, max_samples=capacity.rows)


def _static(capacity: Capacity) -> Scheduler:
    return Static(capacity.rows, capacity.max_length)


def _naive_static(capacity: Capacity) -> Scheduler:
    return NaiveStatic(capacity.rows, capacity.max_length, passes_per_batch=capacity.max_output)


def _batcher(batcher: type[Dynamic]) -> Callable[[Capacity], Scheduler]:
    """Triton's batcher, which likes full batches best and half full ones too, with a queue delay."""
    return lambda capacity: batcher(
        capacity.rows,
        capacity.max_length,
        preferred_batch_sizes={max(1, capacity.rows // 2), capacity.rows},
        max_queue_delay=capacity.queue_delay,
    )


def _orca(reservation: Reservation = reserve_exact) -> Callable[[Capacity], Scheduler]:
    return lambda capacity: Orca(capacity.max_num_seqs, capacity.kv_tokens, reservation)


def _orca_max(capacity: Capacity) -> Scheduler:
    return Orca(capacity.max_num_seqs, capacity.kv_tokens, reserve_max(capacity.max_length))


def _vllm(capacity: Capacity) -> Scheduler:
    """Defaults of vLLM v0.2.2: a watermark of 1 % of the blocks, prompt passes of 2048 tokens or one longest request.

    The host lends as many blocks again to swap to. The watermark is lower where 1 % would shut the longest request out.
    """
    memory = PagedMemory(capacity.num_blocks, capacity.block_size, swap_blocks=capacity.num_blocks)
    spare = capacity.num_blocks - -(-capacity.max_length // capacity.block_size)
    return VLLM(
        memory,
        watermark=min(capacity.num_blocks // 100, spare),
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=max(2048, capacity.max_length),
    )


def _splitfuse(capacity: Capacity) -> Scheduler:
    memory = PagedMemory(capacity.num_blocks, capacity.block_size)
    return SplitFuse(memory, capacity.token_budget, capacity.max_num_seqs)


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("single", "one request at a time", _single),
        Policy("naive-static", "padded batches that all run to the longest output of the workload", _naive_static),
        Policy("static", "padded batches that run until their longest request ends", _static),
        Policy("dynamic", "padded batches that wait a little to fill up", _batcher(Dynamic)),
        Policy("ragged", "batches that wait a little to fill up, without padding", _batcher(Ragged)),
        Policy("orca", "requests join and leave at every pass, with memory for their whole life", _orca()),
        Policy("orca-max", "Orca that reserves the longest row for everyone", _orca_max),
        Policy("orca-pow2", "Orca that reserves the output rounded up to a power of two", _orca(reserve_pow2)),
        Policy("orca-oracle", "Orca that reserves exactly what will be used", _orca(reserve_oracle)),
        Policy("vllm", "blocks as tokens come, prompts first, preemption when they run out", _vllm),
        Policy("splitfuse", "prompts cut and fused with decodes into passes of equal size", _splitfuse),
    )
}
