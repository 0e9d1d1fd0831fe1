"""The book says the same as the code: every policy has a page, every lesson a place, every term one meaning.

That it builds without a warning is for ``make book`` to say, that browsers show it for ``make check-book``.
"""

import re
import runpy
from pathlib import Path

import pytest

from minillm.course.lesson import lessons
from minillm.policies import POLICIES

BOOK = Path(__file__).parents[1] / "book"
SYSTEMS = sorted(set((BOOK / "systems").glob("*.md")) - {BOOK / "systems" / "index.md"})
VENDORED = BOOK / "_static" / "vendor"


def text(page: str | Path) -> str:
    return (BOOK / page).read_text(encoding="utf-8")


def glossary() -> list[tuple[str, str]]:
    """(term, meaning) pairs."""
    return re.findall(r"^(\S.*)\n  (.+)$", text("glossary.md"), re.MULTILINE)


def test_the_settings_can_be_read_without_sphinx():
    settings = runpy.run_path(str(BOOK / "conf.py"))
    assert settings["nb_execution_mode"] == "off"
    assert (BOOK / "_static" / settings["mathjax_path"]).exists()


def test_pages_ask_for_nothing_outside_of_the_book():
    """Scripts are vendored; other addresses may be linked to, never loaded."""
    pages = [*BOOK.glob("*.md"), *BOOK.glob("systems/*.md"), *BOOK.glob("extra/*"), *BOOK.glob("_static/*.*")]
    loading = re.compile(r"""(?:src=|url\(|@import|!\[[^]]*\]\()\s*["']?https?:""")
    assert [page.name for page in pages if loading.search(text(page))] == []


def test_every_vendored_script_has_its_licence():
    scripts = list(VENDORED.glob("*.js"))
    assert scripts
    assert all((VENDORED / f"{script.stem}.LICENSE").exists() for script in scripts)


@pytest.mark.parametrize("page", SYSTEMS, ids=lambda page: page.stem)
def test_a_system_has_facts_rules_our_source_and_what_differs(page):
    sections = re.split(r"^## ", text(page), flags=re.MULTILINE)
    by_title = {section.partition("\n")[0]: section for section in sections[1:]}
    assert {"| policies |", "| sources |", "| lesson |"} <= set(
        re.findall(r"^\| \w+ \|", by_title["Facts"], re.MULTILINE)
    )
    assert "[systems: " in by_title["Rules"] or "[Yu et al." in by_title["Rules"]
    assert "```{literalinclude} ../../minillm/schedulers/" in by_title["Our policy"]
    assert "| upstream | here | why |" in by_title["What differs from upstream"]


def test_every_policy_belongs_to_one_system():
    named = [
        name
        for page in SYSTEMS
        for row in re.findall(r"^\| policies \|(.*)\|$", text(page), re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    ]
    assert sorted(named) == sorted(POLICIES)


@pytest.mark.parametrize("page", ["systems/index.md", *(f"systems/{page.name}" for page in SYSTEMS)])
def test_included_sources_and_linked_pages_exist(page):
    targets = re.findall(r"\{literalinclude\} (\S+)|\]\(([^):#]+)\)", text(page))
    missing = [a or b for a, b in targets if not (BOOK / page).parent.joinpath(a or b).exists()]
    assert missing == []


def test_every_lesson_has_its_row_in_the_map_and_in_the_readme():
    rows = [int(number) for number in re.findall(r"^\| \{lesson\}`(\d+)`", text("map.md"), re.MULTILINE)]
    assert rows == [lesson.number for lesson in lessons()]
    readme = text(BOOK.parent / "README.md")
    assert [lesson.number for lesson in lessons() if f"(lessons/{lesson.folder.name}/lesson.ipynb)" not in readme] == []


def test_a_term_stands_in_the_glossary_once_and_names_its_lesson():
    terms = [term.lower() for term, _ in glossary()]
    assert len(terms) > 40
    assert terms == sorted(set(terms))
    numbers = {lesson.number for lesson in lessons()}
    assert {int(re.search(r"\{lesson\}`(\d+)`$", meaning)[1]) for _, meaning in glossary()} <= numbers


def test_a_letter_of_the_notation_means_one_thing():
    letters = re.findall(r"^\| \$(\S+)\$ \|", text("notation.md"), re.MULTILINE)
    assert letters == ["L", "H", "H_{kv}", "d", "h", "V", "M", "T", "S", "P", "O", "B", "b", "N", "C", "t"]


def test_every_package_is_in_the_reference():
    """A package named in the reference brings all its modules; what prints and what only starts is not in it."""
    named = set(re.findall(r"\b(?:minillm|kernels)[\w.]*", " ".join(map(text, BOOK.glob("reference/*.md")))))
    root = BOOK.parent / "minillm"
    ours = {path.stem for path in root.iterdir() if (path.suffix == ".py" or (path / "__init__.py").exists())}
    assert ours - {name.partition(".")[2] for name in named} == {"__init__", "__main__", "commands", "cli"}
    assert "kernels" in named
