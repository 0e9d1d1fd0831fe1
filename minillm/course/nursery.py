"""Where graded processes are born: a process that has imported what all of them need, and forks one for each job.

Importing torch and pytest takes longer than the tests of a task. Nothing that holds a task is imported before the fork,
and nothing that a job does comes back. ``python -m minillm.course.nursery SOCKET MODULES`` runs it; elsewhere than on
Linux, where libraries of the system may not survive a fork, each job gets a new interpreter instead.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock

from minillm.course.cache import cache_folder, keep_newest
from minillm.course.overlay import DIGEST_LENGTH, numba_caches

_KEPT = 64
"""Overlays whose compiled functions are kept, a few MB each."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""The same hashes for all, so that a set's order makes no difference; and no plugins, which take longer than tests."""


class Nursery:
    """Starts graded processes in the folder ``root``, once ``modules`` are imported; use it in a ``with``.

    When that is left, no process that it has started lives on.
    """

    def __init__(self, root: Path, modules: Sequence[str] = ()) -> None:
        """Raises OSError on a system whose processes cannot hand each other open files."""
        if not hasattr(socket, "send_fds"):
            raise OSError("labs are graded on Linux and macOS only; on Windows use its Linux subsystem, WSL")
        self._ours, theirs = socket.socketpair()
        self._lock = Lock()
        self._born: list[int] = []
        keep_newest(numba_caches(), "?" * DIGEST_LENGTH, _KEPT)
        command = [sys.executable, "-u", "-m", "minillm.course.nursery", str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(
            command,
            cwd=root,
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def start(self, job: Path, channel: int, output: int) -> int:
        """Start a process on the job in this file, and return its number, which is its group's as well.

        It writes events to the open file ``channel``, and what it prints to ``output``. Raises OSError where the
        nursery has died.
        """
        with self._lock:
            socket.send_fds(self._ours, [os.fsencode(job)], [channel, output])
            number = int(self._ours.recv(32) or 0)
            if not number:
                raise ChildProcessError("the process that starts graded processes has died; see what it printed")
            self._born.append(number)
            return number

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *exception: object) -> None:
        for number in self._born:
            kill(number)
        self._ours.close()
        self._process.wait()


def kill(number: int) -> None:
    """End a process that a nursery has started, and all of its group.

    The number is nobody else's: the dead are buried when the nursery ends.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Import what jobs need, and start them until the socket is closed."""
    from minillm.course import graded  # brings pytest

    for module in arguments[1:]:
        import_module(module)
    _keep_bytecode()
    gc.freeze()  # what is there stays shared with the processes forked
    with socket.socket(fileno=int(arguments[0])) as connection:
        while True:
            job, files, _, _ = socket.recv_fds(connection, 1 << 12, 2)
            if not job:
                break
            number = _birth(graded.main, connection, os.fsdecode(job), *files)
            for file in files:
                os.close(file)
            connection.sendall(str(number).encode())
    _bury()


def _keep_bytecode() -> None:
    """Where Python is told to write no bytecode beside its sources, keep that of minillm and its tests elsewhere.

    Each graded process would else compile them again.
    """
    if sys.dont_write_bytecode:
        sys.pycache_prefix = str(cache_folder() / "bytecode")
        sys.dont_write_bytecode = False


def _birth(
    grade: Callable[[Sequence[str]], int], connection: socket.socket, job: str, channel: int, output: int
) -> int:
    if sys.platform != "linux":
        return _spawn(grade.__module__, job, channel, output)
    number = os.fork()
    if number:
        return number
    try:
        connection.close()
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        grade([job, str(channel)])
    finally:
        os._exit(0)  # never back into the nursery's loop; nobody believes the code


def _spawn(module: str, job: str, channel: int, output: int) -> int:
    command = [sys.executable, "-u", "-m", module, job, str(channel)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(channel,), start_new_session=True
    ).pid


def _bury() -> None:
    """Until here the dead have kept their numbers."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
