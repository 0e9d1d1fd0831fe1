"""Lesson 8, Scheduling under memory pressure: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-8              all tasks; T=2 for one of them
    make hint L=8 T=2       the next hint for a task
    make peek L=8 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 8 --task 2`, `minillm lab hint 8 2` and `minillm lab peek 8 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from minillm.batch import Batch, Event, Outcome, next_span
from minillm.schedulers.shared import advance, move_to
from minillm.schedulers.vllm import Group, Plan
from minillm.sequence import Sequence, Status

# Given in minillm/schedulers/vllm.py:
#
# @dataclass(slots=True)
# class Plan:
#     """What one call of ``schedule`` has decided so far."""
#     spans: list[Span] = field(default_factory=list)
#     swap_out: list[tuple[int, int]] = field(default_factory=list)
#     swap_in: list[tuple[int, int]] = field(default_factory=list)
#     copies: list[tuple[int, int]] = field(default_factory=list)
#     events: list[Event] = field(default_factory=list)
#
#     def batch(self) -> Batch | None:
#         """The pass; None if nothing was decided."""
#
# @dataclass(slots=True, eq=False)
# class Group:
#     """A request's sequences, which are admitted, preempted and swapped together. ``order`` is that of arrival."""
#     order: int
#     sequences: list[Sequence]
#
#     @property
#     def seats(self) -> int:
#         """Sequences that may run at once: n until the prompt has forked, then those unfinished."""
#
#     @property
#     def in_flight(self) -> bool:
#         """Whether a pass is computing one of the sequences."""
#
#     @property
#     def tables(self) -> list[list[int]]:
#         """The block tables."""
#
#     @property
#     def num_blocks(self) -> int:
#         """Blocks in the tables, shared ones counted once: those that a swap moves."""

# Given in minillm/batch.py:
#
# def next_span(sequence: Sequence, limit: int | None = None) -> Span:
#     """All that the cache lacks of a sequence, or at most ``limit`` tokens of it.
#
#     Only a span that reaches the sequence's last token samples: once for each of ``sequence.branches``, mostly 1.
#     Drafts (lesson 16; none before) are guesses of what follows that token. They are uncomputed too: the span computes
#     as many of the first as the limit leaves room for, and draws no more samples for them.
#     """
#
# @dataclass(frozen=True, slots=True)
# class Span:
#     """Tokens ``[start, start + length)`` of a sequence, computed in one pass."""
#     sequence: Sequence
#     start: int
#     length: int
#     samples: int = 0
#     draft_token_ids: tuple[int, ...] = ()
#
# @dataclass(frozen=True, slots=True)
# class Event:
#     """What a scheduler did to a sequence besides running it. An event whose sequence is finished ends it."""
#     kind: EventKind
#     sequence: Sequence
#     reason: str = ""
#
# EventKind = Literal["preempted", "swapped out", "swapped in", "reset", "expired", "failed", "completed"]
#
# @dataclass(frozen=True, slots=True)
# class Outcome:
#     """What the engine kept of a result, one per sequence whose cache or answer grew."""
#     sequence: Sequence
#     span: Span
#     token_ids: tuple[int, ...] = ()
#     finish_reason: FinishReason | None = None
#
#     @property
#     def forked(self) -> bool:
#         """Whether the sequence is a new branch of its span's sequence."""

# Given in minillm/cache/blocks.py:
#
# class BlockManager:
#     """Block tables over a pool on the device, and a second pool on the host to swap out to."""
#
#     @property
#     def num_free(self) -> int:
#         """Free blocks on the device."""
#
#     def blocks_for(self, num_tokens: int) -> int:
#         """Blocks that hold ``num_tokens`` tokens."""
#
#     def allocate(self, num_tokens: int) -> BlockTable:
#         """A new table with room for ``num_tokens`` tokens, of which it takes all or, raising OutOfBlocks, none."""
#
#     def append(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
#         """Make tokens ``[start, end)`` of a table writable, and return the block copies that must come first.
#
#         There is at least one token, and a copy is a pair (old block, new block).
#         Room that is missing is added; a shared block in the range is replaced by a copy of its own (copy-on-write).
#         Takes all that it needs, or raises OutOfBlocks and changes nothing.
#         """
#
#     def fork(self, table: BlockTable) -> BlockTable:
#         """A table that shares every block."""
#
#     def free(self, table: BlockTable) -> None:
#         """Give a table's blocks up, and empty it."""
#
#     def swap_out(self, tables: list[BlockTable]) -> list[tuple[int, int]]:
#         """Move tables to the host in place and return the (device, host) copies; blocks they share stay shared.
#
#         Moves all of them, or raises OutOfBlocks and changes nothing.
#         """
#
#     def swap_in(self, tables: list[BlockTable]) -> list[tuple[int, int]]:
#         """Move tables back to the device in place and return the (host, device) copies.
#
#         Moves all of them, or raises OutOfBlocks and changes nothing.
#         """
#
# class BlockPool:
#     """Blocks ``0 .. num_blocks - 1`` with a reference count each; the block freed last is handed out first."""
#
#     @property
#     def num_free(self) -> int:
#         """Blocks that nobody owns."""

# Given in minillm/sequence.py:
#
# @dataclass(slots=True, eq=False)
# class Sequence:
#     """A request's tokens, or one of its ``n`` branches."""
#     request: Request
#     branch: int = 0
#     branches: int = 1
#     token_ids: list[int] = field(default_factory=list)
#     computed: int = 0
#     draft_token_ids: tuple[int, ...] = ()
#     in_flight: bool = False
#     status: Status = Status.WAITING
#     memory: Any = None
#     finish_reason: FinishReason | None = None
#
#     @property
#     def uncomputed(self) -> int:
#         """Tokens, drafts included, that the cache still lacks: the length of the next span if nothing cuts it."""
#
# class Status(Enum):
#     """Where a sequence stands. A preempted sequence waits again."""
#     WAITING = "waiting"
#     RUNNING = "running"
#     SWAPPED = "swapped"
#     FINISHED = "finished"

# Given in minillm/schedulers/shared.py:
#
# def move_to(status: Status, sequences: Iterable[Sequence]) -> None:
#     """Set the status of each sequence."""
#
# def advance(outcome: Outcome) -> None:
#     """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""


class VLLM:
    """Waiting, running and swapped groups over one block manager; prompts go first, and a pass never mixes them.

    ``watermark`` blocks stay free at admission, ``max_num_seqs`` sequences run at once, and a prompt pass, counted as
    if padded to its longest prompt, holds at most ``max_num_batched_tokens`` tokens, ``max_paddings`` of them padding.
    Raises ValueError for a limit that would let nothing run.
    """

    # Given in minillm/schedulers/vllm.py:
    #
    # class VLLM:
    #     def __init__(
    #         self,
    #         memory: PagedMemory,
    #         watermark: int = 0,
    #         max_num_seqs: int = 256,
    #         max_num_batched_tokens: int = 2048,
    #         max_paddings: int = 256,
    #     ) -> None:
    #         require_positive(
    #             num_blocks=memory.num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    #         )
    #         if watermark < 0 or max_paddings < 0:
    #             raise ValueError(f"watermark is {watermark} and max_paddings {max_paddings}; both must be at least 0")
    #         self.memory = memory
    #         self.watermark = watermark
    #         self.max_num_seqs = max_num_seqs
    #         self.max_num_batched_tokens = max_num_batched_tokens
    #         self.max_paddings = max_paddings
    #         self.blocks = BlockManager(memory.num_blocks, memory.block_size, memory.swap_blocks)
    #         self.waiting: deque[Group] = deque()
    #         self.running: list[Group] = []
    #         self.swapped: list[Group] = []
    #         self._arrived = 0
    #
    #     def _fail(self, group: Group, plan: Plan) -> None:
    #         """End a group that has nowhere to go: its samples share blocks, so they cannot be recomputed one by
    #                 one."""

    # Task 1: 10 points, about 10 minutes, section 8.3 Three queues, three phases
    def schedule(self, now: float) -> Batch | None:
        """Prompts if any can be admitted; else a token for all who run and, if nobody was preempted, swap in.

        No prompt is admitted while a group is swapped out, for the group was there first. To be recomputed, swapped out
        or failed all count as preempted, and a pass that only says so (``events``) is a pass. None if nothing was
        decided.
        """
        raise NotImplementedError(
            "lesson 8, task 1: the three phases of a scheduling step: prompts, else decodes, then swap in"
        )

    # Task 2: 20 points, about 25 minutes, section 8.4 Admission and the watermark, for 2 functions together. The first:
    def _admit_prompts(self, plan: Plan) -> None:
        """Let groups of ``waiting`` run, first come, first served, until one does not fit.

        ``max_num_seqs`` bounds them together with those who run already. Each gets the blocks of its prompt, and a span
        that computes all of it. After a preemption that is the client's prompt and what was generated.
        """
        raise NotImplementedError(
            "lesson 8, task 2: admit prompts in order of arrival, as far as blocks, watermark and limits go"
        )

    # Task 2, function 2 of 2
    def _fits(self, lengths: list[int]) -> bool:
        """Whether the last of a pass's prompts, given their lengths in tokens, can be added to those before it.

        Only the last still needs its blocks, and must leave ``watermark`` of them free. The pass is counted as if
        padded to its longest prompt.
        """
        raise NotImplementedError(
            "lesson 8, task 2: admit prompts in order of arrival, as far as blocks, watermark and limits go"
        )

    # Task 3: 20 points, about 25 minutes, section 8.5 A decode step, and who must go, for 2 functions together. The
    #         first:
    def _decode(self, plan: Plan) -> None:
        """A token for each group that is not in flight, oldest first: ``running`` may be in another order.

        A group goes on if a block is free for each of its sequences, even where their last blocks have room. Until then
        the latest arrival among those still without a token is preempted, in the end the group itself. Who is in flight
        is never a victim.
        """
        raise NotImplementedError(
            "lesson 8, task 3: one token for everybody who runs; whoever lacks a block takes it from the latest arrival"
        )

    # Task 3, function 2 of 2
    def _append_token(self, group: Group, plan: Plan) -> None:
        """Make room for the newest token of each sequence, copying a last block that is shared, and plan its span."""
        raise NotImplementedError(
            "lesson 8, task 3: one token for everybody who runs; whoever lacks a block takes it from the latest arrival"
        )

    # Task 4: 20 points, about 20 minutes, section 8.6 Preemption by recomputation, for 2 functions together. The first:
    def _preempt(self, group: Group, plan: Plan) -> None:
        """Take a group out of ``running``: one unfinished sequence is recomputed later, several are swapped out.

        If the host's pool (``blocks.host``) has fewer free blocks than the group has, it fails instead. These three
        find the group gone from ``running``; each puts it where it belongs from then on.
        """
        raise NotImplementedError(
            "lesson 8, task 4: choose between recomputation and swapping, and let a sequence wait to be recomputed"
        )

    # Task 4, function 2 of 2
    def _recompute_later(self, group: Group, plan: Plan) -> None:
        """Let the only sequence wait, in order of arrival, without its blocks: its tokens stay, to be computed anew.

        ``_preempt`` has taken the group out of ``running``. The plan gets an event "preempted".
        """
        raise NotImplementedError(
            "lesson 8, task 4: choose between recomputation and swapping, and let a sequence wait to be recomputed"
        )

    # Task 5: 15 points, about 20 minutes, section 8.7 Preemption by swapping, for 2 functions together. The first:
    def _swap_out(self, group: Group, plan: Plan) -> None:
        """Move all of a group's blocks to the host, shared ones once, and the group to ``swapped``.

        ``_preempt`` has taken it out of ``running`` and knows that the host has room. The plan gets the moves, and an
        event "swapped out" for each sequence.
        """
        raise NotImplementedError(
            "lesson 8, task 5: move a group's blocks to the host, and back when there is room to grow"
        )

    # Task 5, function 2 of 2
    def _swap_in(self, plan: Plan) -> None:
        """Bring groups back, in order of arrival, until one does not fit; each gets a token at once.

        One fits if its blocks and one more for each sequence leave ``watermark`` blocks free, and if its seats and
        those of all who run are at most ``max_num_seqs``. The plan gets the moves, and an event "swapped in" for each
        sequence.
        """
        raise NotImplementedError(
            "lesson 8, task 5: move a group's blocks to the host, and back when there is room to grow"
        )

    # Task 6: 15 points, about 20 minutes, section 8.8 Samples that share blocks, for 2 functions together. The first:
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Share the prompt's blocks with new branches, count what is cached (``advance``), and drop what finished.

        The engine made the branches, with their parent's tokens and status; ``outcome.span.sequence`` is the parent,
        whose group they join. Their outcomes come before the parent's own, which may end it. Whoever has a
        ``finish_reason`` is dropped, so one that was aborted in flight too. Returns the sequences of all outcomes:
        clients get every token at once.
        """
        raise NotImplementedError(
            "lesson 8, task 6: after a pass: fork the samples' block tables, and free those that finished"
        )

    # Task 6, function 2 of 2
    def _drop(self, sequence: Sequence, group: Group) -> None:
        """Take a sequence out, with its blocks, and its group when it was the last of it."""
        raise NotImplementedError(
            "lesson 8, task 6: after a pass: fork the samples' block tables, and free those that finished"
        )
