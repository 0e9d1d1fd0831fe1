"""What the policies have in common: refusals and the accounting of a settled span."""

from collections.abc import Iterable

from minillm.batch import Outcome
from minillm.request import Request
from minillm.scheduler import Refused
from minillm.sequence import Sequence, Status


def advance(outcome: Outcome) -> None:
    """Count what a pass left in the cache: all of its span but rejected drafts, and never the newest token."""
    sequence = outcome.sequence
    sequence.computed = min(outcome.span.end, len(sequence.token_ids) - 1)
    sequence.draft_token_ids = ()
    sequence.status = Status.FINISHED if sequence.finished else sequence.status


def filled_tokens(sequences: Iterable[Sequence]) -> int:
    """Cache places that hold a token of these sequences."""
    return sum(sequence.computed for sequence in sequences)


def peak_tokens(request: Request) -> int:
    """Most cached tokens that one sample of a request needs: the last token's keys and values are never read."""
    return len(request.prompt_token_ids) + request.params.max_tokens - 1


def refuse_above(limit: int, needed: int, what: str, remedy: str) -> None:
    """Raise Refused when a request needs more than there will ever be."""
    if needed > limit:
        raise Refused("never_fits", f"the request needs {needed} {what} and there are {limit}; {remedy}")


def require_positive(**sizes: int) -> None:
    """Raise ValueError for a policy's option that is below 1: nothing would ever run."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")


def move_to(status: Status, sequences: Iterable[Sequence]) -> None:
    """Set the status of each sequence."""
    for sequence in sequences:
        sequence.status = status
