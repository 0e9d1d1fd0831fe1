"""Lessons as notebooks: ``lesson.md`` is the source that people edit, ``lesson.ipynb`` is it, run, with its outputs.

The notebook is made anew each time, so that it can be compared: cells keep their ids until their text changes, no time
is recorded, and the kernel starts from the same environment everywhere. Outputs of cells tagged ``measured``, which
alone may read real time, are not compared; nor are pictures, which differ with fonts.
"""

import asyncio
import difflib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

from minillm.course.prose import Problem

AT_ONCE = 2
"""Notebooks that run beside each other."""

_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_LANGUAGE = {"name": "python"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MOST_LINES = 12
"""Lines that a problem quotes of a traceback or of a difference."""

CellDone = Callable[[], None]
"""Called after each cell of code has run."""


class NotebookFailed(Exception):
    """A notebook could not be run to its end; ``problem`` says where it stopped."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Cell:
    """What of a cell must not change unnoticed. ``line`` is where its text begins in ``lesson.md``."""

    line: int
    kind: str
    source: str
    tags: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    """Each output's type and text."""

    @property
    def text(self) -> tuple[str, str, tuple[str, ...]]:
        """All that comes from ``lesson.md``: kind, source and tags."""
        return self.kind, self.source, self.tags

    @property
    def measured(self) -> bool:
        """Whether the outputs depend on real time."""
        return "measured" in self.tags


def load(source: Path) -> NotebookNode:
    """The notebook of a text, without outputs."""
    notebook: NotebookNode = jupytext.read(source)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL, "language_info": _LANGUAGE})
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:10]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        if "teacher" in _tags(cell) and cell.cell_type == "code":
            cell.metadata["tags"] = [*_tags(cell), "hide-cell"]
    return notebook


def run(
    sources: Sequence[Path], cell_done: CellDone = lambda: None, limit: float = 120.0
) -> dict[Path, NotebookNode | NotebookFailed]:
    """Run notebooks, ``AT_ONCE`` at a time, each with all its cells for ``limit`` seconds at most.

    A failure ends only its notebook.
    """
    return asyncio.run(_run_all(sources, cell_done, limit))


async def _run_all(
    sources: Sequence[Path], cell_done: CellDone, limit: float
) -> dict[Path, NotebookNode | NotebookFailed]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(source: Path) -> NotebookNode | NotebookFailed:
        async with turn:
            try:
                return await _run(source, cell_done, limit)
            except NotebookFailed as failure:
                return failure

    return dict(zip(sources, await asyncio.gather(*map(in_turn, sources)), strict=True))


async def _run(source: Path, cell_done: CellDone, limit: float) -> NotebookNode:
    notebook = load(source)
    progress = _Progress(source, _lines(notebook, source), limit, asyncio.timeout(None))
    client = _client(notebook, source, progress.begin, cell_done)
    with tempfile.TemporaryDirectory() as settings:
        try:
            async with progress.clock:
                await client.async_execute(env=_environment(settings))
        except CellExecutionError as error:
            raise progress.failed(f"{error.ename}: {error.evalue}\n{_ending(error.traceback)}") from None
        except (TimeoutError, DeadKernelError):
            raise progress.cut_off() from None
    notebook.metadata["language_info"] = _LANGUAGE  # the kernel's own names its version
    return notebook


@dataclass(slots=True)
class _Progress:
    """How far a notebook has come: ``line`` is that of the cell it is in. ``clock`` ends it after ``limit`` seconds."""

    source: Path
    lines: Sequence[int]
    limit: float
    clock: asyncio.Timeout
    line: int = 1

    def begin(self, cell: NotebookNode, cell_index: int) -> None:
        """The first cell starts the clock: the kernel is up by then, and its start does not count."""
        if self.clock.when() is None:
            self.clock.reschedule(asyncio.get_running_loop().time() + self.limit)
        self.line = self.lines[cell_index]

    def failed(self, why: str) -> NotebookFailed:
        return NotebookFailed(Problem(self.source, self.line, why))

    def cut_off(self) -> NotebookFailed:
        """Of a notebook whose time or whose kernel came to its end."""
        if not self.clock.expired():
            return self.failed("the Python process of the notebook died in this cell")
        _be_quiet_about_what_was_cut_off()
        return self.failed(f"after {self.limit:g} s, its limit, the notebook was in this cell; let it do less")


def _client(
    notebook: NotebookNode, source: Path, begin: Callable[[NotebookNode, int], None], cell_done: CellDone
) -> NotebookClient:
    return NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(source.parent)}},
        on_cell_execute=begin,
        on_cell_executed=lambda **_: cell_done(),
    )


def _be_quiet_about_what_was_cut_off() -> None:
    """A client that is cancelled leaves a task behind which fails later; nobody waits for it any more."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


def _environment(settings: str) -> dict[str, str]:
    """Variables for the kernel: the user's, less what would change an output."""
    return os.environ | {
        "PYTHONHASHSEED": "0",
        "COLUMNS": "100",
        "CUDA_VISIBLE_DEVICES": "-1",
        "IPYTHONDIR": settings,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def _ending(traceback: str) -> str:
    lines = _COLOURS.sub("", traceback).rstrip().splitlines()
    return "\n".join(lines[-_MOST_LINES:])


def write(notebook: NotebookNode, source: Path) -> Path:
    """Write the notebook beside its source, and return where."""
    target = source.with_suffix(".ipynb")
    target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")
    return target


def differences(fresh: NotebookNode, source: Path) -> list[Problem]:
    """Where the notebook that lies beside the source is not the one that was just run, cell by cell."""
    target = source.with_suffix(".ipynb")
    if not target.exists():
        return [Problem(source, 1, "its notebook is missing; run `minillm notebooks` and commit what it writes")]
    new = list(_cells(fresh, _lines(fresh, source)))
    old = list(_cells(nbformat.read(target, as_version=4), repeat(1)))
    if [cell.text for cell in new] != [cell.text for cell in old]:
        first = next((cell for cell, was in zip(new, old, strict=False) if cell.text != was.text), new[-1])
        return [Problem(source, first.line, "the text is newer than the notebook; run `minillm notebooks`")]
    return [
        Problem(source, cell.line, f"the output is not the committed one:\n{_difference(was.outputs, cell.outputs)}")
        for cell, was in zip(new, old, strict=True)
        if cell.outputs != was.outputs and not cell.measured
    ]


def untidy_outputs(notebook: NotebookNode, source: Path) -> list[Problem]:
    """Text outputs that hold a path or an address of the machine that ran them."""
    folders = {str(source.resolve().parents[2]), str(Path.home())}
    local = re.compile("|".join([*map(re.escape, folders), r"\b0x\w{8,}"]))
    return [
        Problem(source, cell.line, f"the output shows {match[0]!r}, which is of this machine")
        for cell in _cells(notebook, _lines(notebook, source))
        for _, text in cell.outputs
        if (match := local.search(text))
    ]


def _cells(notebook: NotebookNode, lines: Iterable[int]) -> Iterator[Cell]:
    for cell, line in zip(notebook.cells, lines, strict=False):
        outputs = tuple(pair for output in cell.get("outputs", ()) for pair in _texts(output))
        yield Cell(line, cell.cell_type, cell.source, tuple(_tags(cell)), outputs)


def _texts(output: NotebookNode) -> Iterator[tuple[str, str]]:
    """An output as (type, text) pairs; of pictures only the type."""
    if output.output_type == "stream":
        yield output.name, output.text
    elif output.output_type == "error":
        yield "error", output.ename
    else:
        for kind, data in sorted(output.data.items()):
            yield kind, str(data) if kind.startswith("text/") else ""


def _difference(old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]) -> str:
    before, after = (
        [f"{kind}: {line}" for kind, text in outputs for line in text.splitlines() or [""]] for outputs in (old, new)
    )
    lines = list(difflib.unified_diff(before, after, "committed", "now", lineterm="", n=0))[2:]
    return "\n".join(lines[:_MOST_LINES])


def _lines(notebook: NotebookNode, source: Path) -> list[int]:
    """The line of the source where each cell's text begins, counted from 1."""
    text = source.read_text(encoding="utf-8")
    lines, place = [], 0
    for cell in notebook.cells:
        found = text.find(cell.source, place)
        place = found if found >= 0 else place
        lines.append(text.count("\n", 0, place) + 1)
        place += len(cell.source)
    return lines


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", ()))
