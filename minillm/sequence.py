"""One line of tokens with its keys and values: what schedulers queue and models extend."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from minillm.request import Request

FinishReason = Literal["stop", "length", "abort", "error", "refused", "expired"]


class Status(Enum):
    """Where a sequence stands. A preempted sequence waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens, or one of its ``n`` branches.

    ``branches`` is how many samples it stands for: n until the end of the prompt forks it, then 1.
    ``computed`` counts the leading tokens whose keys and values stand in the cache. ``memory`` belongs to the policy
    (a block table, a row of a rectangle); the runner reads it, nobody else. While ``in_flight`` a batch that holds
    the sequence is being computed: it is in no other batch, is never a victim, and keeps its memory until settled.
    """

    request: Request
    branch: int = 0
    branches: int = 1
    token_ids: list[int] = field(default_factory=list)
    computed: int = 0
    draft_token_ids: tuple[int, ...] = ()
    in_flight: bool = False
    status: Status = Status.WAITING
    memory: Any = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.request.prompt_token_ids)

    def __repr__(self) -> str:
        """Short, for errors print sequences: a name tells which one is meant, and its tokens fill a page."""
        return f"<Sequence {self.name}>"

    @property
    def name(self) -> str:
        """The request's id, with the branch where there are several."""
        return self.request.id if self.request.params.n == 1 else f"{self.request.id}.{self.branch}"

    @property
    def prompt_length(self) -> int:
        """Tokens of the client's prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def output_length(self) -> int:
        """Tokens generated so far; they survive a preemption."""
        return len(self.token_ids) - self.prompt_length

    @property
    def max_length(self) -> int:
        """Prompt and output at their longest. The last token's keys and values are never needed: the peak is 1 less."""
        return self.prompt_length + self.request.params.max_tokens

    @property
    def uncomputed(self) -> int:
        """Tokens, drafts included, that the cache still lacks: the length of the next span if nothing cuts it."""
        return len(self.token_ids) + len(self.draft_token_ids) - self.computed

    @property
    def finished(self) -> bool:
        """Whether no token will follow."""
        return self.finish_reason is not None

    def fork(self) -> "list[Sequence]":
        """The other branches, with the same tokens; this one becomes branch 0. The policy shares its memory."""
        others = range(1, self.branches)
        self.branches = 1
        return [
            Sequence(self.request, branch, 1, list(self.token_ids), self.computed, status=self.status)
            for branch in others
        ]


def independent_branches(request: Request) -> list[Sequence]:
    """The n samples of a request as sequences that share nothing, for policies that cannot fork."""
    return [Sequence(request, branch) for branch in range(request.params.n)]
