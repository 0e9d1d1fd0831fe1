"""``minillm demo``: the first thing to run."""

from minillm.commands.compare import compare


def demo() -> None:
    """Serve a small real model under every policy, and compare them: what compare does without options."""
    compare()
