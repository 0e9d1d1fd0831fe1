"""Triton's request queue: levels of priority, each with a bound on its size and on the time spent in it.

Triton Inference Server, ``ModelQueuePolicy`` in ``model_config.proto`` and ``scheduler_utils.cc`` (core repository).
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from minillm.request import Request
from minillm.scheduler import Refused
from minillm.sequence import Sequence


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The bounds of one level. Names and defaults are Triton's, times are in seconds.

    max_queue_size           most requests in the level; 0 is no bound
    default_timeout          longest time that a request may wait; 0 is no bound
    timeout_action           what an expired request gets: "reject" ends it, "delay" lets it wait behind all others
    allow_timeout_override   whether a request's own deadline counts where it is earlier; it never adds a timeout

    Raises ValueError for a bound that is negative or infinite, and for an unknown action.
    """

    max_queue_size: int = 0
    default_timeout: float = 0.0
    timeout_action: Literal["reject", "delay"] = "reject"
    allow_timeout_override: bool = False

    def __post_init__(self) -> None:
        if self.max_queue_size < 0 or not 0 <= self.default_timeout < math.inf:
            raise ValueError(
                f"max_queue_size is {self.max_queue_size} and default_timeout {self.default_timeout}; "
                "both must be at least 0 and finite, and 0 is no bound"
            )
        if self.timeout_action not in ("reject", "delay"):
            raise ValueError(f'timeout_action is {self.timeout_action!r}; use "reject" or "delay"')

    def deadline(self, request: Request, now: float) -> float:
        """The last moment at which a request that is queued now has not expired; infinite for none.

        The request's own deadline is a moment on the same clock as ``now``, and None for none.
        """
        if not self.default_timeout:
            return math.inf
        deadline = now + self.default_timeout
        if self.allow_timeout_override and request.deadline is not None:
            return min(deadline, request.deadline)
        return deadline


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue: its samples, when it came, and the last moment at which it has not expired."""

    samples: list[Sequence]
    since: float
    deadline: float

    @property
    def id(self) -> str:
        """The request's id."""
        return self.samples[0].request.id


@dataclass(slots=True)
class Level:
    """One level's requests by id, oldest first; those that expired and may still run wait in ``delayed``.

    An ``OrderedDict`` finds its first entry at once, however many left before it, and drops any other as fast.
    """

    policy: QueuePolicy
    main: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    delayed: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.main) + len(self.delayed)


class PriorityQueue:
    """Levels 1, 2, ... of falling urgency, one per policy; first come, first served within a level.

    A request of priority 0, or of one that does not exist, goes to the ``default_level``. Iterating yields requests
    in the order in which they are served: level by level, in each the delayed ones last. Raises ValueError for a
    default level that does not exist.
    """

    def __init__(self, policies: Collection[QueuePolicy] = (QueuePolicy(),), default_level: int = 1) -> None:
        if not 1 <= default_level <= len(policies):
            raise ValueError(
                f"default_level is {default_level} and there are {len(policies)} priority levels; name one from 1 on"
            )
        self.levels = {number: Level(policy) for number, policy in enumerate(policies, start=1)}
        self.default_level = default_level
        # A heap of (deadline, number of the push, level, request); one that left the queue may still be in it.
        self._deadlines: list[tuple[float, int, Level, Waiting]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return sum(map(len, self.levels.values()))

    def __iter__(self) -> Iterator[Waiting]:
        for level in self.levels.values():
            yield from level.main.values()
            yield from level.delayed.values()

    def push(self, samples: list[Sequence], now: float) -> None:
        """Queue a request's samples. Raises Refused when its level is full."""
        request = samples[0].request
        number = request.priority if request.priority in self.levels else self.default_level
        level = self.levels[number]
        if level.policy.max_queue_size and len(level) >= level.policy.max_queue_size:
            reason = f"priority level {number} holds {len(level)} requests, its max_queue_size; try again later"
            raise Refused("queue_full", reason)
        waiting = Waiting(samples, now, level.policy.deadline(request, now))
        level.main[request.id] = waiting
        if waiting.deadline < math.inf:
            heapq.heappush(self._deadlines, (waiting.deadline, self._pushed, level, waiting))
            self._pushed += 1

    def remove(self, request_id: str) -> None:
        """Take a request out, if it waits."""
        for level in self.levels.values():
            level.main.pop(request_id, None)
            level.delayed.pop(request_id, None)

    def expire(self, now: float) -> list[Waiting]:
        """Delay or take out every request whose deadline has passed, as its level's ``timeout_action`` says.

        The earliest deadline goes first, across all levels: in this order those that were taken out are returned, and
        those that are delayed line up behind the ones that were delayed before.
        """
        rejected = []
        while self.next_deadline() < now:
            _, _, level, waiting = heapq.heappop(self._deadlines)
            del level.main[waiting.id]
            if level.policy.timeout_action == "delay":
                level.delayed[waiting.id] = waiting
            else:
                rejected.append(waiting)
        return rejected

    def next_deadline(self) -> float:
        """The earliest deadline of those that have not expired, or infinity; drops entries of who left the queue."""
        while self._deadlines and self._gone(*self._deadlines[0][2:]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def _gone(self, level: Level, waiting: Waiting) -> bool:
        return level.main.get(waiting.id) is not waiting
