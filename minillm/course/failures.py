"""What an exception says about the code under test: how the test ended, in words, and a digest of it."""

import errno
import hashlib
import linecache
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from minillm.course.grades import CheckDigest, Outcome
from minillm.course.remarks import remarks
from minillm.course.splice import OURS

_LONGEST = 600
"""Characters of an exception's text that are shown."""

_WIDEST = 120
"""Characters of each of its lines: an object in it may show all that it holds."""

LAB = "kernels.lab"
"""The kernel lab's package, whose own errors are shown whole: they end with the remedy."""

NEARLY_DUE = "as due in six digits"
"""Digest of a wrong value that digests cannot tell from what is due."""

CHECK = "check"
"""How digests of checked values begin: equal ones mean equal wrong values, others may have many causes."""

FAULT = "fault"
"""How digests of a kernel's faults begin: equal ones mean faults of the same kinds, which wrong values follow from."""

FAULTS = ("errors", "faults")
"""Checks that compare a kernel's faults: errors that end its launch, and what the lab found."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``digest`` is equal for two solutions that fail in the same way."""

    outcome: Outcome
    message: str
    digest: str


def describe(error: BaseException, checks: Sequence[CheckDigest], lab: str | None) -> Failure:
    """The failure of a test that ended with ``error``, whose checks so far are ``checks``."""
    kind = type(error).__name__
    outcome, text = _outcome(error), _text(error)
    further = list(remarks(error, text, lab))
    if kind in ("CheckFailed", "NotPlain") and checks:
        return Failure(outcome, "\n".join([text, *further]), _of_check(kind, checks[-1]))
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_ours(frame, lab)]
    where = _where(frames[-1][0], lab) if frames else "the test"
    if outcome is Outcome.NOT_WRITTEN and frames:
        text = f"{frames[-1][0].f_code.co_qualname} is not written yet"
    elif outcome is not Outcome.FAILED:
        text = f"{kind}: {text}" if text else kind
        text = "\n".join([text, *further, *_places(frames, lab)])
    return Failure(outcome, text, f"{outcome.value} {kind} in {where}")


def _of_check(kind: str, check: CheckDigest) -> str:
    telling = kind == "CheckFailed" and check.digest != NEARLY_DUE
    digest = hashlib.sha256(f"{check.what}: {check.digest}".encode()).hexdigest()[:12]
    if telling:
        kind = FAULT if check.what in FAULTS else CHECK
    return f"{kind} {digest}"


_OUTCOMES = {
    "NotPlain": Outcome.WRONG_TYPE,
    "AssertionError": Outcome.FAILED,
    "Failed": Outcome.FAILED,  # pytest.raises, where nothing was raised
    "Skipped": Outcome.NOT_RUN,
    "SystemExit": Outcome.DIED,
    "KeyboardInterrupt": Outcome.DIED,
}
"""By the name of an exception's class, or of one that it derives from."""


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, NotImplementedError) and _text(error).startswith("lesson "):
        return Outcome.NOT_WRITTEN
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return Outcome.FLOODED
    known = (_OUTCOMES[base.__name__] for base in type(error).__mro__ if base.__name__ in _OUTCOMES)
    return next(known, Outcome.RAISED)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the code under test may bring exceptions of its own
        text = "(an exception that cannot be shown)"
    if type(error).__name__ == "CheckFailed" or any(base.__module__.startswith(LAB) for base in type(error).__mro__):
        return text
    return _cut("\n".join(_cut(line, _WIDEST) for line in text.splitlines()), _LONGEST)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[:width]}..."


def _is_ours(frame: FrameType, lab: str | None) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    is_tool = module.startswith(("minillm.course", LAB))
    return frame.f_code.co_filename == lab or (module.partition(".")[0] in OURS and not is_tool)


def _where(frame: FrameType, lab: str | None) -> str:
    return "the lab" if frame.f_code.co_filename == lab else str(frame.f_globals["__name__"])


def _places(frames: Sequence[tuple[FrameType, int]], lab: str | None) -> Iterator[str]:
    """The last line of the lab that was at work, and where the exception came from if that was elsewhere.

    Lines of the reference are not shown, for they may be what another task asks for.
    """
    last_of_lab = [place for place in frames if place[0].f_code.co_filename == lab][-1:]
    for frame, line in [*last_of_lab, *(place for place in frames[-1:] if place not in last_of_lab)]:
        code = frame.f_code
        if code.co_filename == lab:
            text = linecache.getline(code.co_filename, line).strip()
            yield f"  {_short(code.co_filename)}:{line}, in {code.co_name}: {text}"
        else:
            yield f"  {_short(code.co_filename)}, in {code.co_name}"


def _short(path: str) -> str:
    """The path from the working directory where it is below that, else the file's name and folder."""
    relative = os.path.relpath(path)
    return "/".join(Path(path).parts[-2:]) if relative.startswith("..") else relative
