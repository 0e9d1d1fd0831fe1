"""``minillm notebooks``: run the lessons' notebooks."""

from functools import partial
from importlib.util import find_spec
from typing import Annotated

import typer

from minillm.course.lesson import Lesson, LessonError, lesson_numbered, lessons
from minillm.course.prose import Problem, chapter_problems
from minillm.course.workspace import shown
from minillm.doctor import install_command
from minillm.report.progress import progress_bar


def notebooks(
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[N]...", help="Lessons; by default all.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: compare with the notebooks that are there.")
    ] = False,
    limit: Annotated[float, typer.Option(min=1, help="Most seconds for one notebook.")] = 120,
) -> None:
    """Run the notebooks of lessons, and write them with their outputs.

    The chapters' texts are checked as well. The exit code is 1 when something is to be mended.
    """
    if find_spec("nbclient") is None or find_spec("jupytext") is None:
        raise ValueError(f"what runs notebooks is not installed; run {install_command('notebooks')}")
    chosen = chosen_lessons(numbers)
    problems = [problem for lesson in chosen for problem in chapter_problems(lesson)]
    problems += run_and_compare(chosen, check, limit)
    for problem in problems:
        typer.echo(f"{shown(problem.file)}:{problem.line}: {problem.text}", err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{'Up to date' if check else 'Written'}: the notebooks of {len(chosen)} lessons.")


def chosen_lessons(numbers: list[int] | None) -> list[Lesson]:
    """The lessons of these numbers, or all that have a chapter. Raises LessonError for one without."""
    if not numbers:
        return [lesson for lesson in lessons() if lesson.chapter.exists()]
    chosen = [lesson_numbered(number) for number in numbers]
    for lesson in chosen:
        if not lesson.chapter.exists():
            raise LessonError(f"lesson {lesson.number} has no chapter yet; write {lesson.chapter}")
    return chosen


def run_and_compare(chosen: list[Lesson], check: bool, limit: float) -> list[Problem]:
    """Run the notebooks under a progress bar; write those that ran, or compare them with those that are there."""
    from minillm.course import notebooks as course  # needs packages of an extra

    sources = [lesson.chapter for lesson in chosen]
    cells = sum(cell.cell_type == "code" for source in sources for cell in course.load(source).cells)
    with progress_bar() as bar:
        task = bar.add_task("running cells", total=cells)
        results = course.run(sources, partial(bar.advance, task), limit)
    problems = []
    for source, result in results.items():
        if isinstance(result, course.NotebookFailed):
            problems.append(result.problem)
            continue
        problems += course.untidy_outputs(result, source)
        if check:
            problems += course.differences(result, source)
        else:
            course.write(result, source)
    return problems
