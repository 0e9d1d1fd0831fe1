"""vLLM's first scheduler, V0 (about v0.2.2; Kwon et al., SOSP 2023, sections 4.5 and 5).

Blocks are taken as tokens come, so many more sequences run at once, and when blocks run out the latest arrivals are
preempted: a lone sequence is recomputed later, a group of parallel samples is swapped to the host.

Where upstream is wrong, this is right: a request that could never finish is refused when it is added (upstream ignores
it late, or hangs), and a group that the host has no room for fails alone (upstream raises and the engine dies). A
preempted group waits behind those that arrived before it: upstream's place at the very front is the same with one batch
in flight, but with more an earlier arrival may have been preempted first.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from minillm.batch import Batch, BlockMoves, Event, Outcome, Span, next_span
from minillm.cache.blocks import BlockManager
from minillm.cache.memory import PagedMemory
from minillm.request import Request
from minillm.scheduler import Load
from minillm.schedulers.shared import advance, move_to, peak_tokens, refuse_above, require_positive
from minillm.sequence import Sequence, Status


@dataclass(slots=True, eq=False)
class Group:
    """A request's sequences, which are admitted, preempted and swapped together. ``order`` is that of arrival."""

    order: int
    sequences: list[Sequence]

    @property
    def request_id(self) -> str:
        """The id of their request."""
        return self.sequences[0].request.id

    @property
    def seats(self) -> int:
        """Sequences that may run at once: n until the prompt has forked, then those unfinished."""
        return sum(sequence.branches for sequence in self.sequences)

    @property
    def in_flight(self) -> bool:
        """Whether a pass is computing one of the sequences."""
        return any(sequence.in_flight for sequence in self.sequences)

    @property
    def tables(self) -> list[list[int]]:
        """The block tables."""
        return [sequence.memory for sequence in self.sequences]

    @property
    def num_blocks(self) -> int:
        """Blocks in the tables, shared ones counted once: those that a swap moves."""
        return len({block for table in self.tables for block in table})

    def filled(self, block_size: int) -> int:
        """Cache places that hold a token; those in a block that branches share count once."""
        if len(self.sequences) == 1:
            return self.sequences[0].computed
        tokens = {
            block: max(0, min(block_size, sequence.computed - index * block_size))
            for sequence in self.sequences
            for index, block in enumerate(sequence.memory)
        }
        return sum(tokens.values())


@dataclass(slots=True)
class Plan:
    """What one call of ``schedule`` has decided so far.

    ``swap_out`` are (device, host) pairs of blocks, ``swap_in`` (host, device) and ``copies`` (device, device) pairs.
    """

    spans: list[Span] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def batch(self) -> Batch | None:
        """The pass; None if nothing was decided."""
        moves = BlockMoves(tuple(self.swap_out), tuple(self.swap_in), tuple(self.copies))
        return Batch(tuple(self.spans), moves=moves, events=tuple(self.events)) if self.spans or self.events else None


class VLLM:
    """Waiting, running and swapped groups over one block manager; prompts go first, and a pass never mixes them.

    ``watermark`` blocks stay free at admission, ``max_num_seqs`` sequences run at once, and a prompt pass, counted as
    if padded to its longest prompt, holds at most ``max_num_batched_tokens`` tokens, ``max_paddings`` of them padding.
    Raises ValueError for a limit that would let nothing run.
    """

    def __init__(
        self,
        memory: PagedMemory,
        watermark: int = 0,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_paddings: int = 256,
    ) -> None:
        require_positive(
            num_blocks=memory.num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        if watermark < 0 or max_paddings < 0:
            raise ValueError(f"watermark is {watermark} and max_paddings {max_paddings}; both must be at least 0")
        self.memory = memory
        self.watermark = watermark
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_paddings = max_paddings
        self.blocks = BlockManager(memory.num_blocks, memory.block_size, memory.swap_blocks)
        self.waiting: deque[Group] = deque()
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self._arrived = 0

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises Refused unless it could finish alone in the pool, recomputed or swapped in."""
        n, remedy = request.params.n, "shorten the prompt, or lower max_tokens or n"
        refuse_above(self.max_num_seqs, n, "seats (max_num_seqs)", "lower n")
        refuse_above(self.max_num_batched_tokens, peak_tokens(request), "tokens a pass", remedy)
        refuse_above(self.memory.num_blocks, self._most_blocks(request) + self.watermark, "blocks", remedy)
        self.waiting.append(Group(self._arrived, [Sequence(request, branches=n)]))
        self._arrived += 1

    def _most_blocks(self, request: Request) -> int:
        """At the peak n branches share the prompt's full blocks; to be swapped in each asks for one more."""
        blocks = self.blocks.blocks_for(peak_tokens(request))
        if request.params.n == 1:
            return blocks
        shared = len(request.prompt_token_ids) // self.memory.block_size
        return shared + request.params.n * (blocks - shared + 1)

    def schedule(self, now: float) -> Batch | None:
        """Prompts if any can be admitted; else a token for all who run and, if nobody was preempted, swap in.

        No prompt is admitted while a group is swapped out, for the group was there first. To be recomputed, swapped out
        or failed all count as preempted, and a pass that only says so (``events``) is a pass. None if nothing was
        decided.
        """
        plan = Plan()
        if not self.swapped:
            self._admit_prompts(plan)
        if not plan.spans:
            self._decode(plan)
            if not plan.events:
                self._swap_in(plan)
        return plan.batch()

    def _admit_prompts(self, plan: Plan) -> None:
        """Let groups of ``waiting`` run, first come, first served, until one does not fit.

        ``max_num_seqs`` bounds them together with those who run already. Each gets the blocks of its prompt, and a span
        that computes all of it. After a preemption that is the client's prompt and what was generated.
        """
        lengths: list[int] = []
        seats = sum(group.seats for group in self.running)
        while self.waiting:
            group = self.waiting[0]
            (sequence,) = group.sequences
            lengths.append(sequence.uncomputed)
            seats += group.seats
            if seats > self.max_num_seqs or not self._fits(lengths):
                break
            self.running.append(self.waiting.popleft())
            sequence.memory = self.blocks.allocate(lengths[-1])
            sequence.status = Status.RUNNING
            plan.spans.append(next_span(sequence))

    def _fits(self, lengths: list[int]) -> bool:
        """Whether the last of a pass's prompts, given their lengths in tokens, can be added to those before it.

        Only the last still needs its blocks, and must leave ``watermark`` of them free. The pass is counted as if
        padded to its longest prompt.
        """
        free = self.blocks.num_free - self.blocks.blocks_for(lengths[-1])
        padded = len(lengths) * max(lengths)
        return (
            free >= self.watermark
            and padded <= self.max_num_batched_tokens
            and padded - sum(lengths) <= self.max_paddings
        )

    def _decode(self, plan: Plan) -> None:
        """A token for each group that is not in flight, oldest first: ``running`` may be in another order.

        A group goes on if a block is free for each of its sequences, even where their last blocks have room. Until then
        the latest arrival among those still without a token is preempted, in the end the group itself. Who is in flight
        is never a victim.
        """
        queue = deque(sorted((g for g in self.running if not g.in_flight), key=lambda group: group.order))
        while queue:
            group = queue.popleft()
            while queue and self.blocks.num_free < len(group.sequences):
                self._preempt(queue.pop(), plan)
            if self.blocks.num_free < len(group.sequences):
                self._preempt(group, plan)
            else:
                self._append_token(group, plan)

    def _append_token(self, group: Group, plan: Plan) -> None:
        """Make room for the newest token of each sequence, copying a last block that is shared, and plan its span."""
        for sequence in group.sequences:
            plan.copies += self.blocks.append(sequence.memory, sequence.computed, len(sequence.token_ids))
            plan.spans.append(next_span(sequence))

    def _preempt(self, group: Group, plan: Plan) -> None:
        """Take a group out of ``running``: one unfinished sequence is recomputed later, several are swapped out.

        If the host's pool (``blocks.host``) has fewer free blocks than the group has, it fails instead. These three
        find the group gone from ``running``; each puts it where it belongs from then on.
        """
        self.running.remove(group)
        if group.seats == 1:
            self._recompute_later(group, plan)
        elif group.num_blocks <= self.blocks.host.num_free:
            self._swap_out(group, plan)
        else:
            self._fail(group, plan)

    def _recompute_later(self, group: Group, plan: Plan) -> None:
        """Let the only sequence wait, in order of arrival, without its blocks: its tokens stay, to be computed anew.

        ``_preempt`` has taken the group out of ``running``. The plan gets an event "preempted".
        """
        (sequence,) = group.sequences
        self.blocks.free(sequence.memory)
        sequence.computed, sequence.status = 0, Status.WAITING
        earlier = takewhile(lambda waiting: waiting.order < group.order, self.waiting)
        self.waiting.insert(sum(1 for _ in earlier), group)
        plan.events.append(Event("preempted", sequence))

    def _swap_out(self, group: Group, plan: Plan) -> None:
        """Move all of a group's blocks to the host, shared ones once, and the group to ``swapped``.

        ``_preempt`` has taken it out of ``running`` and knows that the host has room. The plan gets the moves, and an
        event "swapped out" for each sequence.
        """
        plan.swap_out += self.blocks.swap_out(group.tables)
        move_to(Status.SWAPPED, group.sequences)
        self.swapped.append(group)
        plan.events += [Event("swapped out", sequence) for sequence in group.sequences]

    def _fail(self, group: Group, plan: Plan) -> None:
        """End a group that has nowhere to go: its samples share blocks, so they cannot be recomputed one by one."""
        for sequence in group.sequences:
            self.blocks.free(sequence.memory)
            sequence.finish_reason, sequence.status = "error", Status.FINISHED
            plan.events.append(
                Event("failed", sequence, "preempted, and the swap space is too small; raise swap_blocks")
            )

    def _swap_in(self, plan: Plan) -> None:
        """Bring groups back, in order of arrival, until one does not fit; each gets a token at once.

        One fits if its blocks and one more for each sequence leave ``watermark`` blocks free, and if its seats and
        those of all who run are at most ``max_num_seqs``. The plan gets the moves, and an event "swapped in" for each
        sequence.
        """
        self.swapped.sort(key=lambda group: group.order)
        seats = sum(group.seats for group in self.running)
        while self.swapped:
            group = self.swapped[0]
            needed = group.num_blocks + len(group.sequences)
            seats += group.seats
            if self.blocks.num_free - needed < self.watermark or seats > self.max_num_seqs:
                break
            self.running.append(self.swapped.pop(0))
            plan.swap_in += self.blocks.swap_in(group.tables)
            move_to(Status.RUNNING, group.sequences)
            plan.events += [Event("swapped in", sequence) for sequence in group.sequences]
            self._append_token(group, plan)

    def wake_at(self, now: float) -> float | None:
        """Only an arrival or a completion changes anything."""
        return None

    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Share the prompt's blocks with new branches, count what is cached (``advance``), and drop what finished.

        The engine made the branches, with their parent's tokens and status; ``outcome.span.sequence`` is the parent,
        whose group they join. Their outcomes come before the parent's own, which may end it. Whoever has a
        ``finish_reason`` is dropped, so one that was aborted in flight too. Returns the sequences of all outcomes:
        clients get every token at once.
        """
        groups = {sequence: group for group in self.running for sequence in group.sequences}
        sequences = []
        for outcome in outcomes:
            group = groups[outcome.span.sequence]
            if outcome.forked:
                outcome.sequence.memory = self.blocks.fork(outcome.span.sequence.memory)
                group.sequences.append(outcome.sequence)
            advance(outcome)
            sequences.append(outcome.sequence)
            if outcome.finish_reason:
                self._drop(outcome.sequence, group)
        return sequences

    def _drop(self, sequence: Sequence, group: Group) -> None:
        """Take a sequence out, with its blocks, and its group when it was the last of it."""
        self.blocks.free(sequence.memory)
        group.sequences.remove(sequence)
        if not group.sequences:
            self.running.remove(group)

    def abort(self, request_id: str, now: float) -> None:
        """Drop the request's sequences that are not in flight, wherever they queue."""
        self.waiting = deque(group for group in self.waiting if group.request_id != request_id)
        for group in [g for g in self.swapped if g.request_id == request_id]:
            self.swapped.remove(group)
            for table in group.tables:
                self.blocks.free_swapped(table)
        for group in [g for g in self.running if g.request_id == request_id]:
            for sequence in [s for s in group.sequences if not s.in_flight]:
                self._drop(sequence, group)

    def load(self) -> Load:
        """Blocks in use on the device, and the places in them that hold a token, shared ones counted once."""
        running = sum(len(group.sequences) for group in self.running)
        swapped = sum(len(group.sequences) for group in self.swapped)
        filled = sum(group.filled(self.memory.block_size) for group in self.running)
        return Load(len(self.waiting), running, swapped, self.blocks.used_tokens, filled)

    def check_integrity(self) -> None:
        """Raise AssertionError if a block is lost, owned twice or counted wrongly, on the device or the host."""
        running = [table for group in self.running for table in group.tables]
        self.blocks.check_integrity(running, [table for group in self.swapped for table in group.tables])
