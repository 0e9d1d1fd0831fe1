"""The command line."""

import signal
import sys
from io import TextIOWrapper
from types import FrameType

import typer

from minillm.commands import bench, lab
from minillm.commands.compare import compare
from minillm.commands.demo import demo
from minillm.commands.doctor import doctor
from minillm.commands.generate import generate
from minillm.commands.notebooks import notebooks
from minillm.commands.test import test
from minillm.scheduler import Refused

app = typer.Typer(
    help="Learn how large language models are served: one small real model, every batching technique.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, generate, compare, doctor, test, notebooks):
    app.command()(command)
app.add_typer(lab.app, name="lab")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command that the program's arguments name.

    Mistakes of the user (bad values, missing files, requests that no policy can run) end in one line and exit code 2.
    Whoever ends it by a signal, as by closing the terminal, lets it end the processes and delete the files it made.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if getattr(signal, name, None) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            signal.signal(getattr(signal, name), _leave)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever a student's code says can be shown, if need be as \\ud800
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (ValueError, OSError, Refused) as error:
        print(f"minillm: {error}", file=sys.stderr)
        sys.exit(2)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
