"""Every policy by name, sized for the same machine: one cache capacity, one batch limit, one context."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minillm.scheduler import PagedMemory, Scheduler


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a policy may use.

    kv_tokens      cache places, in tokens; all policies get the same memory
    block_size     tokens of a block, where the policy has blocks
    max_batch      sequences in one pass
    token_budget   tokens in one pass, for policies that cut prompts
    max_length     longest prompt plus output of any request, in tokens
    max_output     longest output of any request, in tokens
    queue_delay    seconds that dynamic batching may hold a request back to fill a batch
    """

    kv_tokens: int
    max_length: int
    max_output: int
    block_size: int = 16
    max_batch: int = 16
    token_budget: int = 64
    queue_delay: float = 0.0
    swap_tokens: int = 0

    @property
    def paged(self) -> PagedMemory:
        """The whole memory as blocks."""
        return PagedMemory(
            self.kv_tokens // self.block_size, self.block_size, self.swap_tokens // self.block_size
        )
