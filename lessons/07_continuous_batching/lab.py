"""Lesson 7, Continuous batching: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-7              all tasks; T=2 for one of them
    make hint L=7 T=2       the next hint for a task
    make peek L=7 T=2       what sets yours apart from the reference

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
"""

from collections import deque
from collections.abc import Iterable

from minillm.batch import Batch, Outcome
from minillm.request import Request
from minillm.schedulers.orca import Reservation, _true_output
from minillm.schedulers.shared import advance
from minillm.sequence import Sequence, Status

# Given in minillm/schedulers/orca.py:
#
# def _true_output(request: Request) -> int:
#     ...


# Task 1, 1 of 4: 10 points, about 15 minutes, section 7.4 How much to reserve
def reserve_exact(request: Request) -> int:
    """Prompt and ``max_tokens``: Algorithm 1's ``max_tokens``."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, 2 of 4: 10 points, about 15 minutes, section 7.4 How much to reserve
def reserve_max(max_context: int) -> Reservation:
    """The model's whole context for everyone: Orca (Max) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, 3 of 4: 10 points, about 15 minutes, section 7.4 How much to reserve
def reserve_pow2(request: Request) -> int:
    """The true output rounded up to a power of two: Orca (Pow2) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Task 1, 4 of 4: 10 points, about 15 minutes, section 7.4 How much to reserve
def reserve_oracle(request: Request) -> int:
    """The true output length, which no server can know: Orca (Oracle) of Kwon et al., SOSP 2023, section 6.1."""
    raise NotImplementedError("lesson 7, task 1: say how many slots each kind of reservation sets aside")


# Given in minillm/cache/blocks.py:
#
# class BlockManager:
#     """Block tables over a pool on the device, and a second pool on the host to swap out to."""
#
#     @property
#     def num_free(self) -> int:
#         """Free blocks on the device."""
#
#     def allocate(self, num_tokens: int) -> BlockTable:
#         """A new table with room for ``num_tokens`` tokens, of which it takes all or, raising OutOfBlocks, none."""
#
#     def free(self, table: BlockTable) -> None:
#         """Give a table's blocks up, and empty it."""

# Given in minillm/schedulers/shared.py:
#
# def advance(outcome: Outcome) -> None:
#     """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""


class Orca:
    """At most ``max_bs`` sequences a pass, on ``n_slots`` cache slots of one token each.

    Slots are cells of a paged cache with blocks of one token: a reservation is a count, not a place. A request that
    reserves more than ``n_slots`` is refused; Algorithm 1 would let it block everyone behind it for ever. Raises
    ValueError for a size below 1.
    """

    # Given in minillm/schedulers/orca.py:
    #
    # class Orca:
    #     def __init__(self, max_bs: int, n_slots: int, reservation: Reservation = reserve_exact) -> None:
    #         require_positive(max_bs=max_bs, n_slots=n_slots)
    #         self.max_bs = max_bs
    #         self.reservation = reservation
    #         self.slots = BlockManager(n_slots, block_size=1)
    #         self.memory = PagedMemory(n_slots, block_size=1)
    #         self.waiting: deque[Sequence] = deque()
    #         self.running: dict[Sequence, None] = {}

    # Task 2: 15 points, about 15 minutes, section 7.4 How much to reserve
    def reserve(self, sequence: Sequence) -> bool:
        """Set slots aside for a sequence's whole life and let it run, or change nothing if too few are free."""
        raise NotImplementedError(
            "lesson 7, task 2: reserve slots for a sequence's whole life, or leave everything as it was"
        )

    # Task 3: 30 points, about 25 minutes, section 7.5 Who runs in the next pass
    def select(self) -> list[Sequence]:
        """Select of Algorithm 1: the oldest sequences not in flight, stopping at the first that cannot be reserved."""
        raise NotImplementedError("lesson 7, task 3: select the sequences of the next pass: Algorithm 1's Select")

    # Task 4, 1 of 3: 25 points, about 20 minutes, section 7.6 Who leaves, and when
    def settle(self, batch: Batch, outcomes: Iterable[Outcome], now: float) -> list[Sequence]:
        """Give the slots of finished sequences back; every token is delivered at once."""
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")

    # Task 4, 2 of 3: 25 points, about 20 minutes, section 7.6 Who leaves, and when
    def drop(self, sequence: Sequence) -> None:
        """Give back all slots of a sequence that leaves."""
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")

    # Task 4, 3 of 3: 25 points, about 20 minutes, section 7.6 Who leaves, and when
    def abort(self, request_id: str, now: float) -> None:
        """Drop the request's sequences that are not in flight."""
        raise NotImplementedError("lesson 7, task 4: settle a pass, and let sequences leave with all that they held")


class SimulatedRunner:
    """A pipeline of ``depth`` equal stages that a batch passes in ``cost(batch)`` seconds.

    What a batch computes is ``execute``'s business: the real model under simulated time leaves the same records as
    ``ScriptedModel`` does, wherever both sample the same lengths.
    """

    # Given in minillm/simulator/runner.py:
    #
    # class SimulatedRunner:
    #     def __init__(self, execute: Execute, cost: Cost, depth: int = 1) -> None:
    #         self.depth = depth
    #         self._execute = execute
    #         self._cost = cost
    #         self._stage_free = [0.0] * depth
    #         self._in_flight: deque[tuple[list[Result], float]] = deque()

    # Task 5: 20 points, about 20 minutes, section 7.7 Several batches in flight
    def submit(self, batch: Batch, now: float) -> None:
        """Enter the first stage as soon as it is free, and each next one likewise."""
        raise NotImplementedError("lesson 7, task 5: let batches follow each other through the stages of a pipeline")
