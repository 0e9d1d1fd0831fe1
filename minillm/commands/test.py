"""``minillm test``: run the tests of a checkout."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from minillm.commands.typed import typed
from minillm.course.lesson import TESTS
from minillm.course.workspace import Workspace, shown
from minillm.doctor import install_command

IN_PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal")
"""A process for each core, up to as many as a small laptop's memory holds."""

_LESSON_FILE = re.compile(r"test_lesson_(\d+)_\w+\.py")


def test(
    lesson: Annotated[int | None, typer.Option(help="Only the tests of this lesson's stage.")] = None,
) -> None:
    """Run all tests, or those of one lesson."""
    if not TESTS.is_dir():
        raise ValueError(
            f"there are no tests at {TESTS}; install minillm with --editable from a copy of its repository"
        )
    if find_spec("pytest") is None:
        raise ValueError(f"pytest is not installed; run {install_command('test')}")
    if lesson is None:
        raise typer.Exit(run_pytest(TESTS, *IN_PARALLEL))
    files = lesson_tests(TESTS, lesson)
    code = run_pytest(*files)
    lab = Workspace.from_environment().folder / files[0].name.replace("test_lesson", "lab", 1)
    typer.echo(f"tested: the reference; your {shown(lab)} was not: {typed(f'lab-{lesson}', f'lab run {lesson}')}")
    raise typer.Exit(code)


def lesson_tests(folder: Path, lesson: int) -> list[Path]:
    """The test files of a lesson. Raises ValueError for a lesson without any."""
    files = {path: int(match[1]) for path in sorted(folder.iterdir()) if (match := _LESSON_FILE.fullmatch(path.name))}
    chosen = [path for path, number in files.items() if number == lesson]
    if not chosen:
        existing = ", ".join(map(str, sorted(set(files.values())))) or "none yet"
        raise ValueError(f"lesson {lesson} has no tests; lessons with tests: {existing}")
    return chosen


def run_pytest(*arguments: Path | str) -> int:
    """Run pytest in a process of its own and return its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=TESTS.parent, check=False).returncode
