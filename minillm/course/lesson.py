"""A lesson as its ``lesson.toml`` describes it: what it teaches, what a student writes, and what students get wrong."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LESSONS = Path(__file__).parents[2] / "lessons"
TESTS = LESSONS.with_name("tests")
HINT_LEVELS = 3

_FOLDER = re.compile(r"(\d\d)_\w+")


class LessonError(ValueError):
    """A lesson that does not exist or is not well formed: the sentence names the file, the rule and the remedy."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method of the reference: ``minillm.cache.blocks:BlockManager.append``."""

    module: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "Function":
        """From ``module:qualified.name``. Raises LessonError for any other form."""
        module, colon, name = text.partition(":")
        if not (module and colon and name):
            raise LessonError(f"{text!r} names no function; write module:name, as in minillm.engine:Engine.step")
        return cls(module, name)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True)
class Task:
    """What a student writes in one go.

    ``functions`` are replaced by the student's; ``given`` are shown beside them, as callers or called. ``minutes``
    is how long it takes; ``section`` the notebook's section that explains it; ``hints`` go from a nudge to the way.
    """

    number: int
    goal: str
    functions: tuple[Function, ...]
    given: tuple[Function, ...]
    points: int
    minutes: int
    section: str
    hints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong solution that a student might write: ``find`` in the reference's ``function`` became ``replace``.

    ``why`` is the misconception, said to the student; ``section`` is where the notebook explains it.
    """

    name: str
    task: int
    function: Function
    find: str
    replace: str
    why: str
    section: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson. ``folder`` holds ``lesson.toml``, the skeleton ``lab.py`` and the chapter ``lesson.md``."""

    number: int
    title: str
    folder: Path
    objectives: tuple[str, ...]
    prerequisites: tuple[int, ...]
    tasks: tuple[Task, ...]
    mutants: tuple[Mutant, ...]

    @property
    def skeleton(self) -> Path:
        """What students copy and fill in, generated from the reference."""
        return self.folder / "lab.py"

    @property
    def chapter(self) -> Path:
        """The text that explains it. A lesson that is being written may not have one yet."""
        return self.folder / "lesson.md"

    def task(self, number: int) -> Task:
        """The task of this number. Raises LessonError for one that the lesson does not have."""
        for task in self.tasks:
            if task.number == number:
                return task
        raise LessonError(f"lesson {self.number} has no task {number}; its tasks are 1 to {len(self.tasks)}")


def lessons(folder: Path = LESSONS) -> list[Lesson]:
    """All lessons, in order."""
    return [load_lesson(path) for _, path in sorted(_folders(folder))]


def lesson_numbered(number: int, folder: Path = LESSONS) -> Lesson:
    """The lesson of this number. Raises LessonError for one that does not exist."""
    folders = dict(_folders(folder))
    if number not in folders:
        existing = ", ".join(map(str, sorted(folders))) or "none"
        raise LessonError(f"there is no lesson {number}; lessons: {existing}")
    return load_lesson(folders[number])


def _folders(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _FOLDER.fullmatch(path.name)
        if match and (path / "lesson.toml").is_file():
            yield int(match[1]), path


def load_lesson(folder: Path) -> Lesson:
    """Read ``folder/lesson.toml``. Raises LessonError for a missing or unknown key or a value that breaks a rule."""
    file = folder / "lesson.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        return _lesson(folder, table)
    except (tomllib.TOMLDecodeError, LessonError) as error:
        raise LessonError(f"{file}: {error}") from None


def _lesson(folder: Path, table: Mapping[str, Any]) -> Lesson:
    _has_keys(table, {"title", "objectives", "prerequisites", "tasks", "mutants"}, "the lesson")
    tasks = tuple(_task(number, entry) for number, entry in enumerate(table["tasks"], 1))
    return Lesson(
        number=int(folder.name[:2]),
        title=table["title"],
        folder=folder,
        objectives=tuple(table["objectives"]),
        prerequisites=tuple(table["prerequisites"]),
        tasks=tasks,
        mutants=tuple(_mutant(entry, tasks) for entry in table["mutants"]),
    )


def _task(number: int, entry: Mapping[str, Any]) -> Task:
    where = f"task {number}"
    _has_keys(entry, {"goal", "functions", "points", "minutes", "section", "hints"}, where, {"given"})
    if len(entry["hints"]) != HINT_LEVELS:
        raise LessonError(f"{where} has {len(entry['hints'])} hints; give {HINT_LEVELS}, from a nudge to the way")
    return Task(
        number=number,
        goal=entry["goal"],
        functions=tuple(map(Function.parse, entry["functions"])),
        given=tuple(map(Function.parse, entry.get("given", ()))),
        points=entry["points"],
        minutes=entry["minutes"],
        section=entry["section"],
        hints=tuple(entry["hints"]),
    )


def _mutant(entry: Mapping[str, Any], tasks: tuple[Task, ...]) -> Mutant:
    where = f"mutant {entry.get('name', '?')}"
    _has_keys(entry, {"name", "task", "find", "replace", "why", "section"}, where, {"function"})
    if not 1 <= entry["task"] <= len(tasks):
        raise LessonError(f"{where} is of task {entry['task']}; the tasks are 1 to {len(tasks)}")
    functions = tasks[entry["task"] - 1].functions
    if "function" not in entry and len(functions) > 1:
        raise LessonError(f"{where} must name its function, for task {entry['task']} has {len(functions)}")
    function = Function.parse(entry["function"]) if "function" in entry else functions[0]
    if function not in functions:
        raise LessonError(f"{where} changes {function}, which task {entry['task']} does not ask for")
    fields = {key: entry[key] for key in ("name", "task", "find", "replace", "why", "section")}
    return Mutant(function=function, **fields)


def _has_keys(table: Mapping[str, Any], required: set[str], where: str, optional: Collection[str] = ()) -> None:
    missing, unknown = required - table.keys(), table.keys() - required - set(optional)
    if missing:
        raise LessonError(f"{where} lacks {min(missing)}")
    if unknown:
        raise LessonError(
            f"{where} has an unknown key {min(unknown)}; it takes {', '.join(sorted({*required, *optional}))}"
        )
