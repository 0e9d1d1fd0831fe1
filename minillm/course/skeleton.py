"""A lesson's ``lab.py``, generated from the reference: the bodies that a student writes are left out.

The reference is the only source. Signatures, annotations, decorators and docstrings are copied from it as they stand,
and what its functions use is imported; so the file is an overlay that fits before its first line has been written.
"""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from minillm.course.given import (
    LINE_LENGTH,
    Definition,
    Reference,
    empty_lines,
    given_above,
    given_inside,
    references,
    wrapped,
)
from minillm.course.imports import Import, render_imports
from minillm.course.lesson import Function, Lesson, LessonError, Task

_MODULE = """\"\"\"Lesson {number}, {title}: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-{number}              all tasks; T=2 for one of them
    make hint L={number} T=2       the next hint for a task
    make peek L={number} T=2       what sets yours apart from the reference

or, without make, `minillm lab run {number} --task 2`, `minillm lab hint {number} 2` and `minillm lab peek {number} 2`.
A task earns its points when all of its tests pass.

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
\"\"\"
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """A function of the lab."""

    task: Task
    function: Function

    @property
    def owner(self) -> str:
        """Its class, or its own name where it has none."""
        return self.function.name.partition(".")[0]


def skeleton(lesson: Lesson) -> str:
    """The text of the lesson's ``lab.py``.

    Raises LessonError for a function that does not exist, is asked for twice, is nested deeper than in a class, or
    whose name another module's function or class has taken.
    """
    try:
        return _skeleton(lesson)
    except LessonError as error:
        raise LessonError(f"{lesson.folder / 'lesson.toml'}: {error}") from None


def _skeleton(lesson: Lesson) -> str:
    parts = [_Part(task, each) for task in lesson.tasks for each in task.functions]
    owners = _owners(parts)
    headings = _headings([part for members in owners.values() for part in members])
    modules = references([*(part.function for part in parts), *(each for task in lesson.tasks for each in task.given)])
    asked = frozenset(part.function for part in parts)
    shown: set[Function] = {*asked}
    body: list[cst.BaseCompoundStatement] = []
    for owner, members in owners.items():
        module = members[0].function.module
        given = dict.fromkeys(each for part in members for each in part.task.given if each not in shown)
        shown |= given.keys()
        own = [each for each in given if each.module == module and each.name.startswith(owner + ".")]
        above = given_above([each for each in given if each not in own], modules, asked)
        block = _block(lesson, members, headings, own, modules[module])
        body.append(block.with_changes(leading_lines=_led(block, ["", *above] if body and above else above)))
    imports = render_imports(_imports(owners, modules), LINE_LENGTH)
    return _MODULE.format(number=lesson.number, title=lesson.title) + imports + cst.Module(body).code


def _owners(parts: Iterable[_Part]) -> dict[str, list[_Part]]:
    """The lab's classes and functions, in the order of their first tasks."""
    owners: dict[str, list[_Part]] = {}
    for part in parts:
        function, others = part.function, owners.setdefault(part.owner, [])
        if function.name.count(".") > 1:
            raise LessonError(f"{function} is nested; a task is a function, or a method of a class on the top level")
        if others and others[0].function.module != function.module:
            raise LessonError(f"{others[0].function} and {function} share the name {part.owner}; rename one of them")
        if function in (other.function for other in others):
            raise LessonError(f"{function} is asked for twice; leave it to one task")
        others.append(part)
    return owners


def _headings(parts: Iterable[_Part]) -> dict[Function, str]:
    """The line above each function. A task's points and minutes stand above its first one in the file."""
    headings: dict[Function, str] = {}
    begun: Counter[int] = Counter()
    for part in parts:
        task, count = part.task, len(part.task.functions)
        begun[task.number] += 1
        worth = f"Task {task.number}: {task.points} points, about {task.minutes} minutes, section {task.section}"
        if count == 1:
            headings[part.function] = f"# {worth}"
        elif begun[task.number] == 1:
            headings[part.function] = f"# {worth}, for {count} functions together. The first:"
        else:
            headings[part.function] = f"# Task {task.number}, function {begun[task.number]} of {count}"
    return headings


def _block(
    lesson: Lesson,
    members: Sequence[_Part],
    headings: Mapping[Function, str],
    given: Sequence[Function],
    reference: Reference,
) -> cst.FunctionDef | cst.ClassDef:
    """A function, or a class with its tasks in it under what is given of it."""
    functions = [
        _blank(lesson, part, headings[part.function], reference.function(part.function.name)) for part in members
    ]
    definition = reference.definitions[members[0].owner]
    if isinstance(definition, cst.FunctionDef):
        return functions[0].with_changes(leading_lines=_led(functions[0], [""]))
    tasks = {part.function.name for part in members}
    own = given_inside(reference, members[0].owner, tasks, [each.name for each in given])
    functions[0] = functions[0].with_changes(leading_lines=_led(functions[0], ["", *own] if own else []))
    body = cst.IndentedBlock([*_docstring(definition), *functions])
    header = definition.with_changes(decorators=(), lpar=cst.MaybeSentinel.DEFAULT, rpar=cst.MaybeSentinel.DEFAULT)
    return header.with_changes(bases=(), keywords=(), leading_lines=empty_lines(["", ""]), body=body)


def _blank(lesson: Lesson, part: _Part, heading: str, function: cst.FunctionDef) -> cst.FunctionDef:
    """The function under its heading, its body replaced by the exception that every skeleton raises."""
    task = part.task
    indent = 8 if "." in part.function.name else 4
    error = _raise(f"lesson {lesson.number}, task {task.number}: {task.goal}", indent)
    return function.with_changes(
        leading_lines=empty_lines(["", *wrapped(heading, indent - 4)]),
        lines_after_decorators=(),
        body=cst.IndentedBlock([*_docstring(function), cst.parse_statement(error)]),
    )


def _raise(message: str, indent: int) -> str:
    """``raise NotImplementedError(message)``, on as many lines as it needs at this indentation."""
    line = f"raise NotImplementedError({_quoted(message)})"
    if indent + len(line) <= LINE_LENGTH:
        return line
    pieces = textwrap.wrap(message, LINE_LENGTH - indent - 6, drop_whitespace=False, break_long_words=False)
    return "\n".join(["raise NotImplementedError(", *(f"    {_quoted(piece)}" for piece in pieces), ")"])


def _quoted(text: str) -> str:
    return repr(text) if '"' in text and "'" not in text else json.dumps(text, ensure_ascii=False)


def _docstring(definition: Definition) -> list[cst.BaseStatement]:
    """The docstring as it stands, if there is one."""
    if not definition.get_docstring(clean=False) or not isinstance(definition.body, cst.IndentedBlock):
        return []
    return [cst.ensure_type(definition.body.body[0], cst.SimpleStatementLine).with_changes(leading_lines=())]


def _led(definition: Definition, lines: Sequence[str]) -> list[cst.EmptyLine]:
    """Comments and blank lines, and then those that the definition has."""
    return [*empty_lines(lines), *definition.leading_lines]


def _imports(owners: Mapping[str, Sequence[_Part]], modules: Mapping[str, Reference]) -> list[Import]:
    """What the functions mention, less what the lab defines. Raises LessonError for a name with two meanings."""
    meanings: dict[str, tuple[str, Import]] = {}
    for members in owners.values():
        reference = modules[members[0].function.module]
        mentioned = reference.names.mentioned_by(part.function.name for part in members)
        for name, meaning in mentioned.items():
            other, known = meanings.setdefault(name, (reference.module, meaning))
            if known != meaning:
                raise LessonError(
                    f"{name} is one thing in {other} and another in {reference.module}; rename one of them"
                )
    return [meaning for name, (_, meaning) in meanings.items() if name not in owners]
