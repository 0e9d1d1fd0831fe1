"""Dynamic SplitFuse, the scheduler of DeepSpeed-FastGen (DeepSpeed-MII, ``mii/batching/ragged_batching.py``, 2024).

Every pass aims at the same number of tokens: first a token for each sequence that decodes, then prompts, the last of
them cut where the token budget ends. Long prompts are split over passes, short ones fused into one.

Upstream frees a finished sequence's blocks one pass later, and its answers lose the tokens emitted before a reset;
here blocks return at once and emitted tokens stay. It also stops all prompts while no block is free, so that a cut one
whose rest fits its own last block may be reset and computed anew for ever; here it goes on. Its table of tracked
sequences is left to the blocks.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile

from minillm.batch import Batch, Event, Outcome, Span, next_span
from minillm.cache.blocks import BlockManager
from minillm.cache.memory import PagedMemory
from minillm.request import Request
from minillm.scheduler import Load
from minillm.schedulers.shared import advance, filled_tokens, move_to, peak_tokens, refuse_above, require_positive
from minillm.sequence import Sequence, Status, independent_branches


class SplitFuse:
    """At most ``token_budget`` tokens and ``max_num_seqs`` sequences a pass.

    Decodes keep the order in which they emitted. The rest of a split prompt goes before all other prompts. Sequences
    in flight stand in neither queue but in ``computing``: ``schedule`` enters them and ``settle`` takes them out. Each
    sequence's ``memory`` is a block table from the start, empty while it holds no block. Raises ValueError for a size
    below 1.
    """

    def __init__(self, memory: PagedMemory, token_budget: int = 768, max_num_seqs: int = 512) -> None:
        require_positive(num_blocks=memory.num_blocks, token_budget=token_budget, max_num_seqs=max_num_seqs)
        self.memory = memory
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs
        self.blocks = BlockManager(memory.num_blocks, memory.block_size)
        self.prompts: deque[Sequence] = deque()
        self.decodes: deque[Sequence] = deque()
        self.computing: dict[Sequence, None] = {}

    def add(self, request: Request, now: float) -> None:
        """Queue the request's n samples, each on its own. Raises Refused unless one could finish alone in the pool."""
        needed = self.blocks.blocks_for(peak_tokens(request))
        refuse_above(self.memory.num_blocks, needed, "blocks", "shorten the prompt or lower max_tokens")
        for sequence in independent_branches(request):
            sequence.memory = []
            self.prompts.append(sequence)

    def schedule(self, now: float) -> Batch | None:
        """One fused pass: decodes, then prompts. If nobody can run and no pass is computing, a tick that resets one.

        Who is in the pass gets the status RUNNING and stands in ``computing`` until it is settled. None while another
        pass computes whose end may free blocks, and where there is nothing to do.
        """
        spans = self._take_decodes()
        self._take_prompts(spans)
        if spans:
            move_to(Status.RUNNING, (span.sequence for span in spans))
            self.computing.update((span.sequence, None) for span in spans)
            return Batch(tuple(spans))
        if self.computing or not (self.prompts or self.decodes):
            return None
        return Batch(events=(self._reset(),))

    def _take_decodes(self) -> list[Span]:
        """A token for each of the first decodes, as many as budget and cap allow; those that get one leave the queue.

        Budget and cap count those that are looked at. One whose last block is full is passed over when no block is
        free: it keeps its place, and later ones may still have room. Blocks have one owner here, so nothing is copied.
        """
        taken: dict[Sequence, Span] = {}
        for sequence in islice(self.decodes, min(self.max_num_seqs, self.token_budget)):
            start, end = sequence.computed, sequence.computed + 1
            if self.blocks.blocks_to_append(sequence.memory, start, end) <= self.blocks.num_free:
                self.blocks.append(sequence.memory, start, end)
                taken[sequence] = next_span(sequence)
        self.decodes = deque(sequence for sequence in self.decodes if sequence not in taken)
        return list(taken.values())

    def _take_prompts(self, spans: list[Span]) -> None:
        """Move prompts from the queue to ``spans``, while the whole rest of each has blocks; the budget cuts the last.

        Only the piece that is computed takes its blocks. None are kept for what is cut off: when its turn comes,
        decodes may have taken them.

        A prompt that lacks blocks stops the queue, unless it has begun and lacks one token: then it is passed over, as
        a decode would be.
        """
        room, position = self.token_budget - len(spans), 0
        while position < len(self.prompts) and room > 0 and len(spans) < self.max_num_seqs:
            sequence = self.prompts[position]
            end = sequence.computed + sequence.uncomputed
            if self.blocks.blocks_to_append(sequence.memory, sequence.computed, end) <= self.blocks.num_free:
                span = next_span(sequence, limit=room)
                self.blocks.append(sequence.memory, span.start, span.end)
                spans.append(span)
                del self.prompts[position]
                room -= span.length
            # Upstream passes over a whole prompt of one token, too. That shows nowhere: no block is free then, and
            # nobody behind it has one of their own.
            elif sequence.memory and sequence.uncomputed == 1:
                position += 1
            else:
                break

    def _reset(self) -> Event:
        """Take all blocks from the last sequence that holds any, and requeue it at the prompts' tail, to start anew.

        That is the last decode, or the last prompt that has begun if there are no decodes. It waits again, with nothing
        computed and all of its tokens. The event is a "reset".
        """
        victim = [*self._started_prompts(), *self.decodes][-1]
        (self.decodes or self.prompts).remove(victim)
        self.blocks.free(victim.memory)
        victim.computed, victim.status = 0, Status.WAITING
        self.prompts.append(victim)
        return Event("reset", victim)

    def wake_at(self, now: float) -> float | None:
        """Only an arrival or a completion changes anything."""
        return None

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Free what finished; the rest of a prompt returns to the front, decodes queue in the order they emitted.

        Each sequence leaves ``computing``, and ``advance`` counts what is cached of it. Returns the sequences of all
        outcomes: clients get every token at once.
        """
        sequences = []
        for outcome in outcomes:
            sequence = outcome.sequence
            advance(outcome)
            sequences.append(sequence)
            del self.computing[sequence]
            if outcome.finish_reason:
                self.blocks.free(sequence.memory)
            elif outcome.span.samples:
                self.decodes.append(sequence)
            else:
                self.prompts.appendleft(sequence)
        return sequences

    def abort(self, request_id: str, now: float) -> None:
        """Drop the request's sequences that are not in flight."""
        for queue in (self.prompts, self.decodes):
            for sequence in [s for s in queue if s.request.id == request_id]:
                queue.remove(sequence)
                self.blocks.free(sequence.memory)

    def _started_prompts(self) -> Iterable[Sequence]:
        """Prompts that hold blocks: all at the front, where the rest of a split prompt returns to."""
        return takewhile(lambda sequence: sequence.memory, self.prompts)

    def _holders(self) -> list[Sequence]:
        return [*self._started_prompts(), *self.decodes, *self.computing]

    def load(self) -> Load:
        """Blocks in use, and the places in them that hold a token."""
        holders = self._holders()
        waiting = len(self.prompts) + len(self.decodes) + len(self.computing) - len(holders)
        return Load(waiting, len(holders), 0, self.blocks.used_tokens, filled_tokens(holders))

    def check_integrity(self) -> None:
        """Raise AssertionError if a block is lost or owned twice."""
        self.blocks.check_integrity(sequence.memory for sequence in self._holders())
