"""What a lab shows of the reference though nobody writes it, as comments.

Signatures with docstrings, fields and ``__init__``, and whole functions that call what the lab asks for.
"""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import libcst as cst

from minillm.course.imports import Names, names
from minillm.course.lesson import Function, LessonError
from minillm.course.overlay import reference_source
from minillm.course.splice import OverlayError

LINE_LENGTH = 120

Definition = cst.FunctionDef | cst.ClassDef

Field = cst.AnnAssign | cst.Assign
"""A dataclass's field, or an enum's member."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A module of the reference: its definitions by qualified name, and what names mean in it."""

    module: str
    definitions: Mapping[str, Definition]
    constants: Mapping[str, cst.SimpleStatementLine]
    names: Names

    def function(self, name: str) -> cst.FunctionDef:
        """The function of this name. Raises LessonError for a name that is no function's."""
        found = self.definitions.get(name)
        if not isinstance(found, cst.FunctionDef):
            raise LessonError(f"{self.module} has no function {name}; check the names")
        return found

    @property
    def path(self) -> str:
        """The file as a reader of the repository knows it."""
        return self.module.replace(".", "/") + ".py"


def references(functions: Iterable[Function]) -> dict[str, Reference]:
    """The modules of these functions. Raises LessonError for one that does not exist."""
    return {module: _load(module) for module in dict.fromkeys(function.module for function in functions)}


def _load(module: str) -> Reference:
    try:
        source = reference_source(module)
    except (OverlayError, ModuleNotFoundError):
        raise LessonError(f"there is no module {module}; check the names") from None
    body = cst.parse_module(source.text).body
    return Reference(module, dict(_definitions(body)), dict(_constants(body)), names(module, source))


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


def given_inside(reference: Reference, owner: str, tasks: set[str], given: Sequence[str]) -> list[str]:
    """Comment lines for a lab's class: its bases and fields, its ``__init__`` unless that is a task, what is given.

    ``tasks`` and ``given`` are qualified names. Raises LessonError for a given one that does not exist.
    """
    definition = reference.definitions[owner]
    if not isinstance(definition, cst.ClassDef):
        return []
    _check_exist(reference, given)
    init = f"{owner}.__init__"
    whole = {"__init__"} if init in reference.definitions and init not in tasks else set()
    kept = _excerpt(definition, whole, {name.partition(".")[2] for name in given}, fields=True)
    if not (kept or definition.bases):
        return []
    return _commented(f"Given in {reference.path}:", [kept or _header(definition)], indent=4)


def given_above(
    functions: Sequence[Function], modules: Mapping[str, Reference], asked: Collection[Function]
) -> list[str]:
    """Comment lines: what is given from elsewhere, module by module. Raises LessonError for what does not exist.

    A function that calls one that the lab asks for is shown whole, for it says with what that one is called.
    """
    lines: list[str] = []
    for module in dict.fromkeys(function.module for function in functions):
        reference = modules[module]
        wanted = [function.name for function in functions if function.module == module]
        _check_exist(reference, wanted)
        owners = dict.fromkeys(name.partition(".")[0] for name in wanted)
        ours = {function.name for function in asked if function.module == module}
        excerpts = [_outline(reference, owner, wanted, ours) for owner in owners]
        lines += ["", *_commented(f"Given in {reference.path}:", excerpts, indent=0)]
    return lines


def _check_exist(reference: Reference, given: Iterable[str]) -> None:
    for name in given:
        if name not in reference.definitions.keys() | reference.constants.keys():
            raise LessonError(f"{reference.module} has no {name}; check what is given")


def _outline(reference: Reference, owner: str, wanted: Sequence[str], asked: Set[str]) -> str:
    """A function without its body, or with it where it mentions what is asked for; a class's wanted methods, and where
    it is wanted itself its fields and ``__init__``."""
    definition = reference.definitions.get(owner)
    if definition is None:
        return cst.Module([reference.constants[owner].with_changes(leading_lines=())]).code
    if isinstance(definition, cst.FunctionDef):
        calls = asked & reference.names.mentions.get(owner, set())
        return cst.Module([definition.with_changes(leading_lines=()) if calls else _signature(definition)]).code
    methods = {name.partition(".")[2] for name in wanted if name.startswith(owner + ".")}
    itself = owner in wanted
    return _excerpt(definition, set(), methods | ({"__init__"} if itself else set()), itself, _summary(definition))


def _header(definition: cst.ClassDef) -> str:
    body = cst.IndentedBlock([cst.parse_statement("...")])
    return cst.Module([definition.with_changes(leading_lines=(), body=body)]).code


def _excerpt(
    definition: cst.ClassDef,
    whole: set[str],
    outlined: set[str],
    fields: bool,
    summary: Sequence[cst.BaseStatement] = (),
) -> str:
    """The class cut down to its fields, some methods with their bodies and some without; empty if nothing is left."""
    body = [*summary]
    for node in definition.body.body:
        if isinstance(node, cst.FunctionDef) and node.name.value in whole | outlined:
            method = node if node.name.value in whole else _signature(node)
            body.append(method.with_changes(leading_lines=empty_lines([""] if body else [])))
        elif fields and isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], Field):
            body.append(node.with_changes(leading_lines=()))
    if not body:
        return ""
    return cst.Module([definition.with_changes(leading_lines=(), body=cst.IndentedBlock(body))]).code


def _signature(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function with its docstring for a body."""
    first = function.body.body[0] if function.get_docstring() else cst.parse_statement("...")
    body = [cst.ensure_type(first, cst.SimpleStatementLine)]
    return function.with_changes(leading_lines=(), body=cst.IndentedBlock(body))


def _summary(definition: Definition) -> list[cst.BaseStatement]:
    """The docstring's first line, as a statement."""
    first = (definition.get_docstring() or "").partition("\n")[0].replace("\\", "\\\\")
    closing = ' """' if first.endswith('"') else '"""'
    return [cst.ensure_type(cst.parse_statement(f'"""{first}{closing}'), cst.SimpleStatementLine)] if first else []


def _commented(heading: str, excerpts: Iterable[str], indent: int) -> list[str]:
    text = "\n".join(excerpts).rstrip()
    code = [f"# {line}".rstrip() for line in text.splitlines()]
    return [f"# {heading}", "#", *(piece for line in code for piece in wrapped(line, indent))]


def wrapped(comment: str, indent: int) -> list[str]:
    """A comment's line, cut where it does not fit, its rest indented deeper."""
    width = LINE_LENGTH - indent
    if len(comment) <= width:
        return [comment]
    margin = " " * (len(comment) - len(comment.lstrip("# ")) + 7)
    return textwrap.wrap(comment, width, subsequent_indent=f"#{margin}", drop_whitespace=True)


def empty_lines(texts: Iterable[str]) -> list[cst.EmptyLine]:
    """Comments and blank lines, as libcst wants them before a statement."""
    return [cst.EmptyLine(indent=bool(text), comment=cst.Comment(text) if text else None) for text in texts]
