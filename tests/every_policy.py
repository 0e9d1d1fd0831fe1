"""Every policy, on memory with room for all and on memory that is too small for its crowd."""

from harness import POLICIES

ROOMY = {
    "single": {"columns": 64, "max_samples": 3},
    "static": {"max_batch_size": 8, "columns": 64},
    "naive static": {"max_batch_size": 8, "columns": 64, "passes_per_batch": 12},
    "dynamic": {"max_batch_size": 8, "columns": 64},
    "ragged": {"max_batch_size": 8, "columns": 64},
    "orca": {"max_bs": 8, "n_slots": 512},
    "vllm": {"num_blocks": 128, "block_size": 4, "swap_blocks": 64},
    "splitfuse": {"num_blocks": 128, "block_size": 4, "token_budget": 16},
}
SMALL = {
    "single": {"columns": 36, "max_samples": 3},
    "static": {"max_batch_size": 3, "columns": 36},
    "naive static": {"max_batch_size": 3, "columns": 36, "passes_per_batch": 12},
    "dynamic": {"max_batch_size": 4, "columns": 36, "preferred_batch_sizes": [2], "max_queue_delay": 0.01},
    "ragged": {"max_batch_size": 4, "columns": 36, "max_queue_delay": 0.01},
    "orca": {"max_bs": 3, "n_slots": 70},
    "vllm": {"num_blocks": 22, "block_size": 3, "swap_blocks": 30},
    "splitfuse": {"num_blocks": 14, "block_size": 3, "token_budget": 7},
}


def roomy(policy):
    """The policy with room for eight short requests at once."""
    return POLICIES[policy](**ROOMY[policy])


def small(policy):
    """The policy with so little room that a few requests of 20 prompt and 12 output tokens crowd it."""
    return POLICIES[policy](**SMALL[policy])
