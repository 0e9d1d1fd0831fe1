"""Where graded processes are born: a process that has imported what all of them need, and forks one for each job.

Importing torch and pytest takes longer than the tests of a task. Nothing that holds a task is imported before the fork,
and nothing that a job does comes back. ``python -m minillm.course.nursery SOCKET MODULES`` runs it; elsewhere than on
Linux, where libraries of the system may not survive a fork, each job gets a new interpreter instead.
"""

import contextlib
import ctypes
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

_PR_SET_PDEATHSIG = 1
"""From Linux's sys/prctl.h."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""The same hashes for all, so that a set's order makes no difference; and no plugins, which take longer than tests."""


class Nursery:
    """Starts graded processes in the folder ``root``, once ``modules`` are imported; use it in a ``with``.

    It takes up work, and imports, when the first is asked for. When the ``with`` is left, no process that it has
    started lives on; nor does any if this process is killed.
    """

    def __init__(self, root: Path, modules: Sequence[str] = ()) -> None:
        """Raises OSError on a system whose processes cannot hand each other open files."""
        if not hasattr(socket, "send_fds"):
            raise OSError("labs are graded on Linux and macOS only; on Windows use its Linux subsystem, WSL")
        self._root, self._modules = root, modules
        self._ours, self._theirs = socket.socketpair()
        self._lock = Lock()
        self._born: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, job: Path, channel: int, output: int) -> int:
        """Start a process on the job in this file, and return its number, which is its group's as well.

        It writes events to the open file ``channel``, and what it prints to ``output``. Raises OSError where the
        nursery has died.
        """
        with self._lock:
            self._process = self._process or self._open()
            socket.send_fds(self._ours, [os.fsencode(job)], [channel, output])
            number = int(self._ours.recv(32) or 0)
            if not number:
                raise ChildProcessError("the process that starts graded processes has died; see what it printed")
            self._born.append(number)
            return number

    def _open(self) -> "subprocess.Popen[bytes]":
        keep_newest(numba_caches(), "?" * DIGEST_LENGTH, _KEPT)
        channel = self._theirs.fileno()
        command = [sys.executable, "-u", "-m", "minillm.course.nursery", str(channel), *self._modules]
        process = subprocess.Popen(
            command,
            cwd=self._root,
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            pass_fds=(channel,),
            start_new_session=True,  # a closed terminal or an interrupt is for us alone: it must outlive us to clean up
        )
        self._theirs.close()
        return process

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *exception: object) -> None:
        for number in self._born:
            kill(number)
        self._ours.close()
        self._theirs.close()
        if self._process:
            self._process.wait()


def kill(number: int) -> None:
    """End a process that a nursery has started, and all of its group.

    The number is nobody else's: the dead are buried when the nursery ends.
    """
    for end in (os.killpg, os.kill):  # it may not have its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(number, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Import what jobs need, and start them until the socket is closed, as it is when its owner dies: then end them."""
    from minillm.course import graded  # brings pytest

    for module in arguments[1:]:
        with contextlib.suppress(Exception):  # a job that needs it says more
            import_module(module)
    _keep_bytecode()
    gc.freeze()  # what is there stays shared with the processes forked
    born = []
    with socket.socket(fileno=int(arguments[0])) as connection:
        while True:
            job, files, _, _ = socket.recv_fds(connection, 1 << 12, 2)
            if not job:
                break
            born.append(_birth(graded.main, connection, os.fsdecode(job), *files))
            for file in files:
                os.close(file)
            with contextlib.suppress(BrokenPipeError):  # the next read ends this loop
                connection.sendall(str(born[-1]).encode())
    for number in born:
        kill(number)
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
    nursery, number = os.getpid(), os.fork()
    if number:
        return number
    try:
        connection.close()
        os.setsid()
        _die_after(nursery)
        os.dup2(output, 1)
        os.dup2(output, 2)
        grade([job, str(channel)])
    finally:
        os._exit(0)  # never back into the nursery's loop; nobody believes the code


def _die_after(parent: int) -> None:
    """Have Linux end this process when its parent is killed, which then can end nothing itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # too late to be told
        os._exit(0)


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
