"""``minillm lab``: what a student and a teacher type, and what they are told. Grading itself has tests of its own."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shapes_lesson import SKELETON, make_lesson
from typer.testing import CliRunner

from minillm import cli
from minillm.commands import lab as commands
from minillm.course import grading, mutants, proof, submissions
from minillm.course.grades import (
    LessonGrade,
    Misconception,
    MutantReport,
    Outcome,
    TaskGrade,
    TestReport,
    Verdict,
)
from minillm.course.lesson import lesson_numbered, lessons
from minillm.course.results import StudentGrades, as_csv, as_json, gradescope
from minillm.report.grades import plain, task_lines

ROOT = Path(__file__).parent.parent
DEFINED = re.compile(r"^def (test_\w+)", re.MULTILINE)
TEST = "tests/test_lesson_04_shapes.py::test_"


def passed(name, printed=""):
    return TestReport(TEST + name, Outcome.PASSED, printed=printed)


def failed(name, message, **more):
    return TestReport(TEST + name, Outcome.FAILED, message, **more)


KNOWN = Misconception("half", "You count one side only.", "4.1 Area")
SOLVED = TaskGrade(1, "the area", 10, True, None, (passed("area"),), (passed("area"),))
WRONG = TaskGrade(2, "the border", 5, True, None, (failed("border", "sides: 3, but 4 was due", misconception=KNOWN),))
UNWRITTEN = TaskGrade(2, "the border", 5, False, None, (TestReport(TEST + "border", Outcome.NOT_WRITTEN, "not yet"),))


def graded(*tasks, lab="lab_04_shapes.py", void=None):
    return LessonGrade(4, "Shapes", Path(lab), tasks, void)


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return make_lesson(tmp_path)


@pytest.fixture
def labs(tmp_path, monkeypatch, lesson):
    """The folder of a student for whom lesson 4 is the only one."""
    folder = lesson.folder.parent
    monkeypatch.setattr(commands, "lesson_numbered", lambda number: lesson_numbered(number, folder))
    monkeypatch.setattr(commands, "lessons", lambda: lessons(folder))
    monkeypatch.setenv("MINILLM_LABS", str(tmp_path / "labs"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("MAKELEVEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "labs"


def minillm(*arguments, answer=None):
    """The exit code and what was printed."""
    result = CliRunner().invoke(cli.app, ["lab", *map(str, arguments)], input=answer)
    if isinstance(result.exception, ValueError):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def grades(monkeypatch):
    """What is asked of the grader, whose answers are those that a test gives."""
    asked = []

    def answer(*tasks, void=None):
        def grade(lesson, lab, tasks_asked=None, fallback=True):
            asked.append((lesson.number, lab.name, tasks_asked, fallback))
            return graded(*tasks, lab=lab, void=void)

        monkeypatch.setattr(grading, "grade", grade)
        monkeypatch.setattr(submissions, "grade", grade)
        return asked

    return answer


def test_the_first_run_makes_the_lab_and_says_whose_each_task_is(labs, grades):
    asked = grades(UNWRITTEN)
    code, output = minillm("run", 4, "--task", 2)
    assert asked == [(4, "lab_04_shapes.py", [2], True)]
    assert (labs / "lab_04_shapes.py").read_text() == SKELETON
    assert "Made labs/lab_04_shapes.py, your copy of the lab." in output
    assert (
        "Lesson 4, Shapes\ngraded: labs/lab_04_shapes.py\n"
        "your tasks: none yet\nthe reference's code stands in for: 1, 2\npoints: 0 of 5\n"
    ) in output
    assert code == 1


def test_what_comes_next_is_said_with_its_command(labs, grades, monkeypatch):
    grades(SOLVED, UNWRITTEN)
    alone = "minillm lab run 4 --task 2 grades it alone"
    hint = "minillm lab hint 4 2 gives a hint"
    assert f"Next: task 2, section 4.2 Border.\n  {alone}\n  {hint}\n" in minillm("run", 4)[1]
    grades(UNWRITTEN)
    output = minillm("run", 4, "--task", 2)[1]
    assert hint in output
    assert alone not in output
    monkeypatch.setenv("MAKELEVEL", "1")
    assert "  make hint L=4 T=2 gives a hint\n" in minillm("run", 4, "--task", 2)[1]


def test_after_a_solved_task_comes_the_next_and_after_a_lesson_the_next_one(labs, grades):
    grades(SOLVED)
    output = minillm("run", 4, "--task", 1)[1]
    assert "Solved. Next: task 2, section 4.2 Border.\n  minillm lab run 4 --task 2 grades it\n" in output
    grades(replace(SOLVED, task=2))
    assert minillm("run", 4, "--task", 2)[1].endswith("Lesson 4 is solved.\n")


def test_each_row_of_the_table_is_one_line_in_80_columns_and_its_columns_are_explained(labs, grades, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    grades(replace(SOLVED, goal="the area, " * 20), UNWRITTEN)
    lines = minillm("run", 4)[1].splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["task", "state"])
    assert [line.split()[:3] for line in lines[head + 2 : head + 4]] == [["1", "solved", "1"], ["2", "not", "written"]]
    assert lines[head + 4 : head + 6] == [
        "A task earns its points when all of its tests pass.",
        "together: the same tests with all of your tasks; one unsolved may spoil others.",
    ]
    assert max(map(len, lines)) <= 80


def test_a_failed_test_is_shown_with_its_message_and_the_misconception_behind_it(labs, grades):
    grades(SOLVED, WRONG)
    code, output = minillm("run", 4)
    assert (
        "Task 2: the border\n"
        "failed: border\n"
        "    You count one side only. Read section 4.1 Area again.\n"
        "    sides: 3, but 4 was due\n"
    ) in output
    assert "your tasks: 1, 2\npoints: 10 of 15\n" in output
    assert code == 1


def test_tests_that_fail_alike_share_a_message_and_prints_are_shown(labs, grades):
    alike = failed("border[3]", "one\ntwo"), failed("border[4]", "one\ntwo", printed="here\n")
    grades(TaskGrade(2, "the border", 5, True, None, (*alike, passed("sides", "1\n2\n3\n4\n5\n"))))
    _, output = minillm("run", 4)
    assert (
        "failed: border [3]\n    one\n    two\n    printed:\n    | here\n    also border [4]\n"
        "passed: sides\n    printed:\n    | 1\n    | 2\n    | 3\n    and 2 lines more\n"
    ) in output


def report(*reports):
    """The lines about the failed tests of a task that is written."""
    return plain(task_lines(TaskGrade(2, "the border", 5, True, None, reports)))


def test_a_misconception_is_said_once_with_the_tests_that_show_it():
    others = [
        failed(f"walk[{number}]", f"at {number}: 3, but 4 was due\nmore", misconception=KNOWN) for number in range(7)
    ]
    assert report(failed("border", "sides: 3, but 4 was due", misconception=KNOWN), *others) == (
        "failed: border\n"
        "    You count one side only. Read section 4.1 Area again.\n"
        "    sides: 3, but 4 was due\n"
        "    also walk [0]: at 0: 3, but 4 was due\n"
        "    also walk [1]: at 1: 3, but 4 was due\n"
        "    also walk [2]: at 2: 3, but 4 was due\n"
        "    also walk [3]: at 3: 3, but 4 was due\n"
        "    also walk [4]: at 4: 3, but 4 was due\n"
        "    and 2 more tests"
    )


def test_a_test_is_named_in_words_with_its_apostrophes():
    assert (
        passed("a_row_s_sum_is_that_of_its_tile_s_rows[3-a_b]").name == "a row's sum is that of its tile's rows [3-a_b]"
    )
    names = [name for file in sorted(ROOT.glob("tests/test_lesson_*.py")) for name in DEFINED.findall(file.read_text())]
    lost = [name for name in names if re.search(r"_(each|every|another)_(?!has_|is_|was_)[a-z]*[^s_]s_", name)]
    assert names
    assert not lost, "write each_row_s_sum where you mean each row's sum"


def test_tests_that_say_the_same_say_it_once():
    message = "faults: 1\n  race on s[0]"
    assert report(failed("border[3]", message), failed("walk", "no end"), failed("area", message)) == (
        "failed: border [3]\n    faults: 1\n      race on s[0]\n    also area\nfailed: walk\n    no end"
    )


LONG = "a sentence " * 12


@pytest.mark.parametrize(
    "task",
    [
        replace(WRONG, reports=(failed("border", f"{LONG}\n  {LONG}"), failed("a_border_" * 10, "x" * 200))),
        replace(WRONG, reports=(failed("border", "wrong", misconception=replace(KNOWN, why=LONG)),)),
        replace(WRONG, goal=LONG),
        replace(WRONG, refused=LONG),
        UNWRITTEN,
    ],
)
@pytest.mark.parametrize("void", [None, LONG])
def test_all_that_is_said_of_a_task_fits_in_80_columns(labs, grades, monkeypatch, task, void):
    monkeypatch.setenv("COLUMNS", "80")
    grades(task, void=void)
    assert max(map(len, minillm("run", 4)[1].splitlines())) <= 80


def test_lines_that_fit_are_left_as_they_are():
    table = "pass  yours   due\n>  1  A1  B1  A1"
    assert report(failed("walk", table)) == "failed: walk\n    pass  yours   due\n    >  1  A1  B1  A1"
    assert report(failed("walk", f"faults: 1\n  {LONG}")).splitlines()[2:] == [
        "      a sentence a sentence a sentence a sentence a sentence a sentence a",
        "        sentence a sentence a sentence a sentence a sentence a sentence",
    ]


def test_exceptions_from_one_place_stand_together_and_those_from_another_apart():
    def raised(name, text, place):
        return TestReport(TEST + name, Outcome.RAISED, f"KeyError: {text}\n  lab.py:{place}", failure="raised KeyError")

    assert report(raised("a", "'A'", 3), raised("b", "'B'", 3), raised("c", "'C'", 5)) == (
        "raised: a\n    KeyError: 'A'\n      lab.py:3\n    also b: KeyError: 'B'\n"
        "raised: c\n    KeyError: 'C'\n      lab.py:5"
    )


def test_a_time_limit_comes_after_what_tells_more():
    late = TestReport(TEST + "late", Outcome.TIMED_OUT, "no end within 20 seconds")
    assert report(late, failed("walk", "sides: 3, but 4 was due")).splitlines()[::2] == [
        "failed: walk",
        "timed out: late",
    ]


def test_what_fails_only_with_the_students_other_tasks_is_said_apart(labs, grades):
    apart = TaskGrade(1, "the area", 10, True, None, (passed("area"),), (failed("area", "area: 2, but 4 was due"),))
    grades(apart)
    _, output = minillm("run", 4)
    assert "With your other tasks, instead of the reference's:\nfailed: area\n    area: 2, but 4 was due\n" in output


def test_trouble_with_other_tasks_is_not_told_while_one_of_these_is_wrong(labs, grades):
    apart = TaskGrade(1, "the area", 10, True, None, (passed("area"),), (failed("area", "area: 2, but 4 was due"),))
    grades(apart, WRONG)
    assert "area: 2, but 4 was due" not in minillm("run", 4)[1]


def test_a_void_run_says_why_and_a_refused_task_too(labs, grades):
    grades(TaskGrade(1, "the area", 10, True, "area has other decorators"))
    assert "Task 1: the area\nIt could not run: area has other decorators\n" in minillm("run", 4)[1]
    grades(SOLVED, void="line 3 imports ctypes")
    code, output = minillm("run", 4)
    assert "void, nothing counts: line 3 imports ctypes\n" in output
    assert code == 1


def test_progress_tells_written_from_solved_and_counts_hints(labs, grades):
    assert "4.1  not written    the area" in minillm("progress", "--lesson", 4)[1]
    grades(SOLVED)
    assert minillm("run", 4)[0] == 0
    lab = labs / "lab_04_shapes.py"
    lab.write_text(SKELETON.replace('raise NotImplementedError("lesson 4, task 1: the area")', "return 1"))
    minillm("hint", 4, 1)
    assert "4.1  written      1 hint  the area" in minillm("progress", "--lesson", 4)[1]
    assert "4 Shapes  0 of 2 solved  1 written  1 hint\n" in minillm("progress")[1]
    assert minillm("run", 4)[0] == 0
    assert "4.1  solved       1 hint  the area" in minillm("progress", "--lesson", 4)[1]
    assert "4 Shapes  1 of 2 solved    1 hint\n" in minillm("progress")[1]
    assert "minillm lab progress --lesson N lists the tasks of lesson N." in minillm("progress")[1]


def test_progress_says_which_lab_cannot_be_read_and_goes_on(labs):
    labs.mkdir()
    (labs / "lab_04_shapes.py").write_text("def area(:\n")
    code, output = minillm("progress")
    assert "4 Shapes  unreadable  lab_04_shapes.py:1: invalid syntax; correct this line first" in output
    assert code == 0


def test_an_older_signature_is_said_with_the_remedy(labs, grades):
    grades(SOLVED)
    minillm("run", 4)
    lab = labs / "lab_04_shapes.py"
    lab.write_text(SKELETON.replace("def border(side)", "def border(edge)"))
    assert "border is `def border(edge)` in your lab, but `def border(side)` in today's" in minillm("run", 4)[1]


def test_hints_come_one_by_one(labs):
    assert "Hint 1 of 3:\na nudge\n" in minillm("hint", 4, 1)[1]
    assert "Hint 2 of 3:\nthe idea\n" in minillm("hint", 4, 1)[1]
    assert "Hint 1 of 3:\na nudge\n" in minillm("hint", 4, 1, "--level", 1)[1]
    earlier = "minillm lab hint 4 1 --level 1 shows the first one again."
    last = f"Section 4.1 Area explains the rest.\n{earlier}\n"
    assert f"the way\nThis is the last hint. {last}" in minillm("hint", 4, 1)[1]
    assert f"the way\nYou have seen it before, and there is no further one. {last}" in minillm("hint", 4, 1)[1]


def test_the_solution_is_shown_only_after_a_question(labs):
    code, output = minillm("peek", 4, 2, answer="n\n")
    assert code == 1
    assert "This shows the solution of task 2: the border. Go on?" in output
    assert "4 * side" not in output
    assert "+    return 4 * side\n" in minillm("peek", 4, 2, answer="y\n")[1]
    assert "+    return 4 * side\n" in minillm("peek", 4, 2, "--yes")[1]


def test_a_reset_asks_and_says_where_the_old_lab_is(labs):
    assert minillm("reset", 4) == (0, "Made labs/lab_04_shapes.py.\n")
    (labs / "lab_04_shapes.py").write_text("mine")
    assert minillm("reset", 4, answer="n\n")[0] == 1
    assert (labs / "lab_04_shapes.py").read_text() == "mine"
    kept = "Made labs/lab_04_shapes.py, and kept yours as labs/lab_04_shapes.1.backup.\n"
    assert minillm("reset", 4, "--yes") == (0, kept)


def test_skeletons_are_written_and_a_stale_one_fails_the_check(labs, lesson):
    lab = lesson.folder / "lab.py"
    code, output = minillm("skeletons", "--check")
    assert (code, output) == (1, f"not up to date: {lab}\nminillm lab skeletons writes them anew.\n")
    assert lab.read_text() == SKELETON
    assert minillm("skeletons") == (0, f"wrote: {lab}\n")
    assert minillm("skeletons", "--check") == (0, "")


MISTAKES = {
    "no such lesson": (["run", 3], "there is no lesson 3; lessons: 4"),
    "no such task": (["run", 4, "--task", 9], "lesson 4 has no task 9; its tasks are 1 to 2"),
    "no such task to hint at": (["hint", 4, 9], "lesson 4 has no task 9; its tasks are 1 to 2"),
    "no such level": (["hint", 4, 1, "--level", 0], "there is no hint of level 0; levels are 1 to 3"),
    "no such folder": (["grade", "--labs", "nowhere"], "there is no folder nowhere; name the one with the labs"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_sentence(labs, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        minillm(*arguments)


@pytest.mark.parametrize(("target", "message"), {"hint": "L=4 T=2", "peek": "L=4 T=2", "reset": "L=4"}.items())
def test_make_says_which_variables_it_misses(target, message):
    command = ["make", "--dry-run", target]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert f"as in make {target} {message}." in run.stderr


def test_all_lessons_are_graded_without_the_reference_into_files(labs, grades, tmp_path):
    labs.mkdir()
    (labs / "lab_04_shapes.py").write_text(SKELETON)
    asked = grades(SOLVED, WRONG)
    code, output = minillm("grade", "--json", "all.json", "--gradescope", "results.json")
    assert asked == [(4, "lab_04_shapes.py", None, False)]
    assert "10 of 15" in output
    assert code == 1
    assert json.loads(Path("all.json").read_text())["earned"] == 10
    assert [test["score"] for test in json.loads(Path("results.json").read_text())["tests"]] == [10, 0]


def test_a_lesson_that_was_not_started_has_no_points_and_is_not_graded(labs, grades):
    asked = grades(SOLVED)
    labs.mkdir()
    result = CliRunner().invoke(cli.app, ["lab", "grade"])
    assert (asked, result.exit_code) == ([], 1)
    assert "0 of 15" in result.stdout
    assert f"lesson 4: 0 of 15 points: there is no lab_04_shapes.py in {labs}\n" in result.stderr


def test_a_folder_of_students_becomes_a_table(labs, grades, tmp_path):
    for student in ("ada", "bob", "cy"):
        (tmp_path / "class" / student).mkdir(parents=True)
    for path in ("ada/lab_04_shapes.py", "cy/lab_04_shapes.py", "cy/old/lab_04_shapes.py"):
        (tmp_path / "class" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "class" / path).write_text(SKELETON)
    grades(SOLVED, WRONG)
    assert minillm("grade-folder", "class", "--csv", "class.csv")[0] == 0
    rows = list(csv.DictReader(io.StringIO(Path("class.csv").read_text())))
    assert [(row["student"], row["4.1"], row["4.2"], row["total"]) for row in rows] == [
        ("ada", "10", "0", "10"),
        ("bob", "0", "0", "0"),
        ("cy", "0", "0", "0"),
    ]
    assert "cy holds 2 files lab_04_shapes.py; leave the one to be graded" in rows[2]["notes"]


def test_the_table_says_of_each_student_what_was_not_graded(labs, grades, tmp_path):
    folders = [tmp_path / "class" / name for name in ("ada", os.fsdecode(b"b\xff"))]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / "lab_04_shapes.py").write_text(SKELETON)
    (folders[1] / "lab_04_shapes (1).py").write_text(SKELETON)
    grades(TaskGrade(1, "the area", 10, True, "area has other decorators"), WRONG)
    assert minillm("grade-folder", "class", "--csv", "class.csv")[0] == 0
    rows = list(csv.DictReader(io.StringIO(Path("class.csv").read_text())))
    assert [(row["student"], row["notes"]) for row in rows] == [
        ("ada", "task 4.1: area has other decorators"),
        (r"b\xff", "lesson 4: there is no lab_04_shapes.py"),
    ]


@pytest.mark.parametrize(
    "command", [("grade-folder", "class", "--csv"), ("grade", "--json"), ("grade", "--gradescope")]
)
def test_a_file_that_cannot_be_written_is_said_before_anything_is_graded(labs, grades, tmp_path, command):
    (tmp_path / "class" / "ada").mkdir(parents=True)
    (tmp_path / "class" / "ada" / "lab_04_shapes.py").write_text(SKELETON)
    asked = grades(SOLVED)
    with pytest.raises(
        ValueError, match=r" cannot be written to nowhere/x: No such file or directory; give a file in an"
    ):
        minillm(*command, "nowhere/x")
    assert asked == []


def test_a_folder_without_students_is_refused(labs, tmp_path):
    (tmp_path / "class").mkdir()
    with pytest.raises(ValueError, match="class holds no folders; it needs one for each student"):
        minillm("grade-folder", "class", "--csv", "class.csv")


def test_the_json_holds_all_that_was_found():
    data = as_json([graded(SOLVED, WRONG)])
    assert (data["format"], data["earned"], data["points"]) == (1, 10, 15)
    first, second = data["lessons"][0]["tasks"]
    assert (first["solved"], first["integration"][0]["outcome"]) == (True, "passed")
    assert second["tests"] == [
        {
            "test": TEST + "border",
            "outcome": "failed",
            "message": "sides: 3, but 4 was due",
            "printed": "",
            "misconception": {"mutant": "half", "why": "You count one side only.", "section": "4.1 Area"},
        }
    ]
    assert json.loads(json.dumps(data)) == data


def test_gradescope_gets_a_test_a_task():
    data = gradescope([graded(SOLVED, WRONG, UNWRITTEN)])
    assert [(test["number"], test["score"], test["max_score"], test["status"]) for test in data["tests"]] == [
        ("4.1", 10, 10, "passed"),
        ("4.2", 0, 5, "failed"),
        ("4.2", 0, 5, "failed"),
    ]
    solved, wrong, unwritten = (test["output"] for test in data["tests"])
    assert solved == "All tests pass."
    assert "sides: 3, but 4 was due" in wrong
    assert unwritten == "Not written yet. Tests that wait for it: 1"
    assert data["output"].endswith("points: 10 of 20")


def test_a_void_lesson_earns_nothing_in_any_file():
    void = graded(SOLVED, void="the lab is no Python")
    assert as_json([void])["earned"] == 0
    (test,) = gradescope([void])["tests"]
    assert (test["score"], test["status"], test["output"]) == (0, "failed", "the lab is no Python")
    (row,) = csv.DictReader(io.StringIO(as_csv([StudentGrades("ada", (void,))])))
    assert (row["4.1"], row["total"], row["notes"]) == ("0", "0", "lesson 4: the lab is no Python")


def test_a_bundle_holds_what_gradescope_runs(labs, tmp_path):
    assert minillm("bundle", "grader", "--lesson", 4, "--pip-flags", "--quiet 'x'")[0] == 0
    assert (tmp_path / "grader.zip").is_file()
    for name in ("setup.sh", "run_autograder"):
        script = tmp_path / "grader" / name
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
    assert "lab grade --lesson 4 --labs" in (tmp_path / "grader" / "run_autograder").read_text()
    assert (tmp_path / "grader" / "course" / "minillm" / "cli.py").is_file()
    with pytest.raises(ValueError, match="grader exists; name a folder that does not"):
        minillm("bundle", "grader")


def test_mutants_that_live_fail_the_command_and_how_each_fails_is_kept(labs, lesson, monkeypatch):
    reports = [
        MutantReport(4, "half", 1, Verdict.KILLED, TEST + "area", "area: 2, but 4 was due"),
        MutantReport(4, "double", 2, Verdict.SURVIVED),
    ]
    monkeypatch.setattr(mutants, "judge_mutants", lambda lesson: iter(reports))
    code, output = minillm("mutants", 4)
    assert code == 1
    assert "1 of 2 wrong solutions died of their own error." in output
    assert json.loads((lesson.folder / "misconceptions.json").read_text()).keys() == {"half", "double"}
    monkeypatch.setattr(mutants, "judge_mutants", lambda lesson: iter(reports[:1]))
    assert minillm("mutants")[0] == 0


def test_a_check_of_mutants_writes_nothing_and_fails_where_one_lives_or_what_is_recorded_is_old(
    labs, lesson, monkeypatch
):
    dead = MutantReport(4, "not-written", 1, Verdict.KILLED)
    monkeypatch.setattr(proof, "prove", lambda lesson: iter([dead, replace(dead, verdict=Verdict.SURVIVED)]))
    file = lesson.folder / "misconceptions.json"
    file.write_text("{}")
    code, output = minillm("mutants", "--check")
    assert (code, output.count("not-written")) == (1, 1)
    monkeypatch.setattr(proof, "prove", lambda lesson: iter([dead]))
    assert minillm("mutants", "--check") == (0, "1 of 1 wrong solution died of its own error.\n")
    file.write_text('{"half": {}}')
    code, output = minillm("mutants", "--check", 4)
    assert code == 1
    assert "misconceptions.json, in half; minillm lab mutants 4 writes it anew" in output
    assert file.read_text() == '{"half": {}}'


def test_the_lab_commands_need_neither_torch_nor_libcst_to_show_their_help():
    code = "import sys, minillm.cli; print({'torch', 'numba', 'libcst'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
