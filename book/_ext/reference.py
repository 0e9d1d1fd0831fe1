"""The API reference: a comment line ``% modules NAMES`` in a page becomes a section for each module.

A package's name stands for all its modules, so that a module that is new is in the book as well.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pkgutil import iter_modules

from sphinx.application import Sphinx

_MARK = re.compile(r"^% modules (?P<names>.+)$", re.MULTILINE)


def expand(names: str) -> Iterator[str]:
    """The modules that the names stand for: packages become their modules, recursively, private ones left out."""
    for name in names.split():
        spec = find_spec(name)
        parts = list(iter_modules((spec and spec.submodule_search_locations) or []))
        if not parts:
            yield name
        for part in parts:
            if not part.name.startswith("_"):
                yield from expand(f"{name}.{part.name}")


def section(module: str) -> str:
    """A heading and the docstrings of a module."""
    return f"## {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n"


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the marks of a page as it is read."""
    source[0] = _MARK.sub(lambda match: "\n".join(map(section, expand(match["names"]))), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in reading."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
