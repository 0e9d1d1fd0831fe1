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
from torch import Tensor

from kernels.checks import Floats, Ints
from kernels.cpu.attention import exp
from kernels.cpu.compiled import compiled
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
    """Where tokens lie in the paged cache, ``[tokens]``: block * block_size + offset.

    rows, positions  ``[tokens]``: the row of ``block_tables`` of each token's sequence, and its place in that sequence
    block_tables     ``[sequences, max_blocks]``: the blocks of each sequence, in order
    """
    raise NotImplementedError("lesson 4, task 4: translate positions into slots through the block tables")


# Given in minillm/model/transformer.py:
#
# def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
#     """The last ``rows`` tokens of a sequence look back on all of it."""


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

        The readable reference, one sequence after the other; ``KernelPagedCache`` reads the pages where they lie.
        """
        raise NotImplementedError(
            "lesson 4, task 5: store keys and values in their slots, gather a sequence's pages, and attend to them"
        )


# Given in kernels/cpu/attention.py:
#
# @compiled
# def exp(x: float) -> float:
#     """``e^x`` for x <= 0, to half a unit in the last place of 1, by arithmetic that becomes vector instructions."""


# Task 6: 25 points, about 25 minutes, section 4.8 The online softmax, for 2 functions together. The first:
@compiled
def rescale(scores: Floats, visible: Ints, new_maximum: Floats, maximum: Floats, total: Floats, summed: Floats) -> None:
    """Turn a tile's scores into ``exp(score - new_maximum)``, and bring what earlier tiles left to the new maximum.

    scores ``[vectors, TILE]``; running maximum and total ``[vectors]``; running weighted sum ``[vectors, head_dim]``.
    The online softmax of Milakov and Gimelshein 2018; as in FlashAttention-2, dividing by the total is left to the end.
    """
    raise NotImplementedError(
        "lesson 4, task 6: the online softmax: rescale what earlier tiles left, and combine parts that were attended to"
        " apart"
    )


# Task 6, function 2 of 2
@compiled
def combine(partial: Floats, log_sums: Floats, out: Floats) -> None:
    """Average the parts ``[parts, tokens, heads, head_dim]`` of each row, weighted by their sums of exponentials.

    A row that no part wrote becomes zero (log sum -inf).
    """
    raise NotImplementedError(
        "lesson 4, task 6: the online softmax: rescale what earlier tiles left, and combine parts that were attended to"
        " apart"
    )
