"""Lesson 9, SplitFuse: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-9              all tasks; T=2 for one of them
    make hint L=9 T=2       the next hint for a task
    make peek L=9 T=2       what sets yours apart from the reference

or, without make, `minillm lab run 9 --task 2`, `minillm lab hint 9 2` and `minillm lab peek 9 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from minillm.batch import Batch, Event, Outcome, Span
from minillm.schedulers.shared import advance, move_to
from minillm.sequence import Sequence, Status

# Given in minillm/batch.py:
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
#     @property
#     def end(self) -> int:
#         """The context length after this pass, in tokens."""

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


# Task 1: 15 points, about 15 minutes, section 9.3 Pieces of a sequence
def next_span(sequence: Sequence, limit: int | None = None) -> Span:
    """All that the cache lacks of a sequence, or at most ``limit`` tokens of it.

    Only a span that reaches the sequence's last token samples: once for each of ``sequence.branches``, mostly 1.
    Drafts (lesson 16; none before) are guesses of what follows that token. They are uncomputed too: the span computes
    as many of the first as the limit leaves room for, and draws no more samples for them.
    """
    raise NotImplementedError(
        "lesson 9, task 1: the next piece of a sequence, which samples only if it reaches the last token"
    )


# Given in minillm/cache/blocks.py:
#
# class BlockManager:
#     """Block tables over a pool on the device, and a second pool on the host to swap out to."""
#
#     @property
#     def num_free(self) -> int:
#         """Free blocks on the device."""
#
#     def blocks_to_append(self, table: BlockTable, start: int, end: int) -> int:
#         """Free blocks that ``append`` would take."""
#
#     def append(self, table: BlockTable, start: int, end: int) -> list[tuple[int, int]]:
#         """Make tokens ``[start, end)`` of a table writable, and return the block copies that must come first.
#
#         There is at least one token, and a copy is a pair (old block, new block).
#         Room that is missing is added; a shared block in the range is replaced by a copy of its own (copy-on-write).
#         Takes all that it needs, or raises OutOfBlocks and changes nothing.
#         """
#
#     def free(self, table: BlockTable) -> None:
#         """Give a table's blocks up, and empty it."""

# Given in minillm/schedulers/shared.py:
#
# def move_to(status: Status, sequences: Iterable[Sequence]) -> None:
#     """Set the status of each sequence."""
#
# def advance(outcome: Outcome) -> None:
#     """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""

# Given in minillm/batch.py:
#
# @dataclass(frozen=True, slots=True)
# class Batch:
#     """One pass. ``held`` are finished rows that a padded batch goes on computing."""
#     spans: tuple[Span, ...] = ()
#     held: tuple[Sequence, ...] = ()
#     rectangle: Rectangle | None = None
#     moves: BlockMoves = BlockMoves()
#     events: tuple[Event, ...] = ()
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


class SplitFuse:
    """At most ``token_budget`` tokens and ``max_num_seqs`` sequences a pass.

    Decodes keep the order in which they emitted. The rest of a split prompt goes before all other prompts. Sequences
    in flight stand in neither queue but in ``computing``: ``schedule`` enters them and ``settle`` takes them out. Each
    sequence's ``memory`` is a block table from the start, empty while it holds no block. Raises ValueError for a size
    below 1.
    """

    # Given in minillm/schedulers/splitfuse.py:
    #
    # class SplitFuse:
    #     def __init__(self, memory: PagedMemory, token_budget: int = 768, max_num_seqs: int = 512) -> None:
    #         require_positive(num_blocks=memory.num_blocks, token_budget=token_budget, max_num_seqs=max_num_seqs)
    #         self.memory = memory
    #         self.token_budget = token_budget
    #         self.max_num_seqs = max_num_seqs
    #         self.blocks = BlockManager(memory.num_blocks, memory.block_size)
    #         self.prompts: deque[Sequence] = deque()
    #         self.decodes: deque[Sequence] = deque()
    #         self.computing: dict[Sequence, None] = {}
    #
    #     def _started_prompts(self) -> Iterable[Sequence]:
    #         """Prompts that hold blocks: all at the front, where the rest of a split prompt returns to."""

    # Task 2: 20 points, about 20 minutes, section 9.4 Decodes first
    def _take_decodes(self) -> list[Span]:
        """A token for each of the first decodes, as many as budget and cap allow; those that get one leave the queue.

        Budget and cap count those that are looked at. One whose last block is full is passed over when no block is
        free: it keeps its place, and later ones may still have room. Blocks have one owner here, so nothing is copied.
        """
        raise NotImplementedError(
            "lesson 9, task 2: a token for each decode that has room, as many as budget and cap allow"
        )

    # Task 3: 25 points, about 30 minutes, section 9.5 Prompts cut to the budget
    def _take_prompts(self, spans: list[Span]) -> None:
        """Move prompts from the queue to ``spans``, while the whole rest of each has blocks; the budget cuts the last.

        Only the piece that is computed takes its blocks. None are kept for what is cut off: when its turn comes,
        decodes may have taken them.

        A prompt that lacks blocks stops the queue, unless it has begun and lacks one token: then it is passed over, as
        a decode would be.
        """
        raise NotImplementedError(
            "lesson 9, task 3: fill what is left of the token budget with prompts, and cut the last one"
        )

    # Task 4: 20 points, about 20 minutes, section 9.6 When nobody can run, for 2 functions together. The first:
    def schedule(self, now: float) -> Batch | None:
        """One fused pass: decodes, then prompts. If nobody can run and no pass is computing, a tick that resets one.

        Who is in the pass gets the status RUNNING and stands in ``computing`` until it is settled. None while another
        pass computes whose end may free blocks, and where there is nothing to do.
        """
        raise NotImplementedError(
            "lesson 9, task 4: one fused pass; and when nobody can run, the last who holds blocks starts anew"
        )

    # Task 4, function 2 of 2
    def _reset(self) -> Event:
        """Take all blocks from the last sequence that holds any, and requeue it at the prompts' tail, to start anew.

        That is the last decode, or the last prompt that has begun if there are no decodes. It waits again, with nothing
        computed and all of its tokens. The event is a "reset".
        """
        raise NotImplementedError(
            "lesson 9, task 4: one fused pass; and when nobody can run, the last who holds blocks starts anew"
        )

    # Task 5: 20 points, about 15 minutes, section 9.7 After the pass
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Free what finished; the rest of a prompt returns to the front, decodes queue in the order they emitted.

        Each sequence leaves ``computing``, and ``advance`` counts what is cached of it. Returns the sequences of all
        outcomes: clients get every token at once.
        """
        raise NotImplementedError(
            "lesson 9, task 5: after a pass: who is done, who decodes next, and whose prompt goes on"
        )
