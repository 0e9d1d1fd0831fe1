"""Compile a module with the bodies of some of its functions taken from another file, the lab.

Only bodies move. Decorators, parameters, defaults and annotations stay the module's, and a method is compiled inside
its class, so ``super()``, properties, registries and compiled callers all meet the new function as they met the old.
"""

import __future__

import ast
import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from symtable import SymbolTable, symtable
from types import CodeType

OURS = ("minillm", "kernels")
"""The project's packages."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Tasks = Mapping[str, Collection[str]]
"""Module name -> qualified names of functions, such as ``BlockManager.append``."""

_LAZY_ANNOTATIONS = __future__.annotations.compiler_flag


class OverlayError(Exception):
    """A lab that cannot stand in for the reference: the sentence names the place, the rule and the remedy."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text, and its path as tracebacks show it."""

    path: str
    text: str

    def parse(self) -> ast.Module:
        """The syntax tree. Raises SyntaxError, which names path and line."""
        compile(self.text, self.path, "exec", dont_inherit=True)  # finds more errors than parsing does
        return ast.parse(self.text, self.path)


def splice(module: str, reference: Source, lab: Source, tasks: Tasks, others: Tasks) -> list[CodeType]:
    """Code objects that, executed in this order in one namespace, make the module with the lab's functions in it.

    ``tasks[module]`` are replaced. The lab's other imports and definitions join the module where these functions need
    them, its other statements always; they stand before the first function that is replaced. The tasks of other modules
    are left to those modules, and imported from there where the lab uses them, as if they stood in one file. Functions
    that ``others`` names are left out everywhere: they are the lab's further tasks, which are not replaced this time.
    Raises OverlayError for a function that is missing or has other parameters or decorators, and for a name that the
    module has already.
    """
    no_helpers = {task for each in (tasks, others) for names in each.values() for task in names}
    ours, theirs = reference.parse(), lab.parse()
    shifts = _replace_bodies(ours, theirs, tasks[module], module, lab.path)
    for owner in {task.rpartition(".")[0] for task in tasks[module]} - {""}:
        methods = _join_methods(_classes(ours)[owner], _classes(theirs)[owner], owner, no_helpers, lab.path)
        shifts |= dict.fromkeys(methods, 0)
    roots = [node for name, nodes in _functions(ours).items() if name in shifts for node in nodes]
    helpers = list(_helpers(theirs, {task.split(".")[0] for task in no_helpers}, lab.path))
    needed = _needed(helpers, roots)
    missing = _looked_up([*roots, *needed]) - _bound([*ours.body, *needed])
    borrowed = [_import(other, name) for name, other in _elsewhere(module, tasks, others).items() if name in missing]
    joined = _joining([*borrowed, *needed], ours, module, lab.path)

    replaced = {task.split(".")[0] for task in tasks[module]}
    first = next(index for index, statement in enumerate(ours.body) if getattr(statement, "name", "") in replaced)
    before = _compiled(ours.body[:first], reference.path)
    rest = _compiled(ours.body[first:], reference.path, before.co_flags & _LAZY_ANNOTATIONS)
    return [before, _compiled(joined, lab.path, _LAZY_ANNOTATIONS), _relabelled(rest, lab.path, shifts)]


def _compiled(statements: list[ast.stmt], path: str, flags: int = 0) -> CodeType:
    code: CodeType = compile(ast.Module(statements, []), path, "exec", flags, dont_inherit=True)
    return code


def _definitions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{prefix}{node.name}.")


def _functions(tree: ast.Module) -> dict[str, list[Function]]:
    found = defaultdict(list)
    for name, node in _definitions(tree.body):
        if not isinstance(node, ast.ClassDef):
            found[name].append(node)
    return found


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {name: node for name, node in _definitions(tree.body) if isinstance(node, ast.ClassDef)}


def _only(found: list[Function], name: str, where: str) -> Function:
    if len(found) != 1:
        count = f"{len(found)} functions" if found else "no function"
        raise OverlayError(f"{where} has {count} {name}; a task needs exactly one of that name")
    return found[0]


def _replace_bodies(
    ours: ast.Module, theirs: ast.Module, tasks: Iterable[str], module: str, path: str
) -> dict[str, int]:
    """Give our functions the lab's bodies, and return each one's shift as ``_replace_body`` does."""
    targets, sources = _functions(ours), _functions(theirs)
    return {
        task: _replace_body(_only(targets[task], task, module), _only(sources[task], task, path), path)
        for task in tasks
    }


def _replace_body(ours: Function, theirs: Function, path: str) -> int:
    """Give ``ours`` the other's body, and return by how many lines the lab's function lies below it.

    The body is moved beside our lines, and ``_relabelled`` moves the whole function: so the code object's first line,
    which counts from the decorator, comes out right as well.
    """
    place = f"{path}:{theirs.lineno}: {theirs.name}"
    if signature(theirs) != signature(ours):
        raise OverlayError(f"{place} is `{signature(theirs)}`, but must stay `{signature(ours)}`")
    if theirs.decorator_list and list(map(ast.dump, theirs.decorator_list)) != list(map(ast.dump, ours.decorator_list)):
        raise OverlayError(f"{place} has other decorators than the reference; leave decorators out, they stay the same")
    shift = _first_line(theirs) - _first_line(ours)
    ours.body = [ast.increment_lineno(statement, -shift) for statement in theirs.body]
    return shift


def signature(function: Function) -> str:
    """Names, kinds and defaults; annotations are free."""
    parameters = copy.deepcopy(function.args)
    for node in ast.walk(parameters):
        if isinstance(node, ast.arg):
            node.annotation = None
    keyword = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    return f"{keyword} {function.name}({ast.unparse(parameters)})"


def _first_line(function: Function) -> int:
    return min(node.lineno for node in (function, *function.decorator_list))


def _join_methods(ours: ast.ClassDef, theirs: ast.ClassDef, owner: str, tasks: Collection[str], path: str) -> list[str]:
    """Add the helper methods of the lab's class to ours, and return their qualified names."""
    taken = _bound(ours.body)
    joined = []
    for node in theirs.body:
        if isinstance(node, Function | ast.ClassDef) and _holds_task(f"{owner}.{node.name}", tasks):
            continue
        if isinstance(node, Function) and node.name not in taken:
            ours.body.append(node)
            joined.append(f"{owner}.{node.name}")
        elif isinstance(node, Function):
            raise OverlayError(f"{path}:{node.lineno}: {owner} has a {node.name} already; choose another name")
        elif not _inert(node):
            raise OverlayError(f"{path}:{node.lineno}: a lab's class {owner} holds functions only; move this out of it")
    return joined


def _holds_task(name: str, tasks: Collection[str]) -> bool:
    return any(task == name or task.startswith(name + ".") for task in tasks)


def _inert(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, an ellipsis or ``pass``."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _helpers(lab: ast.Module, task_owners: Collection[str], path: str) -> Iterator[ast.stmt]:
    """The lab's statements around its tasks, with one name to an import."""
    for statement in _single_imports(lab.body):
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            raise OverlayError(f"{path}:{statement.lineno}: a lab imports names one by one; replace the * by names")
        if not (_inert(statement) or _is_future(statement) or getattr(statement, "name", "") in task_owners):
            yield statement


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _single_imports(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (ast.copy_location(ast.Import([name]), statement) for name in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            module, level = statement.module, statement.level
            yield from (ast.copy_location(ast.ImportFrom(module, [name], level), statement) for name in statement.names)
        else:
            yield statement


def _needed(helpers: Sequence[ast.stmt], roots: Iterable[ast.AST]) -> list[ast.stmt]:
    """Without the imports and definitions that nothing uses: an import made for another module may close a circle."""
    optional = [node for node in helpers if isinstance(node, ast.Import | ast.ImportFrom | Function | ast.ClassDef)]
    needed = [node for node in helpers if node not in optional]
    used = _mentioned([*roots, *needed])
    while fresh := [node for node in optional if node not in needed and _bound([node]) & used]:
        needed += fresh
        used |= _mentioned(fresh)
    return [node for node in helpers if node in needed]


def _elsewhere(module: str, *tasks: Tasks) -> dict[str, str]:
    """Functions and classes that the lab holds for other modules, and the module of each."""
    return {
        task.partition(".")[0]: other
        for each in tasks
        for other, names in each.items()
        for task in names
        if other != module
    }


def _import(module: str, name: str) -> ast.stmt:
    return ast.fix_missing_locations(ast.ImportFrom(module, [ast.alias(name)], 0, lineno=1, col_offset=0))


def _looked_up(nodes: Iterable[ast.stmt]) -> set[str]:
    """Global names that the functions among these statements, and those inside of them, use."""
    functions: list[ast.stmt] = [node for node in nodes if isinstance(node, Function | ast.ClassDef)]
    table = symtable(ast.unparse(ast.Module(functions, [])), "", "exec")
    return {name for child in table.get_children() for name in _globals(child)}


def _globals(table: SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _globals(child)


def _mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name)}


def _bound(statements: list[ast.stmt]) -> set[str]:
    """Names that statements bind where they stand."""
    table = symtable(ast.unparse(ast.Module(statements, [])), "", "exec")
    return {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_annotated()
    }


def _joining(helpers: Iterable[ast.stmt], ours: ast.Module, module: str, path: str) -> list[ast.stmt]:
    """The helpers less the imports that the module has itself. Raises OverlayError for any other name that it has."""
    taken = _bound(ours.body)
    imported = {ast.dump(statement) for statement in _single_imports(ours.body)}
    joining = []
    for statement in helpers:
        clash = sorted(_bound([statement]) & taken)
        from_itself = isinstance(statement, ast.ImportFrom) and statement.module == module
        if clash and not from_itself and ast.dump(statement) not in imported:
            raise OverlayError(f"{path}:{statement.lineno}: {module} has a {clash[0]} already; choose another name")
        if not clash:
            joining.append(statement)
    return joining


def _relabelled(code: CodeType, path: str, shifts: Mapping[str, int], shift: int | None = None) -> CodeType:
    """The same code, with the lab's path and lines in the functions that came from there."""
    shift = shifts.get(code.co_qualname, shift)
    constants = tuple(_relabelled(c, path, shifts, shift) if isinstance(c, CodeType) else c for c in code.co_consts)
    if shift is None:
        return code.replace(co_consts=constants)
    return code.replace(co_consts=constants, co_filename=path, co_firstlineno=code.co_firstlineno + shift)
