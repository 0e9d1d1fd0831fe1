"""Who owns which block of the paged cache. Accounting only: no tensors.

PagedAttention (Kwon et al., SOSP 2023, sections 4.2 to 4.5): a sequence's keys and values live in blocks of
``block_size`` tokens, in any order, listed in its block table. Sequences may share blocks; a shared block is copied
before one of them writes to it.
"""

from collections import Counter
from collections.abc import Iterable

BlockTable = list[int]
"""Block of each ``block_size`` tokens of a sequence, in order."""


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. A policy that counts before it asks never sees this."""


class BlockPool:
    """Blocks ``0 .. num_blocks - 1`` with a reference count each; the block freed last is handed out first.

    Raises ValueError for a negative number of blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 0:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 0 blocks")
        self.num_blocks = num_blocks
        self._free = list(reversed(range(num_blocks)))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def take(self) -> int:
        """A free block, with one reference. Raises OutOfBlocks."""
        if not self._free:
            raise OutOfBlocks(f"all {self.num_blocks} blocks are in use")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner of a block. Raises ValueError for a free one."""
        if not self._references[block]:
            raise ValueError(f"block {block} is free; only a block in use can be shared")
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One owner less; the last one to leave frees the block. Raises ValueError for a free one."""
        if not self._references[block]:
            raise ValueError(f"block {block} is free already; it was released twice")
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)

    def shared(self, block: int) -> bool:
        """Whether several sequences own the block."""
        return self._references[block] > 1

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raise AssertionError unless ``tables`` hold every reference and all other blocks are free, once each."""
        owners = Counter(block for table in tables for block in table)
        expected = [owners[block] for block in range(self.num_blocks)]
        assert self._references == expected, f"reference counts {self._references}, but tables hold {expected}"
        unowned = [block for block in range(self.num_blocks) if not owners[block]]
        assert sorted(self._free) == unowned, f"free blocks {sorted(self._free)}, but {unowned} are unowned"


class BlockManager:
    """Block tables over a pool on the device, and a second pool on the host to swap out to.

    Raises ValueError for a ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int, swap_blocks: int = 0) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block holds at least 1 token")
        self.block_size = block_size
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(swap_blocks)

    @property
    def num_free(self) -> int:
        """Free blocks on the device."""
        return self.device.num_free

    @property
    def used_tokens(self) -> int:
        """Token places on the device that some sequence owns."""
        return (self.device.num_blocks - self.num_free) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_tokens: int) -> BlockTable:
        """A new table with room for ``num_tokens`` tokens, of which it takes all or, raising OutOfBlocks, none."""
        needed = self.blocks_for(num_tokens)
        if needed > self.num_free:
            raise OutOfBlocks(f"{num_tokens} tokens need {needed} blocks, and {self.num_free} are free")
        return [self.device.take() for _ in range(needed)]

    def blocks_to_append(self, table: BlockTable, start: int, end: int) -> int:
        """Free blocks that ``append`` would take."""
        copied = sum(self.device.shared(block) for block in table[start // self.block_size : self.blocks_for(end)])
        return copied + max(0, self.blocks_for(end) - len(table))

    def append(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
        """Make tokens ``[start, end)`` of a table writable, and return the block copies that must come first.

        There is at least one token, and a copy is a pair (old block, new block).
        Room that is missing is added; a shared block in the range is replaced by a copy of its own (copy-on-write).
        Takes all that it needs, or raises OutOfBlocks and changes nothing.
        """
        needed = self.blocks_to_append(table, start, end)
        if needed > self.num_free:
            raise OutOfBlocks(f"tokens {start} to {end} need {needed} more blocks, and {self.num_free} are free")
        copies = []
        for index in range(start // self.block_size, min(len(table), self.blocks_for(end))):
            if self.device.shared(table[index]):
                copies.append((table[index], self.device.take()))
                self.device.release(table[index])
                table[index] = copies[-1][1]
        while len(table) < self.blocks_for(end):
            table.append(self.device.take())
        return copies

    def fork(self, table: BlockTable) -> BlockTable:
        """A table that shares every block."""
        for block in table:
            self.device.share(block)
        return list(table)

    def free(self, table: BlockTable) -> None:
        """Give a table's blocks up, and empty it."""
        for block in reversed(table):
            self.device.release(block)
        table.clear()

    def swap_out(self, tables: list[BlockTable]) -> list[tuple[int, int]]:
        """Move tables to the host in place and return the (device, host) copies; blocks they share stay shared.

        Moves all of them, or raises OutOfBlocks and changes nothing.
        """
        return _move(tables, self.device, self.host)

    def swap_in(self, tables: list[BlockTable]) -> list[tuple[int, int]]:
        """Move tables back to the device in place and return the (host, device) copies.

        Moves all of them, or raises OutOfBlocks and changes nothing.
        """
        return _move(tables, self.host, self.device)

    def free_swapped(self, table: BlockTable) -> None:
        """Give up a table that was swapped out."""
        for block in reversed(table):
            self.host.release(block)
        table.clear()

    def check_integrity(self, tables: Iterable[BlockTable], swapped: Iterable[BlockTable] = ()) -> None:
        """Raise AssertionError unless these tables, and no others, own what is not free."""
        self.device.check_integrity(tables)
        self.host.check_integrity(swapped)


def _move(tables: list[BlockTable], source: BlockPool, target: BlockPool) -> list[tuple[int, int]]:
    blocks = {block for table in tables for block in table}
    if len(blocks) > target.num_free:
        raise OutOfBlocks(f"{len(blocks)} blocks are to be moved, and {target.num_free} are free where they go")
    moved: dict[int, int] = {}
    for table in tables:
        for index, block in enumerate(table):
            if block in moved:
                target.share(moved[block])
            else:
                moved[block] = target.take()
            source.release(block)
            table[index] = moved[block]
    return list(moved.items())
