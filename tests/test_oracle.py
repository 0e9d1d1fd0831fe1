"""Whatever schedules and caches, the tokens are those of the uncached loop in float64."""

import pytest
from harness import POLICIES, oracle, real, request, tokens_of

from minillm.model.tiny import tiny

MODEL = tiny(0)
SIZES = [("A", 7, 6), ("B", 7, 6), ("C", 3, 4), ("D", 17, 9), ("E", 1, 12)]
MIX = [request(*size) for size in SIZES]
SAMPLED = [request(*size, params={"temperature": 1.0, "seed": 5, "n": 2}) for size in SIZES]

ORACLE = {"greedy": oracle(MODEL, MIX), "two samples": oracle(MODEL, SAMPLED)}
WORKLOADS = {"greedy": MIX, "two samples": SAMPLED}

CASES = {
    "single": ("single", {"columns": 30, "max_samples": 2}),
    "static of 2": ("static", {"max_batch_size": 2, "columns": 30}),
    "static of 10": ("static", {"max_batch_size": 10, "columns": 30}),
    "naive static": ("naive static", {"max_batch_size": 4, "columns": 40, "passes_per_batch": 12}),
    "dynamic": ("dynamic", {"max_batch_size": 8, "columns": 30, "preferred_batch_sizes": [4], "max_queue_delay": 2.5}),
    "ragged": ("ragged", {"max_batch_size": 8, "columns": 30, "preferred_batch_sizes": [4], "max_queue_delay": 2.5}),
    "orca": ("orca", {"max_bs": 3, "n_slots": 30}),
    "orca with room": ("orca", {"max_bs": 8, "n_slots": 300}),
    "vllm under pressure": ("vllm", {"num_blocks": 12, "block_size": 4, "swap_blocks": 12}),
    "vllm with a watermark": ("vllm", {"num_blocks": 14, "block_size": 4, "watermark": 1, "swap_blocks": 20}),
    "vllm of one-token blocks": ("vllm", {"num_blocks": 54, "block_size": 1, "swap_blocks": 80}),
    "vllm with room": ("vllm", {"num_blocks": 64, "block_size": 16}),
    "splitfuse in chunks of 5": ("splitfuse", {"num_blocks": 9, "block_size": 4, "token_budget": 5}),
    "splitfuse with room": ("splitfuse", {"num_blocks": 40, "block_size": 8, "token_budget": 32}),
}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("case", CASES)
def test_every_policy_generates_the_oracles_tokens(case, workload, depth):
    policy, options = CASES[case]
    scheduler = POLICIES[policy](**options)
    engine = real(MODEL, scheduler, WORKLOADS[workload], depth=depth)
    assert tokens_of(engine.run()) == ORACLE[workload]
    scheduler.check_integrity()
