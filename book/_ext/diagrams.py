"""Fences of ``mermaid`` as diagrams, drawn in the reader's browser by a script that lies in the book."""

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_HAS_DIAGRAMS = "has_diagrams"


class Mermaid(SphinxDirective):
    """A diagram; without JavaScript, or for a diagram that does not parse, the reader sees its text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The text as a ``pre`` element that ``diagrams.js`` finds."""
        self.env.metadata[self.env.docname][_HAS_DIAGRAMS] = "yes"
        source = escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="diagram">{source}</pre>', format="html")]


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Load the scripts on pages with diagrams only: they are large."""
    if doctree is not None and _HAS_DIAGRAMS in app.env.metadata[page]:
        app.add_js_file("vendor/mermaid.min.js")
        app.add_js_file("diagrams.js")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("mermaid", Mermaid)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
