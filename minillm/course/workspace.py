"""A student's folder: copies of the labs, what is written in them, and what has changed since they were copied."""

import ast
import difflib
import hashlib
import json
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from minillm.course.lesson import HINT_LEVELS, Function, Lesson, LessonError, Task
from minillm.course.overlay import reference_source
from minillm.course.screening import read_lab
from minillm.course.splice import Function as Definition
from minillm.course.splice import signature

FOLDER = Path(__file__).parents[2] / "my_labs"
VARIABLE = "MINILLM_LABS"

_BACKUP = re.compile(r"\.(\d+)\.backup")
_SKELETON = re.compile(r"lesson \d+, task \d+: ")


@dataclass(frozen=True, slots=True)
class SignatureChange:
    """A function whose first line is another in today's skeleton than in a student's copy; ``old`` None: not there."""

    function: str
    old: str | None
    new: str

    def __str__(self) -> str:
        if self.old is None:
            return f"your lab has no {self.function}, which the lesson asks for now; add `{self.new}` to it"
        return (
            f"{self.function} is `{self.old}` in your lab, but `{self.new}` in today's skeleton; "
            "change this line, and keep your body"
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder that holds a student's labs."""

    folder: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Workspace":
        """The folder that ``MINILLM_LABS`` names, else ``my_labs`` in the checkout."""
        return cls(Path(environment.get(VARIABLE) or FOLDER).absolute())

    def lab(self, lesson: Lesson) -> Path:
        """Where the student's copy of a lesson's lab lies, once it has been opened."""
        return self.folder / lab_name(lesson)

    def open(self, lesson: Lesson) -> bool:
        """Copy the skeleton unless there is a lab already, and say whether it was copied.

        Raises LessonError where there is no skeleton, or no place for the copy.
        """
        lab = self.lab(lesson)
        if lab.is_symlink() and not lab.exists():
            raise LessonError(f"{lab} is a link to {lab.readlink()}, which is not there; delete the link")
        if lab.exists():
            return False
        text = skeleton_text(lesson)
        self._make_folder()
        lab.write_text(text, encoding="utf-8")
        return True

    def reset(self, lesson: Lesson) -> Path | None:
        """Start the lab anew, and return the backup of what was there, if there was anything."""
        lab, text = self.lab(lesson), skeleton_text(lesson)
        if not lab.exists():
            self.open(lesson)
            return None
        names = (_BACKUP.fullmatch(path.name.removeprefix(lab.stem)) for path in self.folder.glob(f"{lab.stem}.*"))
        numbers = (int(name[1]) for name in names if name)
        backup = self.folder / f"{lab.stem}.{max(numbers, default=0) + 1}.backup"
        shutil.move(lab, backup)
        lab.write_text(text, encoding="utf-8")
        return backup

    def hints_seen(self, lesson: Lesson, task: Task) -> int:
        """The highest level of hint that was shown, 0 for none."""
        seen = self._read(".hints.json").get(f"{lesson.number}.{task.number}", 0)
        return seen if isinstance(seen, int) and 0 <= seen <= HINT_LEVELS else 0

    def hint(self, lesson: Lesson, task: Task, level: int | None = None) -> tuple[int, str]:
        """A hint and its level, the next one that was not seen unless a level is given; it counts as seen from now on.

        Raises LessonError for a level that does not exist.
        """
        seen = self.hints_seen(lesson, task)
        level = min(seen + 1, HINT_LEVELS) if level is None else level
        if not 1 <= level <= HINT_LEVELS:
            raise LessonError(f"there is no hint of level {level}; levels are 1 to {HINT_LEVELS}")
        self._note(".hints.json", {f"{lesson.number}.{task.number}": max(seen, level)})
        return level, task.hints[level - 1]

    def note_solved(self, lesson: Lesson, tasks: Iterable[Task]) -> None:
        """Remember that these tasks were graded as solved, as they are written now."""
        text = read_lab(self.lab(lesson))
        self._note(".solved.json", {f"{lesson.number}.{task.number}": _digest(text, task) for task in tasks})

    def is_solved(self, lesson: Lesson, task: Task) -> bool:
        """Whether the task was graded as solved and its functions have not been changed since."""
        digest = self._read(".solved.json").get(f"{lesson.number}.{task.number}")
        return digest is not None and digest == _digest(read_lab(self.lab(lesson)), task)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"set {VARIABLE} to a folder of yours"
            raise LessonError(f"the folder {self.folder} cannot be made: {error.strerror}; {remedy}") from None

    def _read(self, name: str) -> dict[str, object]:
        file = self.folder / name
        try:
            found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except (ValueError, RecursionError):
            raise LessonError(f"{file} is no JSON; delete it, it only holds what you have seen and solved") from None
        return found if isinstance(found, dict) else {}

    def _note(self, name: str, entries: Mapping[str, object]) -> None:
        notes = {**self._read(name), **entries}
        self._make_folder()
        (self.folder / name).write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def lab_name(lesson: Lesson) -> str:
    """``lab_04_paged_attention.py``."""
    return f"lab_{lesson.folder.name}.py"


def shown(path: Path) -> Path:
    """A path as it is seen from where the user stands."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def skeleton_text(lesson: Lesson) -> str:
    """The skeleton as it is committed. Raises LessonError for a lesson without one."""
    file = lesson.skeleton
    if not file.is_file():
        raise LessonError(f"lesson {lesson.number} has no {file.name} yet; minillm lab skeletons writes it")
    return file.read_text(encoding="utf-8")


def functions(text: str) -> dict[str, Definition]:
    """The functions of a file by qualified name; of several with one name the last."""
    return dict(_functions(ast.parse(text).body))


def _functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def written_functions(text: str, task: Task) -> list[Function]:
    """The task's functions whose body is no longer the skeleton's; docstrings and comments do not count."""
    found = functions(text)
    return [each for each in task.functions if each.name in found and not is_skeleton(found[each.name])]


def is_skeleton(function: Definition) -> bool:
    """Whether a body is nothing but ``raise NotImplementedError("lesson N, task T: ...")``, whatever the goal."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    match body:
        case [ast.Raise(exc=ast.Call(func=ast.Name("NotImplementedError"), args=[ast.Constant(str(message))]))]:
            return _SKELETON.match(message) is not None
    return False


def signature_changes(lesson: Lesson, text: str) -> list[SignatureChange]:
    """Functions of the lesson whose parameters in this lab are not those of the committed skeleton."""
    ours, theirs = functions(skeleton_text(lesson)), functions(text)
    changes = []
    for function in (each for task in lesson.tasks for each in task.functions):
        new = signature(ours[function.name])
        old = signature(theirs[function.name]) if function.name in theirs else None
        if old != new:
            changes.append(SignatureChange(function.name, old, new))
    return changes


def differences(text: str, task: Task) -> list[str]:
    """A unified difference, line by line, from the functions of a lab to the reference's."""
    lines: list[str] = []
    for function in task.functions:
        yours = _lines(text, function.name)
        reference = _lines(reference_source(function.module).text, function.name)
        names = f"yours: {function.name}", f"reference: {function.name}"
        lines += difflib.unified_diff(yours, reference, *names, lineterm="")
    return lines


def _lines(text: str, name: str) -> list[str]:
    """A function's lines, decorators included; none if there is no such function."""
    node = functions(text).get(name)
    if node is None:
        return []
    first = min(each.lineno for each in (node, *node.decorator_list))
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])).splitlines()


def _digest(text: str, task: Task) -> str:
    """Of the task's functions, without comments and layout."""
    found = functions(text)
    trees = [ast.dump(found[each.name]) if each.name in found else "" for each in task.functions]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]
