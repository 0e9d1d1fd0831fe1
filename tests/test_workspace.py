"""A student's folder: labs are copied once, kept on a reset, and compared with the skeleton and the reference."""

import json
from pathlib import Path

import pytest
from shapes_lesson import REFERENCE, SKELETON, make_lesson

from minillm.course.lesson import LessonError
from minillm.course.screening import Refused, read_lab
from minillm.course.workspace import (
    FOLDER,
    Workspace,
    differences,
    signature_changes,
    written_functions,
)


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return make_lesson(tmp_path)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "labs")


def test_the_folder_is_the_checkouts_unless_a_variable_names_another(tmp_path):
    assert Workspace.from_environment({}).folder == FOLDER
    assert Workspace.from_environment({"MINILLM_LABS": str(tmp_path)}).folder == tmp_path


def test_a_lab_is_copied_once(workspace, lesson):
    assert workspace.lab(lesson) == workspace.folder / "lab_04_shapes.py"
    assert workspace.open(lesson)
    workspace.lab(lesson).write_text("mine")
    assert not workspace.open(lesson)
    assert workspace.lab(lesson).read_text() == "mine"


def test_a_lesson_without_a_skeleton_is_said_to_have_none(workspace, lesson):
    (lesson.folder / "lab.py").unlink()
    with pytest.raises(LessonError, match=r"lesson 4 has no lab\.py yet; minillm lab skeletons writes it"):
        workspace.open(lesson)


def test_a_reset_keeps_each_version_under_a_number(workspace, lesson):
    assert workspace.reset(lesson) is None
    for number in range(1, 12):
        workspace.lab(lesson).write_text(f"version {number}")
        assert workspace.reset(lesson) == workspace.folder / f"lab_04_shapes.{number}.backup"
    assert workspace.lab(lesson).read_text() == SKELETON
    assert (workspace.folder / "lab_04_shapes.11.backup").read_text() == "version 11"


def test_files_that_are_named_much_like_a_backup_are_none(workspace, lesson):
    workspace.open(lesson)
    for name in ("7x", "x.7", "7.8", "old"):
        (workspace.folder / f"lab_04_shapes.{name}.backup").touch()
    assert workspace.reset(lesson) == workspace.folder / "lab_04_shapes.1.backup"


def test_a_link_to_nothing_is_no_place_for_a_lab(workspace, lesson):
    workspace.folder.mkdir()
    workspace.lab(lesson).symlink_to(workspace.folder / "elsewhere")
    with pytest.raises(
        LessonError, match=r"lab_04_shapes\.py is a link to .*elsewhere, which is not there; delete the"
    ):
        workspace.open(lesson)
    assert not (workspace.folder / "elsewhere").exists()


def test_a_folder_that_cannot_be_made_is_said_with_the_variable_that_names_it(tmp_path, lesson):
    (tmp_path / "file").touch()
    with pytest.raises(
        LessonError, match=r"file/labs cannot be made: Not a directory; set MINILLM_LABS to a folder of"
    ):
        Workspace(tmp_path / "file" / "labs").open(lesson)


@pytest.mark.parametrize("level", [-5, 4, "2"])
def test_a_level_of_hints_that_there_is_none_of_counts_as_none_seen(workspace, lesson, level):
    workspace.folder.mkdir()
    (workspace.folder / ".hints.json").write_text(json.dumps({"4.1": level}))
    assert workspace.hint(lesson, lesson.task(1))[0] == 1


@pytest.mark.parametrize("text", ["no JSON", "[" * 100_000])
def test_notes_that_cannot_be_read_are_to_be_deleted(workspace, lesson, text):
    workspace.open(lesson)
    (workspace.folder / ".solved.json").write_text(text)
    with pytest.raises(LessonError, match=r"\.solved\.json is no JSON; delete it"):
        workspace.is_solved(lesson, lesson.task(1))


def names(functions):
    return [function.name for function in functions]


WRITTEN = {
    "the skeleton": ("", "", []),
    "an older goal": ("task 2: the border", "task 7: a goal of last year", []),
    "another comment and docstring": ("def border(side):\n", 'def border(side):\n    """Mine."""  # soon\n', []),
    "a body": ('raise NotImplementedError("lesson 4, task 2: the border")', "return 3", ["border"]),
    "an exception of their own": ('"lesson 4, task 2: the border"', '"later"', ["border"]),
    "nothing at all": ('raise NotImplementedError("lesson 4, task 2: the border")', "pass", ["border"]),
    "something before it": ("def border(side):\n", "def border(side):\n    side += 1\n", ["border"]),
    "no function": ("def border", "def edge", []),
}


@pytest.mark.parametrize(("old", "new", "written"), WRITTEN.values(), ids=WRITTEN)
def test_a_function_is_written_when_its_body_is_not_the_skeletons(lesson, old, new, written):
    text = SKELETON.replace(old, new)
    assert names(written_functions(text, lesson.task(2))) == written
    assert [task.number for task in lesson.tasks if written_functions(text, task)] == [2] * len(written)


def test_a_task_of_several_functions_is_written_when_one_is(lesson):
    text = SKELETON.replace('raise NotImplementedError("lesson 4, task 1: the area")', "return 1", 1)
    assert names(written_functions(text, lesson.task(1))) == ["Square.area"]


def test_a_lab_that_is_no_python_is_refused_with_its_line(workspace, lesson):
    workspace.open(lesson)
    lab = workspace.lab(lesson)
    lab.write_text(SKELETON.replace("def border(side):", "def border(side:"))
    with pytest.raises(Refused, match=r"lab_04_shapes\.py:14: .*; correct this line first"):
        read_lab(lab)


def test_a_signature_that_is_not_todays_is_named_with_the_remedy(lesson):
    assert signature_changes(lesson, SKELETON.replace("(side)", "(side: int) -> int")) == []
    text = SKELETON.replace("area, of=4", "area").replace("def border", "def edge")
    changes = signature_changes(lesson, text)
    assert [str(change) for change in changes] == [
        "side is `def side(area)` in your lab, but `def side(area, of=4)` in today's skeleton; "
        "change this line, and keep your body",
        "your lab has no border, which the lesson asks for now; add `def border(side)` to it",
    ]


def test_the_difference_to_the_reference_is_that_of_the_tasks_functions(lesson):
    text = SKELETON.replace('raise NotImplementedError("lesson 4, task 1: the area")', "return 2 * self.side", 1)
    lines = differences(text, lesson.task(1))
    assert [line for line in lines if line.startswith("---")] == ["--- yours: Square.area", "--- yours: side"]
    assert lines[:9] == [
        "--- yours: Square.area",
        "+++ reference: Square.area",
        "@@ -1,4 +1,5 @@",
        " @property",
        " def area(self):",
        '     """Side by side."""',
        "-    return 2 * self.side",
        "+    # the square",
        "+    return self.side**2",
    ]
    assert differences(REFERENCE, lesson.task(1)) == []
    assert "+    return 4 * side" in differences("", lesson.task(2))


def test_each_hint_comes_after_the_one_before(workspace, lesson):
    first, second = lesson.tasks
    assert [workspace.hint(lesson, first) for _ in range(4)] == [
        (1, "a nudge"),
        (2, "the idea"),
        (3, "the way"),
        (3, "the way"),
    ]
    assert (workspace.hints_seen(lesson, first), workspace.hints_seen(lesson, second)) == (3, 0)
    assert workspace.hint(lesson, second, level=2) == (2, "idea")
    assert workspace.hint(lesson, second, level=1) == (1, "nudge")
    assert workspace.hint(lesson, second) == (3, "way")
    with pytest.raises(LessonError, match="there is no hint of level 4; levels are 1 to 3"):
        workspace.hint(lesson, first, level=4)


def test_notes_that_are_no_json_are_refused_with_the_remedy(workspace, lesson):
    workspace.open(lesson)
    Path(workspace.folder, ".hints.json").write_text("{")
    with pytest.raises(LessonError, match=r"hints\.json is no JSON; delete it"):
        workspace.hint(lesson, lesson.task(1))


def test_a_task_stays_solved_until_its_functions_change(workspace, lesson):
    workspace.open(lesson)
    lab = workspace.lab(lesson)
    workspace.note_solved(lesson, lesson.tasks)
    lab.write_text(
        SKELETON.replace('4, task 2: the border")', '4, task 2: the border")\n    return 1  # now') + "# end\n"
    )
    assert [workspace.is_solved(lesson, task) for task in lesson.tasks] == [True, False]
