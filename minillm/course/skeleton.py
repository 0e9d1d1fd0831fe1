"""A lesson's ``lab.py``, generated from the reference: the bodies that a student writes are left out.

The reference is the only source. Signatures, annotations, decorators and docstrings are copied from it as they stand,
and what its functions use is imported; so the file is an overlay that fits before its first line has been written.
"""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from minillm.course.imports import Import, Names, names, render_imports
from minillm.course.lesson import Function, Lesson, LessonError, Task
from minillm.course.overlay import reference_source
from minillm.course.splice import OverlayError

LINE_LENGTH = 120
LAB = "lab.py"

_MODULE = """\"\"\"Lesson {number}, {title}: what you write.

Replace each `raise NotImplementedError` by your code, and grade it:

    make lab-{number}              all tasks; T=2 for one of them
    make hint L={number} T=2       the next hint for a task
    make peek L={number} T=2       what sets yours apart from the reference

Signatures and decorators stay as they are. Imports, constants, functions and methods may be added, by new names.
\"\"\"
"""

Definition = cst.FunctionDef | cst.ClassDef


@dataclass(frozen=True, slots=True)
class _Part:
    """A function of the lab: the ``index``-th of its task's."""

    task: Task
    index: int
    function: Function

    @property
    def owner(self) -> str:
        """Its class, or its own name where it has none."""
        return self.function.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class _Reference:
    """A module of the reference: its definitions by qualified name, and what names mean in it."""

    module: str
    definitions: Mapping[str, Definition]
    constants: Mapping[str, cst.SimpleStatementLine]
    names: Names

    def function(self, name: str) -> cst.FunctionDef:
        """Raises LessonError for a name that is no function's."""
        found = self.definitions.get(name)
        if not isinstance(found, cst.FunctionDef):
            raise LessonError(f"{self.module} has no function {name}; check the names")
        return found

    @property
    def path(self) -> str:
        """The file as a reader of the repository knows it."""
        return self.module.replace(".", "/") + ".py"


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
    parts = [_Part(task, index, each) for task in lesson.tasks for index, each in enumerate(task.functions, 1)]
    owners = _owners(parts)
    references = _references(
        [*(part.function for part in parts), *(each for task in lesson.tasks for each in task.given)]
    )
    shown: set[Function] = {part.function for part in parts}
    body: list[cst.BaseCompoundStatement] = []
    for owner, members in owners.items():
        module = members[0].function.module
        given = dict.fromkeys(each for part in members for each in part.task.given if each not in shown)
        shown |= given.keys()
        own = [each for each in given if each.module == module and each.name.startswith(owner + ".")]
        above = _given([each for each in given if each not in own], references)
        block = _block(lesson, members, own, references[module])
        body.append(block.with_changes(leading_lines=_led(block, ["", *above] if body and above else above)))
    imports = render_imports(_imports(owners, references), LINE_LENGTH)
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


def _references(functions: Iterable[Function]) -> dict[str, _Reference]:
    return {module: _reference(module) for module in dict.fromkeys(function.module for function in functions)}


def _reference(module: str) -> _Reference:
    try:
        source = reference_source(module)
    except (OverlayError, ModuleNotFoundError):
        raise LessonError(f"there is no module {module}; check the names") from None
    body = cst.parse_module(source.text).body
    return _Reference(module, dict(_definitions(body)), dict(_constants(body)), names(module, source))


def _definitions(body: Sequence[cst.CSTNode], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition):
            yield prefix + node.name.value, node
        if isinstance(node, cst.ClassDef):
            yield from _definitions(node.body.body, f"{prefix}{node.name.value}.")


def _constants(body: Sequence[cst.CSTNode]) -> Iterator[tuple[str, cst.SimpleStatementLine]]:
    for node in body:
        if isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Assign | cst.AnnAssign):
            first = node.body[0]
            target = first.target if isinstance(first, cst.AnnAssign) else first.targets[0].target
            if isinstance(target, cst.Name):
                yield target.value, node


def _block(
    lesson: Lesson, members: Sequence[_Part], given: Sequence[Function], reference: _Reference
) -> cst.FunctionDef | cst.ClassDef:
    """A function, or a class with its tasks in it under what is given of it."""
    functions = [_blank(lesson, part, reference.function(part.function.name)) for part in members]
    definition = reference.definitions[members[0].owner]
    if isinstance(definition, cst.FunctionDef):
        return functions[0].with_changes(leading_lines=_led(functions[0], [""]))
    tasks = {part.function.name.partition(".")[2] for part in members}
    own = _own(reference, definition, tasks, {each.name.partition(".")[2] for each in given})
    functions[0] = functions[0].with_changes(leading_lines=_led(functions[0], ["", *own] if own else []))
    body = cst.IndentedBlock([*_docstring(definition), *functions])
    header = definition.with_changes(decorators=(), lpar=cst.MaybeSentinel.DEFAULT, rpar=cst.MaybeSentinel.DEFAULT)
    return header.with_changes(bases=(), keywords=(), leading_lines=_lines(["", ""]), body=body)


def _blank(lesson: Lesson, part: _Part, function: cst.FunctionDef) -> cst.FunctionDef:
    """The function under a line about its task, its body replaced by the exception that every skeleton raises."""
    task, position = part.task, f", {part.index} of {len(part.task.functions)}" if len(part.task.functions) > 1 else ""
    heading = (
        f"# Task {task.number}{position}: {task.points} points, about {task.minutes} minutes, section {task.section}"
    )
    indent = 8 if "." in part.function.name else 4
    error = _raise(f"lesson {lesson.number}, task {task.number}: {task.goal}", indent)
    return function.with_changes(
        leading_lines=_lines(["", *_wrapped(heading, indent - 4)]),
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


def _own(reference: _Reference, definition: cst.ClassDef, tasks: set[str], shown: set[str]) -> list[str]:
    """Comment lines: the class's bases and fields, its ``__init__`` with its body, and the methods that are given."""
    rest = set(_methods(definition)) - tasks
    kept = _excerpt(definition, whole=rest & {"__init__"}, outlined=shown & rest, fields=True)
    if not (kept or definition.bases):
        return []
    return _commented(f"Given in {reference.path}:", [kept or _header(definition)], indent=4)


def _given(functions: Sequence[Function], references: Mapping[str, _Reference]) -> list[str]:
    """Comment lines: what is given from elsewhere, module by module."""
    lines: list[str] = []
    for module in dict.fromkeys(function.module for function in functions):
        reference = references[module]
        wanted = [function.name for function in functions if function.module == module]
        owners = dict.fromkeys(name.partition(".")[0] for name in wanted)
        excerpts = [_outline(reference, owner, wanted) for owner in owners]
        lines += ["", *_commented(f"Given in {reference.path}:", excerpts, indent=0)]
    return lines


def _outline(reference: _Reference, owner: str, wanted: Sequence[str]) -> str:
    """A function's signature; a class's fields and ``__init__`` where it is wanted itself, and its wanted methods."""
    definition = reference.definitions.get(owner)
    for name in wanted:
        if name.partition(".")[0] == owner and name not in reference.definitions.keys() | reference.constants.keys():
            raise LessonError(f"{reference.module} has no {name}; check what is given")
    if definition is None:
        return cst.Module([reference.constants[owner].with_changes(leading_lines=())]).code
    if isinstance(definition, cst.FunctionDef):
        return cst.Module([_signature(definition)]).code
    methods = {name.partition(".")[2] for name in wanted if name.startswith(owner + ".")}
    itself = owner in wanted
    return _excerpt(definition, set(), methods | ({"__init__"} if itself else set()), itself, _summary(definition))


def _header(definition: cst.ClassDef) -> str:
    body = cst.IndentedBlock([cst.parse_statement("...")])
    return cst.Module([definition.with_changes(leading_lines=(), body=body)]).code


def _methods(definition: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    return {node.name.value: node for node in definition.body.body if isinstance(node, cst.FunctionDef)}


def _excerpt(
    definition: cst.ClassDef,
    whole: set[str],
    outlined: set[str],
    fields: bool,
    summary: Sequence[cst.BaseStatement] = (),
) -> str:
    """The class cut down to its fields, some methods with their bodies and some without; empty if nothing is left."""
    body: list[cst.BaseStatement] = [*summary]
    for node in definition.body.body:
        if isinstance(node, cst.FunctionDef) and node.name.value in whole:
            body.append(node.with_changes(leading_lines=_lines([""] if body else [])))
        elif isinstance(node, cst.FunctionDef) and node.name.value in outlined:
            body.append(_signature(node).with_changes(leading_lines=_lines([""] if body else [])))
        elif fields and isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.AnnAssign):
            body.append(node.with_changes(leading_lines=()))
    if not body:
        return ""
    return cst.Module([definition.with_changes(leading_lines=(), body=cst.IndentedBlock(body))]).code


def _signature(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function with the first line of its docstring for a body."""
    body = _summary(function) or [cst.parse_statement("...")]
    return function.with_changes(leading_lines=(), body=cst.IndentedBlock(body))


def _summary(definition: Definition) -> list[cst.BaseStatement]:
    """The docstring's first line, as a statement."""
    first = (definition.get_docstring() or "").partition("\n")[0]
    return [cst.ensure_type(cst.parse_statement(f'"""{first}"""'), cst.SimpleStatementLine)] if first else []


def _commented(heading: str, excerpts: Iterable[str], indent: int) -> list[str]:
    text = "\n".join(excerpts).rstrip()
    code = [f"# {line}".rstrip() for line in text.splitlines()]
    return [f"# {heading}", "#", *(piece for line in code for piece in _wrapped(line, indent))]


def _wrapped(comment: str, indent: int) -> list[str]:
    """A comment's line, cut where it does not fit, its rest indented deeper."""
    width = LINE_LENGTH - indent
    if len(comment) <= width:
        return [comment]
    margin = " " * (len(comment) - len(comment.lstrip("# ")) + 7)
    return textwrap.wrap(comment, width, subsequent_indent=f"#{margin}", drop_whitespace=True)


def _led(definition: Definition, lines: Sequence[str]) -> list[cst.EmptyLine]:
    """Comments and blank lines, and then those that the definition has."""
    return [*_lines(lines), *definition.leading_lines]


def _lines(texts: Iterable[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(indent=bool(text), comment=cst.Comment(text) if text else None) for text in texts]


def _imports(owners: Mapping[str, Sequence[_Part]], references: Mapping[str, _Reference]) -> list[Import]:
    """What the functions mention, less what the lab defines. Raises LessonError for a name with two meanings."""
    meanings: dict[str, tuple[str, Import]] = {}
    for members in owners.values():
        reference = references[members[0].function.module]
        mentioned = reference.names.mentioned_by(part.function.name for part in members)
        for name, meaning in mentioned.items():
            other, known = meanings.setdefault(name, (reference.module, meaning))
            if known != meaning:
                raise LessonError(
                    f"{name} is one thing in {other} and another in {reference.module}; rename one of them"
                )
    return [meaning for name, (_, meaning) in meanings.items() if name not in owners]
