"""Writing and moving the blocks of a paged cache on the CPU."""

from kernels.checks import Floats, Ints, check_caches, check_like_cache
from kernels.cpu.compiled import compiled


def reshape_and_cache(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
    """Store this pass's keys and values, each token's in its slot.

    k, v              ``[tokens, kv_heads, head_dim]``
    k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float32 or float64
    slots             ``[tokens]``: block * block_size + offset

    TypeError or ValueError names an argument that does not fit; nothing is stored then.
    """
    check_caches(k_cache, v_cache)
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    for name, array in (("k", k), ("v", v)):
        if array.dtype != k_cache.dtype:
            raise TypeError(f"{name} is {array.dtype} and the cache {k_cache.dtype}; convert it to the cache's dtype")
        if array.shape != (len(slots), kv_heads, head_dim):
            raise ValueError(f"{name} is {array.shape}; {len(slots)} slots need {(len(slots), kv_heads, head_dim)}")
    if len(slots) and not 0 <= slots.min() <= slots.max() < num_blocks * block_size:
        raise ValueError(
            f"slots run from {slots.min()} to {slots.max()}; the cache has slots 0 to {num_blocks * block_size - 1}"
        )
    store(k, v, k_cache, v_cache, slots)


@compiled
def store(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
    """The loop of ``reshape_and_cache``."""
    block_size = k_cache.shape[2]
    for token in range(len(slots)):
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(k.shape[1]):
            for d in range(k.shape[2]):
                k_cache[block, head, offset, d] = k[token, head, d]
                v_cache[block, head, offset, d] = v[token, head, d]


def copy_blocks(k_cache: Floats, v_cache: Floats, pairs: Ints) -> None:
    """Copy whole blocks within a cache: copy-on-write. pairs ``[copies, 2]`` are (source, target) blocks."""
    swap_blocks(k_cache, v_cache, k_cache, v_cache, pairs)


def swap_blocks(source_k: Floats, source_v: Floats, target_k: Floats, target_v: Floats, pairs: Ints) -> None:
    """Copy whole blocks from one cache to another of the same block shape.

    Caches ``[num_blocks, kv_heads, block_size, head_dim]``; pairs ``[copies, 2]`` are (source, target) blocks.
    """
    check_caches(source_k, source_v)
    check_caches(target_k, target_v)
    check_like_cache(source_k, target_k=target_k)
    if source_k.shape[1:] != target_k.shape[1:]:
        raise ValueError(f"blocks of shape {source_k.shape[1:]} do not fit where blocks are {target_k.shape[1:]}")
    for name, blocks, count in (("source", pairs[:, 0], len(source_k)), ("target", pairs[:, 1], len(target_k))):
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < count:
            raise ValueError(f"{name} blocks are {blocks.min()} to {blocks.max()}; there are blocks 0 to {count - 1}")
    if len(pairs):
        target_k[pairs[:, 1]] = source_k[pairs[:, 0]]
        target_v[pairs[:, 1]] = source_v[pairs[:, 0]]
