"""``minillm lab``: write a lesson's functions, and have them graded."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from minillm.commands.files import see_writable
from minillm.commands.typed import typed
from minillm.course.lesson import HINT_LEVELS, Lesson, Task, lesson_numbered, lessons
from minillm.course.screening import Refused, read_lab
from minillm.course.workspace import (
    Workspace,
    differences,
    shown,
    signature_changes,
    skeleton_text,
    written_functions,
)

if TYPE_CHECKING:
    from minillm.course.grades import LessonGrade, MutantReport
    from minillm.report.grades import Line

app = typer.Typer(help="Write a lesson's functions, and have them graded.", no_args_is_help=True)

LessonNumber = Annotated[int, typer.Argument(metavar="N", help="The lesson.")]
OnlyLesson = Annotated[int | None, typer.Argument(metavar="[N]", help="Only this lesson.")]
TaskNumber = Annotated[int, typer.Argument(metavar="T", help="The task.")]
LessonOption = Annotated[int | None, typer.Option("--lesson", help="Only this lesson.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def run(
    lesson: LessonNumber,
    *,
    task: Annotated[int | None, typer.Option(help="Only this task.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Stop in the debugger where a test fails.")] = False,
) -> None:
    """Grade your lab of one lesson; the first time, make it.

    The exit code is 0 when every task that was graded is solved.
    """
    from minillm.course import grading
    from minillm.report.grades import lesson_report

    chosen, workspace = lesson_numbered(lesson), Workspace.from_environment()
    tasks = None if task is None else [chosen.task(task).number]
    lab = _open(chosen, workspace)
    if debug:
        raise typer.Exit(grading.debug(chosen, lab, tasks))
    with _working(f"grading {shown(lab)}"):
        grade = grading.grade(chosen, lab, tasks)
    solved = [chosen.task(each.task) for each in grade.tasks if each.solved and not grade.void]
    workspace.note_solved(chosen, solved)
    for part in lesson_report(grade, shown(lab), _owners(chosen, lab)):
        _show(part)
    _show(Text(_advice(chosen, grade, workspace)))
    raise typer.Exit(0 if len(solved) == len(grade.tasks) else 1)


def _owners(lesson: Lesson, lab: Path) -> dict[int, str]:
    """Whose each task is in the run of all that is written."""
    text = read_lab(lab)
    return {task.number: "yours" if written_functions(text, task) else "reference" for task in lesson.tasks}


def _open(lesson: Lesson, workspace: Workspace) -> Path:
    """The student's lab, made if it is not there, with what the skeleton has changed since said."""
    lab = workspace.lab(lesson)
    if workspace.open(lesson):
        _show(Text(f"Made {shown(lab)}, your copy of the lab. Write its functions there.\n"))
    for change in signature_changes(lesson, read_lab(lab)):
        _show(Text(str(change), style="yellow"))
    return lab


def _advice(lesson: Lesson, grade: "LessonGrade", workspace: Workspace) -> str:
    """What to do next."""
    open_tasks = [task.task for task in grade.tasks if not task.solved]
    if grade.void:
        return ""
    if not open_tasks:
        return _after_success(lesson, workspace)
    n, t = lesson.number, open_tasks[0]
    alone = "" if len(grade.tasks) == 1 else f"\n  {_run_command(n, t)} grades it alone"
    hint = typed(f"hint L={n} T={t}", f"lab hint {n} {t}")
    return f"Next: task {t}, section {lesson.task(t).section}.{alone}\n  {hint} gives a hint"


def _after_success(lesson: Lesson, workspace: Workspace) -> str:
    """The next task of the lesson that is not solved, or else the next lesson."""
    left = [task for task in lesson.tasks if not workspace.is_solved(lesson, task)]
    if left:
        task = left[0]
        command = _run_command(lesson.number, task.number)
        return f"Solved. Next: task {task.number}, section {task.section}.\n  {command} grades it"
    later = [each for each in lessons() if each.number > lesson.number]
    done = f"Lesson {lesson.number} is solved."
    return f"{done} Next: lesson {later[0].number}, {later[0].title}." if later else done


def _run_command(lesson: int, task: int) -> str:
    return typed(f"lab-{lesson} T={task}", f"lab run {lesson} --task {task}")


@app.command()
def grade(
    *,
    lesson: LessonOption = None,
    labs: Annotated[Path | None, typer.Option(help="Folder with the labs, in place of your own.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all that was found to this file.")] = None,
    gradescope: Annotated[Path | None, typer.Option(help="Write Gradescope's results.json to this file.")] = None,
) -> None:
    """Grade your labs of all lessons, none of whose tasks the reference helps out.

    The exit code is 0 when all points were earned.
    """
    from minillm.course import results
    from minillm.course.submissions import grade_labs
    from minillm.report.grades import grades_table

    see_writable((("the grades", json_file), ("Gradescope's results", gradescope)))
    folder = _folder(labs) if labs else Workspace.from_environment().folder
    grades = list(_told(grade_labs(_chosen(lesson), folder)))
    _show(grades_table(grades))
    if json_file:
        _write_json(json_file, results.as_json(grades))
    if gradescope:
        _write_json(gradescope, results.gradescope(grades))
    raise typer.Exit(0 if all(each.earned == each.points for each in grades) else 1)


def _told(grades: "Iterable[LessonGrade]") -> "Iterable[LessonGrade]":
    """The grades, each said on standard error as it comes: grading takes its time."""
    for each in grades:
        missing = "" if each.void or each.lab.is_file() else f": there is no {each.lab.name} in {each.lab.parent}"
        typer.echo(f"lesson {each.lesson}: {each.earned} of {each.points} points{missing}", err=True)
        yield each


@app.command()
def grade_folder(
    folder: Annotated[Path, typer.Argument(help="Holds a folder for each student, with their labs in it.")],
    *,
    csv: Annotated[Path, typer.Option(help="Write a line for each student to this file.")],
    lesson: LessonOption = None,
) -> None:
    """Grade the labs of many students into a CSV file."""
    from minillm.course.results import as_csv
    from minillm.course.submissions import grade_students

    see_writable([("the table", csv)])
    students = []
    for each in grade_students(_chosen(lesson), _folder(folder)):
        typer.echo(f"{each.student}: {each.earned} points")
        students.append(each)
        csv.write_text(as_csv(students), encoding="utf-8", errors="backslashreplace")
    typer.echo(f"Wrote {csv}.")


@app.command()
def bundle(
    folder: Annotated[Path, typer.Argument(help="Is made, and its zip beside it.")],
    *,
    lesson: LessonOption = None,
    pip_flags: Annotated[str, typer.Option(help="Goes to pip install, as PIP_FLAGS does.")] = "",
) -> None:
    """Write an autograder for Gradescope: setup.sh, run_autograder and the course."""
    from minillm.course.submissions import write_bundle

    archive = write_bundle(folder.absolute(), _chosen(lesson), lesson, pip_flags)
    typer.echo(f"Wrote {archive}; upload it as the assignment's autograder.")


@app.command()
def progress(lesson: LessonOption = None) -> None:
    """Say what is written, what was solved when last graded, and how many hints were taken.

    A line a lesson, or a line a task of one lesson.
    """
    workspace = Workspace.from_environment()
    table = Table.grid(padding=(0, 2))
    if lesson is None:
        for each in lessons():
            table.add_row(f"{each.number} {each.title}", *_lesson_progress(workspace, each))
    else:
        for task in lesson_numbered(lesson).tasks:
            table.add_row(f"{lesson}.{task.number}", *_task_progress(workspace, lesson_numbered(lesson), task))
    _show(table)
    _show(Text(PROGRESS_NOTE, style="bright_black"))
    if lesson is None:
        _show(Text(f"{typed('progress L=N', 'lab progress --lesson N')} lists the tasks of lesson N."))


STATE_STYLES = {"not written": "bright_black", "written": "yellow", "solved": "green"}
PROGRESS_NOTE = """
written: there is code of yours, not solved or not graded since you changed it
solved: all of its tests passed when it was last graded"""


def _lesson_progress(workspace: Workspace, lesson: Lesson) -> tuple[Text, Text, str]:
    """How many of its tasks are solved and written, or why that is not known, and how many hints were taken."""
    hints = _hints(sum(workspace.hints_seen(lesson, task) for task in lesson.tasks))
    try:
        states = [_state(workspace, lesson, task) for task in lesson.tasks]
    except Refused as error:
        return Text("unreadable", style="red"), Text(str(error), style="red"), hints
    solved, written = states.count("solved"), states.count("written")
    style = STATE_STYLES["solved"] if solved == len(states) else ""
    more = f"{written} written" if written else ""
    return (
        Text(f"{solved} of {len(states)} solved", style=style),
        Text(more, style=STATE_STYLES["written"]),
        hints,
    )


def _task_progress(workspace: Workspace, lesson: Lesson, task: Task) -> tuple[Text, str, Text]:
    """Its state, the hints that were taken, and its goal in one line."""
    state, goal = _state(workspace, lesson, task), Text(task.goal, no_wrap=True, overflow="ellipsis")
    return Text(state, style=STATE_STYLES[state], no_wrap=True), _hints(workspace.hints_seen(lesson, task)), goal


def _hints(count: int) -> str:
    return f"{count} hint{'' if count == 1 else 's'}" if count else ""


def _state(workspace: Workspace, lesson: Lesson, task: Task) -> str:
    lab = workspace.lab(lesson)
    if not lab.exists() or not written_functions(read_lab(lab), task):
        return "not written"
    return "solved" if workspace.is_solved(lesson, task) else "written"


@app.command()
def hint(
    lesson: LessonNumber,
    task: TaskNumber,
    *,
    level: Annotated[int | None, typer.Option(help="1 to 3, in place of the next that you have not seen.")] = None,
) -> None:
    """Show the next hint for a task: a nudge, then the idea, then the way."""
    chosen, workspace = lesson_numbered(lesson), Workspace.from_environment()
    wanted = chosen.task(task)
    seen = workspace.hints_seen(chosen, wanted)
    shown, text = workspace.hint(chosen, wanted, level)
    _show(Text(f"Lesson {lesson}, task {task}: {wanted.goal}. Hint {shown} of {HINT_LEVELS}:", style="bold"))
    _show(Text(text))
    if shown == HINT_LEVELS:
        again = (
            "You have seen it before, and there is no further one" if seen == HINT_LEVELS else "This is the last hint"
        )
        _show(Text(f"{again}. Section {wanted.section} explains the rest.", style="bright_black"))
    if shown > 1:
        earlier = typed(f"hint L={lesson} T={task} LEVEL=1", f"lab hint {lesson} {task} --level 1")
        _show(Text(f"{earlier} shows the first one again.", style="bright_black"))


@app.command()
def peek(lesson: LessonNumber, task: TaskNumber, *, yes: Yes = False) -> None:
    """Show what sets your functions apart from the reference's."""
    from minillm.report.grades import Line

    chosen, workspace = lesson_numbered(lesson), Workspace.from_environment()
    wanted = chosen.task(task)
    lab = workspace.lab(chosen)
    text = read_lab(lab) if lab.exists() else skeleton_text(chosen)
    if not yes:
        typer.confirm(f"This shows the solution of task {task}: {wanted.goal}. Go on?", abort=True)
    lines = differences(text, wanted)
    for line in lines:
        _show(Line(line, _colour(line)))
    if not lines:
        _show(Text("Yours and the reference's are the same."))


def _colour(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "bold"
    return {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")


@app.command()
def reset(lesson: LessonNumber, *, yes: Yes = False) -> None:
    """Start your lab of a lesson anew; what you have is kept under another name."""
    chosen, workspace = lesson_numbered(lesson), Workspace.from_environment()
    lab = workspace.lab(chosen)
    if lab.exists() and not yes:
        typer.confirm(f"Start {shown(lab)} anew?", abort=True)
    backup = workspace.reset(chosen)
    kept = f", and kept yours as {shown(backup)}" if backup else ""
    typer.echo(f"Made {shown(lab)}{kept}.")


@app.command()
def mutants(
    lesson: OnlyLesson = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; only see that all is as it must be.")] = False,
) -> None:
    """Run the known wrong solutions: each must fail a check, or the time limit, of its task's tests.

    How each fails is written to its lesson's misconceptions.json, by which a student's failure is explained. With
    --check a wrong solution's tests end when it has failed, and two more things are seen: that every test fails while
    its task is not written, and that the reference passes when it is handed in.
    """
    from minillm.course.mutants import judge_mutants
    from minillm.course.proof import prove
    from minillm.report.grades import mutants_table, mutants_verdict

    reports, good = [], True
    for each in _chosen(lesson):
        found = list(_counted(each, prove(each) if check else judge_mutants(each)))
        good = _recorded(each, found, check) and good
        reports += found
    told = [report for report in reports if not report.died] if check else reports
    if told:
        _show(mutants_table(told))
    _show(mutants_verdict(reports))
    raise typer.Exit(0 if good and all(report.died for report in reports) else 1)


def _counted(lesson: Lesson, reports: "Iterable[MutantReport]") -> "Iterable[MutantReport]":
    """The reports, counted on a terminal as they come."""
    with _working(f"lesson {lesson.number}") as status:
        for number, report in enumerate(reports, 1):
            status.update(f"lesson {lesson.number}: {number} wrong solutions have run")
            yield report


def _recorded(lesson: Lesson, reports: "list[MutantReport]", check: bool) -> bool:
    """Write down how the mutants fail, or say where that is written otherwise, and whether all is well."""
    from minillm.course import misconceptions

    if not check:
        misconceptions.record(lesson, reports)
        return True
    outdated = misconceptions.outdated(lesson, reports)
    if outdated:
        remedy = typed(f"mutants L={lesson.number}", f"lab mutants {lesson.number}")
        file = shown(lesson.folder / misconceptions.FILE)
        typer.echo(f"not up to date: {file}, in {', '.join(outdated)}; {remedy} writes it anew")
    return not outdated


@app.command()
def skeletons(
    lesson: OnlyLesson = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where one is not up to date.")] = False,
) -> None:
    """Generate each lesson's lab.py from the reference."""
    from minillm.course.skeleton import skeleton

    stale = []
    for each in _chosen(lesson):
        file, text = each.skeleton, skeleton(each)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
            if not check:
                file.write_text(text, encoding="utf-8")
    for file in stale:
        typer.echo(f"{'not up to date' if check else 'wrote'}: {file}")
    if check and stale:
        typer.echo(f"{typed('skeletons', 'lab skeletons')} writes them anew.")
        raise typer.Exit(1)


def _chosen(number: int | None) -> list[Lesson]:
    return lessons() if number is None else [lesson_numbered(number)]


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}; name the one with the labs")
    return path.absolute()


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _working(what: str) -> Status:
    """Says on a terminal that something is going on. What the tests are due is recorded first, which takes longest."""
    return Console(stderr=True).status(what)


def _show(part: "Line | RenderableType") -> None:
    """Print a part. Lines of a report stay whole, for what stands side by side in them would fall apart."""
    from minillm.report.grades import Line

    console = Console(highlight=False)
    if isinstance(part, Line):
        console.print(Text(part.text, style=part.style), soft_wrap=True)
    else:
        console.print(part)
