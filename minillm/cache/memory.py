"""How much cache a policy asks for, and the places in it that it hands out. Plain data, without tensors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PagedMemory:
    """Keys and values in ``num_blocks`` blocks of ``block_size`` tokens, and ``swap_blocks`` more to swap out to."""

    num_blocks: int
    block_size: int
    swap_blocks: int = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class RectangleMemory:
    """Keys and values of one padded batch: ``rows`` sequences of ``columns`` tokens each."""

    rows: int
    columns: int

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.rows * self.columns


Memory = PagedMemory | RectangleMemory


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's row of the rectangle, and how many columns before its first token are padding."""

    index: int
    padding: int
