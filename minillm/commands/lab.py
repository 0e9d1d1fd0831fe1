"""``minillm lab``: write a lesson's functions, and have them graded."""

from typing import Annotated

import typer

from minillm.course.lesson import Lesson, lesson_numbered, lessons

app = typer.Typer(help="Write a lesson's functions, and have them graded.", no_args_is_help=True)


@app.command()
def skeletons(
    number: Annotated[int | None, typer.Argument(metavar="[N]", help="Only this lesson.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where one is not up to date.")] = False,
) -> None:
    """Generate each lesson's lab.py from the reference."""
    from minillm.course.skeleton import LAB, skeleton

    stale = []
    for lesson in _chosen(number):
        file, text = lesson.folder / LAB, skeleton(lesson)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
            if not check:
                file.write_text(text, encoding="utf-8")
    for file in stale:
        typer.echo(f"{'not up to date' if check else 'wrote'}: {file}")
    if check and stale:
        typer.echo("make skeletons writes them anew.")
        raise typer.Exit(1)


def _chosen(number: int | None) -> list[Lesson]:
    return lessons() if number is None else [lesson_numbered(number)]
