"""Dynamic batches without padding, as Triton forms them for inputs declared with ``allow_ragged_batch``.

The tokens of all sequences lie end to end, and offsets tell attention where each begins (``ragged_inputs.py``), so
neither padding nor finished rows are computed. Batches are still whole: nobody enters before all have left.
"""

from typing import Any

from minillm.batch import Batch, next_span
from minillm.cache.memory import Memory, PagedMemory
from minillm.schedulers.dynamic import Dynamic
from minillm.sequence import Sequence


class Ragged(Dynamic):
    """The dynamic batcher on a paged cache of one block of ``columns`` tokens for each of ``max_batch_size`` rows."""

    @property
    def memory(self) -> Memory:
        """A block for each row."""
        return PagedMemory(self.max_batch_size, self.columns)

    def fits(self, sequences: list[Sequence]) -> bool:
        """Rows do not share their columns: only their number counts."""
        return len(sequences) <= self.max_batch_size

    def places(self, sequences: list[Sequence]) -> list[Any]:
        """A block table for each sequence, a list of the one block that it has: 0, 1, ... in their order."""
        return [[block] for block in range(len(sequences))]

    def plan(self) -> Batch:
        """One pass over the tokens that the cache lacks of those in ``rows`` that have not finished."""
        return Batch(tuple(next_span(row) for row in self.rows if not row.finished))
