"""What the names in a module mean, and imports that bring them to another file."""

import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from symtable import SymbolTable, symtable

from minillm.course.splice import OURS, Source


@dataclass(frozen=True, slots=True)
class Import:
    """``from module import name as alias``; without a name ``import module as alias``."""

    module: str
    name: str | None
    alias: str | None


@dataclass(frozen=True, slots=True)
class Names:
    """What a module's names mean, and which its functions use.

    imports   name bound on the top level -> how another file gets it
    mentions  qualified name of a function -> names in its header and its body, whatever they are
    """

    imports: Mapping[str, Import]
    mentions: Mapping[str, Set[str]]

    def mentioned_by(self, definitions: Iterable[str]) -> dict[str, Import]:
        """How another file imports what these functions mention, but does not define."""
        mentioned = {name for definition in definitions for name in self.mentions.get(definition, ())}
        return {name: self.imports[name] for name in sorted(mentioned) if name in self.imports}


def names(module: str, source: Source) -> Names:
    """Read a module's names without importing it."""
    tree, table = source.parse(), symtable(source.text, source.path, "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    imports = {name: Import(module, name, None) for name in bound} | dict(_imported(tree.body))
    mentions: dict[str, set[str]] = defaultdict(set)
    for function, mentioned in (*_headers(tree.body), *_globals(table)):
        mentions[function] |= mentioned
    return Names(imports, dict(mentions))


def _imported(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Import]]:
    """The names that imports bind, and what they stand for."""
    for statement in body:
        if isinstance(statement, ast.Import):
            for name in statement.names:
                yield name.asname or name.name.partition(".")[0], Import(name.name, None, name.asname)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for name in statement.names:
                yield name.asname or name.name, Import(statement.module, name.name, name.asname)


def _headers(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    """Names in each function's decorators, defaults and annotations."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, _mentioned([*node.decorator_list, node.args, node.returns])
        elif isinstance(node, ast.ClassDef):
            yield from _headers(node.body, f"{prefix}{node.name}.")


def _mentioned(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Names in expressions, and in the texts that annotations may be."""
    found = set()
    for node in (inner for root in nodes if root is not None for inner in ast.walk(root)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Constant):
            found |= _in_text(node.annotation.value)
    return found


def _in_text(annotation: object) -> set[str]:
    return _mentioned([ast.parse(annotation, mode="eval")]) if isinstance(annotation, str) else set()


def _globals(table: SymbolTable, prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    """The global names that each function uses, those of functions and comprehensions inside it included."""
    for child in table.get_children():
        if child.get_type() == "function":
            yield prefix + child.get_name(), set(_used(child))
        elif child.get_type() == "class":
            yield from _globals(child, f"{prefix}{child.get_name()}.")


def _used(table: SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for child in table.get_children():
        yield from _used(child)


def render_imports(imports: Collection[Import], width: int) -> str:
    """Import statements in the order and layout that ruff wants: standard library, packages, the project's own."""
    sections: dict[int, list[str]] = {}
    for module, group in sorted(_by_module(imports).items(), key=lambda item: (item[0][0], item[0][1].lower())):
        sections.setdefault(_section(module[1]), []).extend(_statements(module[1], group, width))
    return "".join("\n" + "\n".join(lines) + "\n" for _, lines in sorted(sections.items()))


def _by_module(imports: Iterable[Import]) -> dict[tuple[bool, str], list[Import]]:
    """Plain imports before those of names."""
    groups: dict[tuple[bool, str], list[Import]] = {}
    for each in imports:
        groups.setdefault((each.name is not None, each.module), []).append(each)
    return groups


def _section(module: str) -> int:
    """0 for the standard library, 1 for packages, 2 for the project's own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return 0
    return 2 if top in OURS else 1


def _statements(module: str, imports: Iterable[Import], width: int) -> Iterator[str]:
    plain = sorted({each.name for each in imports if each.name and not each.alias}, key=_member_order)
    for each in imports:
        alias = f" as {each.alias}" if each.alias else ""
        if each.name is None:
            yield f"import {module}{alias}"
        elif alias:
            yield f"from {module} import {each.name}{alias}"
    if plain:
        line = f"from {module} import {', '.join(plain)}"
        yield line if len(line) <= width else _one_a_line(module, plain)


def _one_a_line(module: str, members: Iterable[str]) -> str:
    return f"from {module} import (\n" + textwrap.indent("".join(f"{each},\n" for each in members), "    ") + ")"


def _member_order(name: str) -> tuple[int, str, str]:
    """Constants, classes, then the rest."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    return kind, name.lower(), name
