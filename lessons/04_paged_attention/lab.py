"""Lesson 4, Paged attention: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-4              all tasks; T=2 for one of them
    make hint L=4 T=2       the next hint for a task
    make peek L=4 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 4 --task 2`, `minillm lab hint 4 2` and `minillm lab peek 4 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from kernels.checks import Floats, Ints
from kernels.cpu.attention import exp
from kernels.cpu.compiled import compiled
from kernels.cuda.online import DIMS_PER_LANE, WARPS, begin, finish, look_at
from kernels.cuda.warp import WARP
from minillm.cache.blocks import BlockTable, OutOfBlocks
from minillm.cache.flat import PageLayout
from minillm.model.transformer import Attend, causal_attention

# Given in minillm/cache/blocks.py:
#
# class BlockPool:
#     """Blocks ``0 .. num_blocks - 1`` with a reference count each; the block freed last is handed out first."""
#
#     def take(self) -> int:
#         """A free block, with one reference. Raises OutOfBlocks."""
#
#     def share(self, block: int) -> None:
#         """One more owner of a block. Raises ValueError for a free one."""
#
#     def shared(self, block: int) -> bool:
#         """Whether several sequences own the block."""


class BlockManager:
    """Block tables over a pool on the device, and a second pool on the host to swap out to.

    Raises ValueError for a ``block_size`` below 1.
    """

    # Given in minillm/cache/blocks.py:
    #
    # class BlockManager:
    #     def __init__(self, num_blocks: int, block_size: int, swap_blocks: int = 0) -> None:
    #         if block_size < 1:
    #             raise ValueError(f"block_size is {block_size}; a block holds at least 1 token")
    #         self.block_size = block_size
    #         self.device = BlockPool(num_blocks)
    #         self.host = BlockPool(swap_blocks)
    #
    #     @property
    #     def num_free(self) -> int:
    #         """Free blocks on the device."""
    #
    #     def blocks_to_append(self, table: BlockTable, start: int, end: int) -> int:
    #         """Free blocks that ``append`` would take."""

    # Task 1: 10 points, about 10 minutes, section 4.3 Allocating, for 2 functions together. The first:
    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        raise NotImplementedError(
            "lesson 4, task 1: count the blocks that tokens need, and allocate a new table, all of it or nothing"
        )

    # Task 1, function 2 of 2
    def allocate(self, num_tokens: int) -> BlockTable:
        """A new table with room for ``num_tokens`` tokens, of which it takes all or, raising OutOfBlocks, none."""
        raise NotImplementedError(
            "lesson 4, task 1: count the blocks that tokens need, and allocate a new table, all of it or nothing"
        )

    # Task 2: 15 points, about 15 minutes, section 4.4 Sharing blocks, for 3 functions together. The first:
    def fork(self, table: BlockTable) -> BlockTable:
        """A table that shares every block."""
        raise NotImplementedError(
            "lesson 4, task 2: share a table's blocks with a fork, and free a block only when its last owner leaves"
        )

    # Task 2, function 2 of 3
    def free(self, table: BlockTable) -> None:
        """Give a table's blocks up, and empty it."""
        raise NotImplementedError(
            "lesson 4, task 2: share a table's blocks with a fork, and free a block only when its last owner leaves"
        )

    # Task 3: 20 points, about 20 minutes, section 4.5 Copy-on-write
    def append(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
        """Make tokens ``[start, end)`` of a table writable, and return the block copies that must come first.

        There is at least one token, and a copy is a pair (old block, new block).
        Room that is missing is added; a shared block in the range is replaced by a copy of its own (copy-on-write).
        Takes all that it needs, or raises OutOfBlocks and changes nothing.
        """
        raise NotImplementedError(
            "lesson 4, task 3: make tokens writable: add missing blocks, and replace shared ones by copies (copy-on-"
            "write)"
        )


class BlockPool:
    """Blocks ``0 .. num_blocks - 1`` with a reference count each; the block freed last is handed out first.

    Raises ValueError for a negative number of blocks.
    """

    # Given in minillm/cache/blocks.py:
    #
    # class BlockPool:
    #     def __init__(self, num_blocks: int) -> None:
    #         if num_blocks < 0:
    #             raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 0 blocks")
    #         self.num_blocks = num_blocks
    #         self._free = list(reversed(range(num_blocks)))
    #         self._references = [0] * num_blocks

    # Task 2, function 3 of 3
    def release(self, block: int) -> None:
        """One owner less; the last one to leave frees the block. Raises ValueError for a free one."""
        raise NotImplementedError(
            "lesson 4, task 2: share a table's blocks with a fork, and free a block only when its last owner leaves"
        )


# Task 4: 10 points, about 10 minutes, section 4.6 From position to slot
def slots_of(rows: Ints, positions: Ints, block_tables: Ints, block_size: int) -> Ints:
    """Where tokens lie in the paged cache, ``[tokens]`` (int64): block * block_size + offset.

    rows, positions  ``[tokens]``: the row of ``block_tables`` of each token's sequence, and its place in that sequence
    block_tables     ``[sequences, max_blocks]``: the blocks of each sequence, in order
    """
    raise NotImplementedError("lesson 4, task 4: translate positions into slots through the block tables")


# Given in minillm/model/transformer.py:
#
# Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
#
# def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
#     """The last ``rows`` tokens of a sequence look back on all of it.
#
#     ``softmax(q k^T * scale) v`` (Vaswani et al. 2017, equation 1) with everything to the right masked out.
#     q ``[rows, heads, head_dim]``; k, v ``[context, kv_heads, head_dim]``; result ``[rows, heads, head_dim]``.
#     """

# Given in minillm/cache/flat.py:
#
# @dataclass(frozen=True, slots=True)
# class PageLayout:
#     """Where a ragged batch's tokens lie in the paged cache."""
#     slots: Ints
#     query_start: Ints
#     context_lens: Ints
#     block_tables: Ints


class PagedCache:
    """Keys and values ``[layers, num_blocks, kv_heads, block_size, head_dim]``, on the device and swapped out.

    ``fill`` is what a fresh block holds. Nothing ever reads it: tests fill with NaN to prove that. Raises ValueError
    for a dtype other than float32 and float64.
    """

    # Given in minillm/cache/paged.py:
    #
    # class PagedCache:
    #     def __init__(self, config: ModelConfig, memory: PagedMemory, dtype: torch.dtype, fill: float = 0.0) -> None:
    #         if dtype not in (torch.float32, torch.float64):
    #             raise ValueError(f"the CPU kernels keep keys and values in float32 or float64, not {dtype}")
    #         self.block_size = memory.block_size
    #         self.scale = config.head_dim**-0.5
    #         block = (config.kv_heads, memory.block_size, config.head_dim)
    #         self.k, self.v = (_pages((config.num_layers, memory.num_blocks, *block), fill, dtype) for _ in "kv")
    #         self.swapped_k, self.swapped_v = (
    #             _pages((config.num_layers, memory.swap_blocks, *block), fill, dtype) for _ in "kv"
    #         )

    # Task 5: 20 points, about 25 minutes, section 4.7 Attention over gathered pages, for 3 functions together. The
    #         first:
    def store(self, layer: int, k: Tensor, v: Tensor, slots: Ints) -> None:
        """Write keys and values ``[tokens, kv_heads, head_dim]`` to their slots ``[tokens]``."""
        raise NotImplementedError(
            "lesson 4, task 5: store keys and values in their slots, gather a sequence's pages, and attend to them"
        )

    # Task 5, function 2 of 3
    def gather(self, layer: int, table: Ints, length: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a sequence's first ``length`` tokens, ``[length, kv_heads, head_dim]`` each, in order.

        ``table`` ``[max_blocks]`` lists the sequence's blocks; entries beyond those that ``length`` needs are not read.
        """
        raise NotImplementedError(
            "lesson 4, task 5: store keys and values in their slots, gather a sequence's pages, and attend to them"
        )

    # Task 5, function 3 of 3
    def attend(self, layout: PageLayout) -> Attend:
        """Attention for one ragged batch: store this pass's keys and values, then gather each sequence's pages.

        What is returned is a function of (layer, q, k, v): q ``[tokens, heads, head_dim]`` and k, v ``[tokens,
        kv_heads, head_dim]`` of the pass give ``[tokens, heads, head_dim]``.

        The readable reference, one sequence after the other; ``KernelPagedCache`` reads the pages where they lie.
        """
        raise NotImplementedError(
            "lesson 4, task 5: store keys and values in their slots, gather a sequence's pages, and attend to them"
        )


# Given in kernels/cpu/attention.py:
#
# @compiled_inline
# def exp(x: float) -> float:
#     """``e^x`` for x <= 0, to half a unit in the last place of 1, by arithmetic that becomes vector instructions.
#
#     ``e^x = 2^n e^r`` with n the integer nearest to ``x / ln 2``; e^r is the Taylor series, as far as it counts.
#     """


# Task 6: 25 points, about 25 minutes, section 4.8 The online softmax, for 2 functions together. The first:
@compiled
def rescale(scores: Floats, visible: Ints, new_maximum: Floats, maximum: Floats, total: Floats, summed: Floats) -> None:
    """Turn a tile's scores into ``exp(score - new_maximum)``, and bring what earlier tiles left to the new maximum.

    scores       ``[vectors, TILE]``: of vector i only the first ``visible[i]`` count, and the rest are not read
    visible      ``[vectors]``: where it is 0, the vector's scores and running values stay as they are
    new_maximum  ``[vectors]``: the largest of the running maximum and the visible scores
    maximum, total, summed    ``[vectors]``, ``[vectors]``, ``[vectors, head_dim]``: the running values, -inf and 0 at
                 first. The maximum becomes the new one; total and weighted sum shrink to it, and the tile's
                 exponentials are added to the total. Their share of the weighted sum is added later, by the caller.

    The online softmax of Milakov and Gimelshein 2018; as in FlashAttention-2, dividing by the total is left to the end.
    """
    raise NotImplementedError(
        "lesson 4, task 6: the online softmax: rescale what earlier tiles left, and combine parts that were attended to"
        " apart"
    )


# Task 6, function 2 of 2
@compiled
def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts of each row, weighted by their sums of exponentials, and write that to ``out``.

    partial   ``[parts, tokens, heads, head_dim]``: the attention to each part of the keys alone
    log_sums  ``[parts, tokens, heads]``: the logarithm of each part's sum of exponentials; where it is -inf, nobody
              wrote the part, and it is not read
    out       ``[tokens, heads, head_dim]``: zero where no part was written
    """
    raise NotImplementedError(
        "lesson 4, task 6: the online softmax: rescale what earlier tiles left, and combine parts that were attended to"
        " apart"
    )


# Given in kernels/cuda/reshape_and_cache.py:
#
# def reshape_and_cache(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
#     """Store this pass's keys and values, each token's in its slot.
#
#     k, v              ``[tokens, kv_heads, head_dim]``, with any strides
#     k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float16 or float32
#     slots             ``[tokens]`` int64: block * block_size + offset, each slot once
#
#     TypeError or ValueError names an argument that does not fit; what slots hold is checked where the host can see it.
#     """
#     tokens, kv_heads, head_dim = check_store(k, v, k_cache, v_cache, slots)
#     if tokens:
#         threads = whole_warps(kv_heads * head_dim, MOST_THREADS)
#         reshape_and_cache_kernel[tokens, threads](k, v, k_cache, v_cache, slots)
#
# MOST_THREADS = 256

# Given in kernels/cuda/warp.py:
#
# def whole_warps(threads: int, most: int) -> int:
#     """So many threads in whole warps, but no more than ``most``."""


# Task 7: 5 points, about 10 minutes, section 4.10 On a GPU
@cuda.jit
def reshape_and_cache_kernel(k: Floats, v: Floats, k_cache: Floats, v_cache: Floats, slots: Ints) -> None:
    """A block for each token; its threads copy neighbouring elements of all heads.

    Adds: tokens need not be neighbours in the cache. Costs: a head's row is contiguous, but the heads of a token lie
    ``block_size`` rows apart, so a block writes ``kv_heads`` runs of ``head_dim`` elements. Slower than one copy of a
    whole range where all tokens follow each other.
    """
    raise NotImplementedError("lesson 4, task 7: store tokens in their slots on a GPU: a block for each token")


# Given in kernels/cuda/online.py:
#
# WARPS = THREADS // WARP
#
# DIMS_PER_LANE = MAX_HEAD_DIM // WARP
#
# @cuda.jit(device=True)
# def begin(query: Floats, state: Floats, summed: Floats, q: Floats, scale: float) -> None:
#     """Load a lane's elements of a query ``q [head_dim]``, scaled; nothing has been looked at.
#
#     query and summed ``[DIMS_PER_LANE]`` and state ``[2]`` are the thread's own, float32.
#     """
#
# @cuda.jit(device=True)
# def look_at(key: Floats, value: Floats, query: Floats, state: Floats, summed: Floats) -> None:
#     """Take one more ``key [head_dim]`` and its ``value [head_dim]`` into a warp's online softmax.
#
#     All lanes of the warp must come here together, with the same key.
#     """
#
# @cuda.jit(device=True)
# def finish(state: Floats, summed: Floats, out: Floats) -> None:
#     """Merge what the block's warps have, as one warp corrects its sums, and write ``out [head_dim]``.
#
#     Zeros where no warp looked at a key. All threads of the block must come here, for it has a barrier.
#     """

# Given in kernels/cuda/paged_decode_attention.py:
#
# def paged_decode_attention(
#     q: Floats, k_cache: Floats, v_cache: Floats, block_tables: Ints, context_lens: Ints, scale: float, out: Floats
# ) -> None:
#     """Write ``softmax(q k^T * scale) v`` to ``out``, one row for each sequence, over all of its cached tokens.
#
#     q, out            ``[sequences, heads, head_dim]``, in the cache's dtype; head_dim up to 256
#     k_cache, v_cache  ``[num_blocks, kv_heads, block_size, head_dim]``, float16 or float32
#     block_tables      ``[sequences, max_blocks]`` int64: entries beyond a sequence's need are not read
#     context_lens      ``[sequences]`` int64: cached tokens of each sequence; zeros are written where there are none
#
#     Sums are in float32. TypeError or ValueError names an argument that does not fit.
#     """
#     sequences, heads = check_decode(q, k_cache, v_cache, block_tables, context_lens, out)
#     if sequences:
#         kernel = paged_decode_attention_kernel[(sequences, heads), THREADS]
#         kernel(q, k_cache, v_cache, block_tables, context_lens, float32(scale), out)


# Task 8: 5 points, about 10 minutes, section 4.10 On a GPU
@cuda.jit
def paged_decode_attention_kernel(
    q: Floats, k_cache: Floats, v_cache: Floats, block_tables: Ints, context_lens: Ints, scale: float, out: Floats
) -> None:
    """A block for each sequence, blockIdx.x, and query head, blockIdx.y; warp w looks at keys w, w + 4, w + 8, ..."""
    raise NotImplementedError("lesson 4, task 8: attend over pages on a GPU: keys by the table, and for each warp")
