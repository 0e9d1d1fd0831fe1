"""Time as the engine knows it, in seconds from its start."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that can be asked to reach a moment."""

    def now(self) -> float:
        """Seconds since the clock was made."""
        ...

    def advance_to(self, moment: float) -> None:
        """Return at ``moment`` or, when it has passed, at once."""
        ...


class WallClock:
    """Real time: advancing sleeps."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._start

    def advance_to(self, moment: float) -> None:
        """Sleep until ``moment``."""
        wait = moment - self.now()
        if wait > 0:
            time.sleep(wait)


class VirtualClock:
    """Simulated time: advancing jumps, and no run reads the wall clock."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Simulated seconds."""
        return self._now

    def advance_to(self, moment: float) -> None:
        """Jump to ``moment``; never back."""
        self._now = max(self._now, moment)
