"""Docstrings as reStructuredText: tables of names and meanings, set in two columns of plain text, become lists.

Members that another package's base class adds to ours are left out.
"""

import re
from collections.abc import Iterator
from inspect import getdoc
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

_ROW = re.compile(r"(?P<name>[\w(][\w, .()/-]*?)(?: {2,})(?P<meaning>\S.*)")


def as_lists(lines: list[str]) -> Iterator[str]:
    """The lines, in which each paragraph whose first line is ``name  meaning`` has become a list of definitions."""
    for blank, group in groupby(lines, lambda line: not line.strip()):
        paragraph = list(group)
        if blank or not _ROW.fullmatch(paragraph[0]):
            yield from paragraph
        else:
            yield from (entry for line in paragraph for entry in _entry(line))


def _entry(line: str) -> list[str]:
    match = _ROW.fullmatch(line)
    return [f"``{match['name']}``", f"    {match['meaning']}"] if match else [f"    {line.strip()}"]


def rewrite(app: Sphinx, what: str, name: str, item: object, options: Any, lines: list[str]) -> None:
    """Change a docstring's lines in place, as autodoc asks for; a compiled function has that of its Python source."""
    source = getattr(item, "py_func", None)
    if source is not None:
        lines[:] = (getdoc(source) or "").splitlines()
    lines[:] = as_lists(lines)


def readable(
    app: Sphinx, what: str, name: str, item: object, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A signature that is Python: defaults that are made anew for each object become an ellipsis."""
    return signature and signature.replace("<factory>", "..."), returns


def is_foreign(app: Sphinx, what: str, name: str, item: object, skip: bool, options: Any) -> bool | None:
    """Leave out methods that a base class of another package has written into ours; else let autodoc decide."""
    package = str(getattr(item, "__module__", "") or "").partition(".")[0]
    return True if what == "class" and callable(item) and package == "matplotlib" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in autodoc."""
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-skip-member", is_foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
