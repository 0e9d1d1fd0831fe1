"""The role ``lesson``: "lesson 7" as a link to that lesson's chapter, or as plain text where there is none yet."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

_CHAPTER = re.compile(r"lessons/(\d\d)_\w+/lesson")


class LessonRole(SphinxRole):
    """Takes the lesson's number."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """A reference that the builder turns into a relative address."""
        text = nodes.Text(f"lesson\N{NO-BREAK SPACE}{int(self.text)}")
        chapters = {int(match[1]): name for name in self.env.found_docs if (match := _CHAPTER.fullmatch(name))}
        chapter = chapters.get(int(self.text))
        if chapter is None:
            return [text], []
        address = self.env.app.builder.get_relative_uri(self.env.docname, chapter)
        return [nodes.reference("", "", text, refuri=address, internal=True)], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role."""
    app.add_role("lesson", LessonRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
