"""The API reference: a comment line ``% modules NAMES`` in a page becomes a section for each module.

A package's name stands for all its modules, so that a module that is new is in the book as well.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

_MARK = re.compile(r"^% modules (?P<names>.+)$", re.MULTILINE)


def expand(names: str) -> Iterator[str]:
    """The modules that the names stand for: packages become their modules, recursively, private ones left out."""
    for name in names.split():
        folder = ROOT.joinpath(*name.split("."))
        if not folder.is_dir():
            yield name
        for part in iter_modules([str(folder)]):
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
