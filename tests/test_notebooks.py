"""Lessons as notebooks: made the same each time, compared with what is committed, and their prose kept honest."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from minillm import cli
from minillm.course import notebooks, prose
from minillm.course.lesson import Lesson, Task, lessons

HEADER = """\
---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

"""


def cell(code: str, tag: str = "") -> str:
    options = f":tags: [{tag}]\n\n" if tag else ""
    return f"```{{code-cell}} ipython3\n{options}{code}\n```\n\n"


def chapter(folder: Path, body: str) -> Path:
    source = folder / "lessons" / "01_tiny" / "lesson.md"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(HEADER + body, encoding="utf-8")
    return source


def run(source: Path, **options):
    return notebooks.run([source], **options)[source]


def lesson(folder: Path, section: str) -> Lesson:
    task = Task(1, "goal", (), (), points=1, minutes=1, section=section, hints=("", "", ""))
    return Lesson(1, "tiny", folder, (), (), (task,), ())


def test_a_notebook_is_made_the_same_each_time(tmp_path):
    """Cells twice, the clock, sets and pictures: nothing of them moves the file, but for what real time prints."""
    body = cell("print({'a', 'b', 'c'})") + "Again.\n\n" + cell("print({'a', 'b', 'c'})")
    source = chapter(tmp_path, body)
    first = notebooks.write(run(source), source).read_bytes()
    assert notebooks.write(run(source), source).read_bytes() == first
    assert notebooks.differences(run(source), source) == []


def test_only_text_outputs_that_are_not_measured_are_compared(tmp_path):
    """What the first cells show changes from run to run: a measured text, and a picture. The last one's must not."""
    counter = "from pathlib import Path\nruns = Path('runs').read_text() if Path('runs').exists() else ''"
    picture = "import matplotlib.pyplot as plt\nplt.plot(range(len(runs)))\nplt.show()"
    source = chapter(tmp_path, cell(counter) + cell("runs", "measured") + cell(picture) + "Last.\n\n" + cell("runs"))
    notebooks.write(run(source), source)
    (source.parent / "runs").write_text("one")
    [problem] = notebooks.differences(run(source), source)
    assert source.read_text().splitlines()[problem.line - 1] == "runs"
    assert "-text/plain: ''" in problem.text
    assert "+text/plain: 'one'" in problem.text


def test_a_notebook_older_than_its_text_is_a_problem_at_the_first_cell_that_differs(tmp_path):
    source = chapter(tmp_path, "One.\n\n" + cell("1") + "Two.\n")
    notebooks.write(run(source), source)
    source.write_text(source.read_text().replace("Two.", "Three."))
    [problem] = notebooks.differences(notebooks.load(source), source)
    assert source.read_text().splitlines()[problem.line - 1] == "Three."


def test_an_error_says_which_cell_raised_it(tmp_path):
    source = chapter(tmp_path, cell("fine = 1") + cell("1 / 0"))
    failure = run(source)
    assert isinstance(failure, notebooks.NotebookFailed)
    assert source.read_text().splitlines()[failure.problem.line - 1] == "1 / 0"
    assert "ZeroDivisionError: division by zero" in failure.problem.text


def test_a_notebook_over_its_time_limit_says_in_which_cell(tmp_path):
    source = chapter(tmp_path, "# Slow\n\n" + cell("while True: pass"))
    failure = run(source, limit=1.5)
    assert "after 1.5 s, its limit" in failure.problem.text
    assert source.read_text().splitlines()[failure.problem.line - 1] == "while True: pass"


def test_a_notebook_whose_process_dies_says_in_which_cell(tmp_path):
    source = chapter(tmp_path, cell("import os") + cell("os._exit(3)"))
    failure = run(source)
    assert failure.problem.text == "the Python process of the notebook died in this cell"
    assert source.read_text().splitlines()[failure.problem.line - 1] == "os._exit(3)"


def test_an_output_with_a_path_or_an_address_of_this_machine_is_a_problem(tmp_path):
    source = chapter(tmp_path, cell("print('<object at 0x7f01deadbeef>')") + cell("print('fine')"))
    [problem] = notebooks.untidy_outputs(run(source), source)
    assert "'0x7f01deadbeef'" in problem.text


def test_answers_for_teachers_are_folded_in_the_book(tmp_path):
    notebook = notebooks.load(chapter(tmp_path, cell("answer = 42", "teacher")))
    assert notebook.cells[0].metadata["tags"] == ["teacher", "hide-cell"]


BARE = """\
It ran at 45 tok/s.
That is 3.2x faster.
after 12 ms
1.5 s later
300 us
5 GB/s
saves 40 %
twice: 12 requests/s
(96.3%)
| orca | 3.5 s |
about 1,200 tokens per second
three to 4 times faster"""

FREE = """\
It uses 20.4% of the memory [Kwon et al. 2023, figure 2].
[Yu et al. 2022](https://example.org/orca) report 36.9x.
They need 20 % less [systems: vLLM 0.2.7].
A delay of `100 us`.
The cache $2 L H_{kv} d$ grew by $3 x$.
Blocks of 4 x 4 tokens.
3 sequences, 7 xs
Take 90 minutes."""


@pytest.mark.parametrize("text", BARE.splitlines())
def test_a_bare_measurement_in_prose_is_a_problem(text):
    assert len(list(prose.bare_measurements(text))) == 1


@pytest.mark.parametrize("text", [*FREE.splitlines(), "```\ntook 12 ms\n```", "20 % less\nmemory [Wu 2024]."])
def test_cited_figures_code_and_counts_are_no_problem(text):
    assert list(prose.bare_measurements(text)) == []


def test_a_citation_covers_its_own_sentence_only():
    text = "A paper says 2x [Yu et al. 2022, section 6]. Here it\nis 3x."
    [(place, message)] = prose.bare_measurements(text)
    assert text[place:].startswith("3x")
    assert "'3x'" in message


def test_links_lead_to_files_and_sections_are_headings(tmp_path):
    source = chapter(
        tmp_path, "## 1.1 Real\n\n[here](lesson.ipynb#x) [web](https://example.org) [gone](../02_no/lesson.ipynb)\n"
    )
    link, section = prose.chapter_problems(lesson(source.parent, "1.2 Missing"))
    assert "leads to ../02_no/lesson.ipynb, which does not exist" in link.text
    assert link.line == 9
    assert "task 1 names section '1.2 Missing'" in section.text


def test_directives_that_only_the_book_knows_are_a_problem():
    assert [place for place, _ in prose.directives("```{code-cell} ipython3\n```\n\n:::{note}\n:::\n")] == [29]


def test_the_command_wants_a_lesson_that_has_a_chapter():
    result = CliRunner().invoke(cli.app, ["notebooks", "99"])
    assert "there is no lesson 99" in str(result.exception)


WITH_CHAPTER = [each for each in lessons() if each.chapter.exists()]


@pytest.mark.parametrize("each", WITH_CHAPTER, ids=lambda each: each.folder.name)
def test_the_prose_of_each_lesson_is_in_order(each):
    assert [str(problem) for problem in prose.chapter_problems(each)] == []
