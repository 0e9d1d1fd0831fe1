"""A fake model that reads its context out of cache cells, as attention does: what is misplaced changes its tokens."""

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from harness import EOS, simulated

from minillm.batch import Batch, BlockPairs, Result, Span
from minillm.cache.memory import Memory, PagedMemory
from minillm.engine import Engine
from minillm.request import Request, SamplingParams
from minillm.scheduler import Scheduler
from minillm.sequence import Sequence as Line

UNWRITTEN = -1


def next_token(context: Sequence[int], params: SamplingParams, branch: int, index: int) -> int:
    """A token that depends on all of the context; about one in twelve ends the output."""
    digest = crc32(repr((list(context), params.seed, branch, index)).encode())
    return EOS if digest % 12 == 0 else digest % EOS


def expected_tokens(request: Request, branch: int) -> list[int]:
    """The oracle: one branch generated without any cache."""
    token_ids = list(request.prompt_token_ids)
    for index in range(request.params.max_tokens):
        token_ids.append(next_token(token_ids, request.params, branch, index))
        if token_ids[-1] == EOS and not request.params.ignore_eos:
            break
    return token_ids[len(request.prompt_token_ids) :]


def expected_outputs(requests: Iterable[Request]) -> dict[str, list[int]]:
    """The oracle for every branch, by its sequence's name."""
    return {
        Line(request, branch).name: expected_tokens(request, branch)
        for request in requests
        for branch in range(request.params.n)
    }


def on_cells(
    scheduler: Scheduler, requests: Iterable[Request], fails_at: Mapping[str, int] | None = None, depth=1
) -> Engine:
    """An engine on simulated time whose passes are computed by a ``CellModel``."""
    return simulated(scheduler, requests, depth=depth, execute=CellModel(scheduler.memory, fails_at))


class CellModel:
    """Executes batches on cells of one token id each, in blocks or in the rows of a rectangle.

    ``fails_at`` is the context length from which on the spans of a request, or of one branch, come back with an error.
    """

    def __init__(self, memory: Memory, fails_at: Mapping[str, int] | None = None) -> None:
        self.paged = isinstance(memory, PagedMemory)
        rows, columns, swapped = (
            (memory.num_blocks, memory.block_size, memory.swap_blocks)
            if isinstance(memory, PagedMemory)
            else (memory.rows, memory.columns, 0)
        )
        self.columns = columns
        self.device = [[UNWRITTEN] * columns for _ in range(rows)]
        self.host = [[UNWRITTEN] * columns for _ in range(swapped)]
        self.fails_at = {} if fails_at is None else fails_at

    def __call__(self, batch: Batch) -> list[Result]:
        """Move blocks, write what the spans bring, then read each one's context back."""
        _copy(self.device, self.host, batch.moves.swap_out)
        _copy(self.host, self.device, batch.moves.swap_in)
        _copy(self.device, self.device, batch.moves.copies)
        for span in batch.spans:
            for position, token_id in enumerate(span.token_ids, span.start):
                row, column = self._place(span, position)
                self.device[row][column] = token_id
        return [self._result(span) for span in batch.spans]

    def _place(self, span: Span, position: int) -> tuple[int, int]:
        memory = span.sequence.memory
        if self.paged:
            return memory[position // self.columns], position % self.columns
        return memory.index, memory.padding + position

    def _result(self, span: Span) -> Result:
        sequence = span.sequence
        fails_at = self.fails_at.get(sequence.name, self.fails_at.get(sequence.request.id))
        if fails_at is not None and span.end >= fails_at:
            return Result(error="the cells of this request are broken")
        places = (self._place(span, position) for position in range(span.end))
        context = [self.device[row][column] for row, column in places]
        branches = range(span.samples) if span.samples > 1 else [sequence.branch] * span.samples
        params, index = sequence.request.params, sequence.output_length
        return Result(tuple(next_token(context, params, branch, index) for branch in branches))


def _copy(source: list[list[int]], target: list[list[int]], pairs: BlockPairs) -> None:
    blocks = [list(source[origin]) for origin, _ in pairs]
    for (_, place), block in zip(pairs, blocks, strict=True):
        target[place] = block
