"""What a chapter's text may not do: state a bare measurement, point to nothing, or use what only the book can show.

A chapter is read here as text with everything that is no prose blanked out: code, formulas and addresses become
spaces, so that places in it stay places in the file.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minillm.course.lesson import Lesson

_HEADER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^(?P<fence>[ >]*(?:`{3,}|~{3,})).*?^(?P=fence)[`~]*[ ]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_FORMULA = re.compile(r"\$\$.*?\$\$|(?<![\\$\d])\$(?!\s)[^$\n]+?(?<!\s)\$", re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)[^)\n]*\)")
_QUOTE_MARK = re.compile(r"^[ ]*(?:>[ ]?)+", re.MULTILINE)

_HEADING = re.compile(r"^#{1,6}[ ]+(.+?)[ ]*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ >]*(?:`{3,}|~{3,}|:{3,})\{(?!code-cell\})([\w-]+)\}", re.MULTILINE)

_CITATION = re.compile(r"\[(?=[^\]]*[A-Za-z]{2})(?=[^\]]*(?:\d{4}|\d\.\d|:))[^\]]+\]")
"""A source in brackets: it has a year, a version or section number, or a colon, as in ``[systems: vLLM 0.2.7]``."""
_CITED = "\1"
"""Fills the place of a citation, so that it marks its sentence and holds no number."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+|\n\s*\n|\n(?=[ ]*(?:[-*+|#]|\d+\.)[ |]?)")
_MEASURE = re.compile(
    r"""(?<![\w.])[~≈]?\d[\d,.]*[\s-]?
    (?: (?:tok(?:ens)?|req(?:uests)?|steps|flops?|[kMGT]i?B|[kMGT]flops?)(?:/s\b|[ ]per[ ]second\b)
      | (?:s|ms|us|[\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}]s|ns|seconds|milliseconds|microseconds|percent)\b
      | [x\N{MULTIPLICATION SIGN}](?![\s-]?\d)(?!\w)
      | times[ ](?:faster|slower|more|less|as)\b
      | % )""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to mend in a file; ``line`` counts from 1."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


Found = tuple[int, str]
"""A place in the text, counted in characters from 0, and what is wrong there."""


def chapter_problems(lesson: Lesson) -> list[Problem]:
    """What is wrong with the chapter's text, and where ``lesson.toml`` names sections that it does not have."""
    text = lesson.chapter.read_text(encoding="utf-8")
    found = [*bare_measurements(text), *dead_links(text, lesson.folder), *directives(text)]
    problems = [Problem(lesson.chapter, _line(text, place), message) for place, message in sorted(found)]
    return problems + [Problem(lesson.folder / "lesson.toml", 1, message) for message in missing_sections(lesson, text)]


def bare_measurements(text: str) -> Iterator[Found]:
    """Numbers with a unit of time, speed or ratio, in sentences that name no source in brackets."""
    prose = _blank(_prose(text), _CITATION, lambda match: _CITED * len(match[0]))
    prose = _blank(prose, _LINK)
    for start, sentence in _sentences(prose):
        if _CITED in sentence:
            continue
        for match in _MEASURE.finditer(sentence):
            number = " ".join(match[0].split())
            yield (
                start + match.start(),
                f"{number!r} is a bare measurement; print it from a cell, cite its source as [Author year, section] "
                "in the same sentence, or write a setting as `code`",
            )


def dead_links(text: str, folder: Path) -> Iterator[Found]:
    """Relative links whose file does not exist; a notebook counts as there when its source is."""
    for match in _LINK.finditer(_without_code(text)):
        path = match["target"].partition("#")[0]
        if not path or ":" in path:
            continue
        target = folder / path
        if not (target.exists() or (target.suffix == ".ipynb" and target.with_suffix(".md").exists())):
            yield match.start(), f"the link leads to {path}, which does not exist"


def directives(text: str) -> Iterator[Found]:
    """Directives of the book, which other viewers of the notebook show as raw text."""
    for match in _DIRECTIVE.finditer(text):
        yield (
            match.start(),
            f"{{{match[1]}}} is a directive that only the book knows; use plain Markdown, as in ```mermaid",
        )


def missing_sections(lesson: Lesson, text: str) -> Iterator[str]:
    """Sections that tasks and mutants name and that are no headings of the chapter."""
    existing = set(headings(text))
    named = [(f"task {task.number}", task.section) for task in lesson.tasks]
    named += [(f"mutant {mutant.name}", mutant.section) for mutant in lesson.mutants]
    for who, section in named:
        if section not in existing:
            yield f"{who} names section {section!r}, which is no heading of lesson.md"


def headings(text: str) -> list[str]:
    """The headings of a chapter, without their number signs."""
    return _HEADING.findall(_blank(_blank(text, _HEADER), _FENCE))


def _prose(text: str) -> str:
    """The text with all that is no prose blanked out, and quotations without their marks."""
    return _blank(_blank(_without_code(text), _FORMULA), _QUOTE_MARK)


def _without_code(text: str) -> str:
    for pattern in (_HEADER, _FENCE, _COMMENT, _INLINE_CODE):
        text = _blank(text, pattern)
    return text


def _blank(text: str, pattern: re.Pattern[str], fill: Callable[[re.Match[str]], str] | None = None) -> str:
    """The text with what matches replaced, by default by spaces; its length and its lines stay."""
    return pattern.sub(fill or (lambda match: re.sub(r"[^\n]", " ", match[0])), text)


def _sentences(prose: str) -> Iterator[tuple[int, str]]:
    """The sentences, each with the place where it begins."""
    start = 0
    for end in _SENTENCE_END.finditer(prose):
        yield start, prose[start : end.start()]
        start = end.end()
    yield start, prose[start:]


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
