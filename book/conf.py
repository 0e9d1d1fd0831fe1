"""The book's settings. The source folder is the repository's root: the book includes lessons and code as they are."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "book" / "_ext")]

project = "minillm"
author = "the minillm authors"
project_copyright = "the minillm authors"
root_doc = "book/index"
include_patterns = ["book/*.md", "book/systems/*.md", "book/reference/*.md", "lessons/*/lesson.ipynb"]
exclude_patterns = ["book/_build"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "diagrams",
    "docstrings",
    "lesson_links",
    "reference",
]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

nb_execution_mode = "off"  # notebooks carry their outputs; `make check-notebooks` proves them fresh
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables and formulas that cells print

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# What is not ours is documented elsewhere, and so are type variables nowhere: links to it are left out.
nitpick_ignore_regex = [(r"py:(class|obj|data|exc|func|meth)", r"(?!(minillm|kernels)\b).*|[\w.]*\.[A-Z]")]

html_theme = "furo"
html_title = "minillm"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_extra_path = ["extra"]  # a page at the top that leads to the start page
html_copy_source = html_show_sourcelink = False
html_show_search_summary = False  # excerpts are fetched, which pages opened from disk may not do
mathjax_path = "vendor/tex-svg-full.js"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d*\]: "
copybutton_prompt_is_regexp = True
