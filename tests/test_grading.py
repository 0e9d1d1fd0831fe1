"""The grader: who earns what, and that accidents, and those who would rather not solve a task, earn nothing."""

import subprocess
import sys
import textwrap

import pytest
from toy_lesson import LIMITS, ROUNDS, SUBTRACTS, at_work

from minillm.course.cache import tree_hash
from minillm.course.expectations import expectations
from minillm.course.grades import Outcome
from minillm.course.grading import grade, lab_job
from minillm.course.job import Job
from minillm.course.misconceptions import record
from minillm.course.mutants import judge_mutants
from minillm.course.nursery import Nursery
from minillm.course.processes import Void, run

TOTAL = "def total(numbers: list[int]) -> int:\n    return sum(numbers)\n"
MEAN = "def mean(numbers):\n    return total(numbers) / len(numbers)\n"
SKELETON = '''
def total(numbers: list[int]) -> int:
    """The sum."""
    raise NotImplementedError("lesson 91, task 1: add numbers up")


def mean(numbers: list[int]) -> float:
    """The sum by the count."""
    raise NotImplementedError("lesson 91, task 2: their mean")


class Countdown:
    def run(self) -> list[str]:
        raise NotImplementedError("lesson 91, task 3: count down")
'''
COUNT = SKELETON[SKELETON.index("class Countdown") :]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    with at_work(tmp_path_factory.mktemp("toy"), mutants=[SUBTRACTS, ROUNDS]) as toy:
        record(toy.lesson, judge_mutants(toy.lesson, toy.tests, LIMITS))
        yield toy


@pytest.fixture(scope="module")
def nursery(toy):
    with Nursery(toy.folder) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def due(toy, nursery):
    return expectations(toy.lesson, toy.tests, nursery, LIMITS)


def graded(toy, text, tasks=None, **options):
    return grade(toy.lesson, toy.lab(text), tasks, tests=toy.tests, limits=LIMITS, **options)


# Who earns what


@pytest.fixture(scope="module")
def half_done(toy):
    """Task 1 prints, task 2 rounds, and task 3 is not begun."""
    total = "def total(numbers):\n    print('adding', numbers)\n    return sum(numbers)\n"
    return graded(toy, total + MEAN.replace("/", "//") + COUNT)


def test_a_task_earns_all_of_its_points_or_none(half_done):
    assert half_done.void is None
    assert [(task.earned, task.points) for task in half_done.tasks] == [(10, 10), (0, 20), (0, 30)]
    assert (half_done.earned, half_done.points) == (10, 60)


def test_what_is_not_written_is_said_and_not_run(half_done):
    assert [task.written for task in half_done.tasks] == [True, True, False]
    assert [task.whose for task in half_done.tasks] == ["yours", "yours", "reference"]
    assert {report.outcome for report in half_done.tasks[2].reports} == {Outcome.NOT_WRITTEN}


def test_prints_are_shown_with_their_test_and_are_no_fault(half_done):
    printed = [report.printed for report in half_done.tasks[0].reports]
    assert printed == ["adding []\n", "adding [1, 2, 3]\n"]
    assert half_done.tasks[0].solved
    assert half_done.tasks[1].reports[0].printed == ""  # alone, it adds with the reference
    assert half_done.tasks[1].integration[0].printed == "adding [1, 2, 5]\n"


def test_a_failure_that_equals_a_mutants_names_the_misconception(half_done):
    report = half_done.tasks[1].reports[0]
    assert (report.outcome, report.message) == (Outcome.FAILED, "mean: 2, but 2.66667 was due")
    assert report.misconception.why == "You think that rounds."
    assert report.misconception.section == "91.2"


def test_tasks_that_fit_the_reference_but_not_each_other_fail_the_integration_alone(toy):
    total = "def total(numbers):\n    return sum(numbers) if all(numbers) else 0\n"  # no test of task 1 has a 0
    mean = "def mean(numbers):\n    return total([*numbers, 0]) / len(numbers)\n"
    tasks = graded(toy, total + mean + COUNT, [2]).tasks
    assert [task.earned for task in tasks] == [20]
    assert not tasks[0].integrates
    assert tasks[0].integration[0].message.startswith("mean: 0, but 2.66667 was due")


def test_a_task_that_never_ends_is_left_out_of_the_integration(toy):
    endless = "class Countdown:\n    def run(self):\n        while True:\n            pass\n"
    first, third = graded(toy, TOTAL + "\n\n" + endless, [1, 3]).tasks
    assert {report.outcome for report in third.reports} == {Outcome.TIMED_OUT}
    assert (first.solved, first.integration, third.integration) == (True, (), ())


def test_a_test_that_makes_fewer_checks_than_on_the_reference_fails(toy):
    [task] = graded(toy, "class Countdown:\n    def run(self):\n        return []\n", [3]).tasks
    assert [(report.name, report.outcome, report.message.splitlines()[0]) for report in task.reports] == [
        ("counting down", Outcome.FAILED, "steps: the first difference is in pass 0"),
        ("each step", Outcome.FAILED, "step: the code never came to the point where this is due"),
    ]


def test_without_fallback_the_other_tasks_are_the_skeletons(toy):
    [task] = graded(
        toy,
        SKELETON.replace(
            'raise NotImplementedError("lesson 91, task 2: their mean")', "return total(numbers) / len(numbers)"
        ),
        [2],
        fallback=False,
    ).tasks
    assert task.earned == 20
    assert {report.outcome for report in task.integration} == {Outcome.NOT_WRITTEN}


def test_a_changed_signature_is_refused_and_the_other_tasks_are_graded(toy):
    first, second, _ = graded(toy, TOTAL.replace("numbers", "n") + MEAN + COUNT).tasks
    assert "but must stay `def total(numbers)`" in first.refused
    assert (first.whose, first.earned, second.earned) == ("reference", 0, 20)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\n" + TOTAL, "lab_91_toy.py:1: a lab does not import os"),
        (TOTAL + "def mean(:\n", "lab_91_toy.py:3: invalid syntax; correct this line first"),
    ],
)
def test_a_lab_that_is_screened_out_earns_nothing_and_says_why(toy, text, why):
    refused = graded(toy, text)
    assert refused.void.startswith(why)
    assert (refused.earned, refused.points) == (0, 60)


def test_a_lab_that_an_editor_began_with_a_mark_is_graded(toy):
    lab = toy.lab("")
    lab.write_text(TOTAL + MEAN + COUNT, encoding="utf-8-sig")
    [task] = grade(toy.lesson, lab, [1], tests=toy.tests, limits=LIMITS).tasks
    assert task.solved


def test_a_folder_in_the_labs_place_is_void(toy):
    (toy.folder / "folder").mkdir()
    void = grade(toy.lesson, toy.folder / "folder", tests=toy.tests, limits=LIMITS)
    assert void.void == "folder cannot be read: Is a directory; there must be a text file of this name"


def test_the_debugger_runs_the_students_task_on_the_terminal(toy, due):
    lab = toy.lab(TOTAL + MEAN + COUNT)
    program = "import sys; from minillm.course.graded import main; sys.exit(main(sys.argv[1:]))"
    file = toy.folder / "job.json"
    lab_job(toy.lesson, lab, toy.lesson.task(3).functions, due, due.tests[3]).write(file)
    command = [sys.executable, "-c", program, str(file), "debug"]
    debugger = subprocess.run(command, cwd=toy.folder, input="q\n", check=False, capture_output=True, text=True)
    assert "lesson 91, task 3: count down" in debugger.stdout
    assert "(Pdb)" in debugger.stdout


# Nobody earns himself a pass


SWINDLES = {
    "equal": """
        class Same:
            def __eq__(self, other):
                return True

        return Same()
    """,
    "raises": "return {}['key']",
    "exits": "raise SystemExit(0)",
    "fails": "return 1",
    "floods": """
        for _ in range(30):
            print("x" * 100_000)
        return 0
    """,
    "floods for ever": """
        while True:
            print("x" * 100_000)
    """,
    "keeps a thread": """
        import threading, time

        threading.Thread(target=time.sleep, args=(60,)).start()
        return 0
    """,
    "exits at exit": """
        import atexit, os

        atexit.register(os._exit, 0)
        return 1
    """,
    "interrupts": "raise KeyboardInterrupt",
    "swallows": """
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    """,
    "dies": """
        import os

        print("last words")
        os._exit(0)
    """,
    "is fine": """
        import ctypes

        ctypes.CDLL(None).printf(b"from C\\n")
        return 0
    """,
    "dies again": """
        import os

        os._exit(0)
    """,
    "never comes": "return 0",
}
"""A function for each, tried one after the other in as few processes as they leave alive."""

SWINDLED = {
    "equal": (Outcome.WRONG_TYPE, "value: a value of type Same, where numbers"),
    "raises": (Outcome.RAISED, "KeyError: 'key'\n  swindles.py:"),
    "exits": (Outcome.DIED, "SystemExit: 0"),
    "fails": (Outcome.FAILED, "value: 1, but 0 was due"),
    "floods": (Outcome.FLOODED, "printed more than 1 MiB; print less"),
    "floods for ever": (Outcome.FLOODED, "printed more than 1 MiB; print less"),
    "keeps a thread": (Outcome.LEFT_THREADS, "threads that it started still run; end them"),
    "exits at exit": (Outcome.FAILED, "value: 1, but 0 was due"),
    "interrupts": (Outcome.DIED, "KeyboardInterrupt"),
    "swallows": (Outcome.TIMED_OUT, "no end within 2 seconds"),
    "dies": (Outcome.DIED, "the process ended, as by os._exit or a crash"),
    "is fine": (Outcome.PASSED, ""),
    "dies again": (Outcome.DIED, "the process ended, as by os._exit or a crash"),
    "never comes": (
        Outcome.NOT_RUN,
        "4 tests before this one did not end, or ended the whole process; correct those first",
    ),
}
"""How each is reported, and its message's beginning."""


SWINDLED_TESTS = """import pytest
import victim


@pytest.mark.task(91, 1)
@pytest.mark.parametrize("n", range({count}))
def test_it(check, n):
    check("value", getattr(victim, f"f{{n}}")(), 0)
"""


def functions(bodies):
    """A module of functions f0, f1, ... with these bodies."""
    texts = (textwrap.indent(textwrap.dedent(body).strip(), "    ") for body in bodies)
    return "\n\n".join(f"def f{number}():\n{text}\n" for number, text in enumerate(texts))


@pytest.fixture(scope="module")
def swindles(tmp_path_factory):
    """Reports by name. The lab is run as it is: most of it would be screened out."""
    folder = tmp_path_factory.mktemp("swindles")
    names = list(SWINDLES)
    with at_work(folder, tests=SWINDLED_TESTS.format(count=len(names))) as toy, Nursery(folder) as nursery:
        (folder / "victim.py").write_text(functions(["return 0"] * len(names)))
        due = expectations(toy.lesson, toy.tests, nursery, LIMITS)
        lab = toy.lab(functions(SWINDLES.values()), "swindles.py")
        tasks = {"victim": [f"f{number}" for number in range(len(names))]}
        job = Job(due.files, due.tests[1], str(lab), tasks, due=str(due.file))
        return dict(zip(names, run(job, nursery, LIMITS), strict=True))


@pytest.mark.parametrize("name", SWINDLES)
def test_whatever_a_function_does_is_reported_for_its_test(swindles, name):
    outcome, message = SWINDLED[name]
    assert (swindles[name].outcome, swindles[name].message[: len(message)]) == (outcome, message)


def test_what_was_printed_before_a_death_is_shown_and_a_flood_is_cut(swindles):
    assert swindles["dies"].printed == "last words\n"
    assert swindles["is fine"].printed == "from C\n"
    assert len(swindles["floods for ever"].printed) == 4000


TAMPERS = {
    "the comparison": "from minillm.course import checks\n    checks.compare_plain = lambda *_: None",
    "the comparison of what it knows by name": """
    from minillm.course import checks

    honest = checks.compare_plain

    def compare(what, *pair):
        if what in ("a value", "what the grader sees"):
            honest(what, *pair)

    checks.compare_plain = compare
    """,
}


@pytest.mark.parametrize("name", TAMPERS)
def test_a_run_in_which_a_check_that_must_fail_passes_is_void(toy, due, nursery, name):
    lab = toy.lab(f"def total(numbers):\n    {TAMPERS[name]}\n    return 7\n", "tampers.py")
    job = lab_job(toy.lesson, lab, toy.lesson.task(1).functions, due, due.tests[1])
    with pytest.raises(Void, match="a check that must fail passed, so nothing of this run counts"):
        run(job, nursery, LIMITS)


NOISY = """
def total(numbers):
    import os
    for file in range(3, 40):
        try:
            os.write(file, NOISE)
        except OSError:
            pass
    return 7
"""

NOISE = {
    "no JSON": b"junk\n",
    "no event": b"5\n",
    "an unknown outcome": b'{"event": "finish", "test": "a", "canary": false, "sound": true, "outcome": "won"}\n',
    "no text": b'{"event": "broken", "outcome": "failed", "message": 5, "failure": ""}\n',
    "no checks": b'{"event": "finish", "test": "a", "canary": false, "sound": true, '
    b'"outcome": "failed", "message": "", "failure": "", "checks": [1]}\n',
    "too deep": b"[" * 20_000 + b"\n",
}


@pytest.mark.parametrize("name", NOISE)
def test_a_run_that_reports_what_no_run_reports_is_void(toy, due, nursery, name):
    lab = toy.lab(NOISY.replace("NOISE", repr(NOISE[name])), "noisy.py")
    job = lab_job(toy.lesson, lab, toy.lesson.task(1).functions, due, due.tests[1])
    with pytest.raises(Void, match="the process reported what no test reports, so nothing of this run counts"):
        run(job, nursery, LIMITS)


def test_a_lesson_whose_tests_let_a_known_wrong_solution_pass_is_void(tmp_path):
    with at_work(tmp_path, mutants=[("does-nothing", 1, "sum_ = 0", "sum_ = 0 * 1")]) as toy:
        void = graded(toy, TOTAL + MEAN + COUNT, [1])
    assert void.void == "the known wrong solution does-nothing passes every test, so nothing of this run counts"
    assert void.earned == 0


# What is due


def test_a_cache_that_cannot_be_made_is_said_with_the_variable_that_names_it(toy, monkeypatch):
    monkeypatch.setenv("MINILLM_CACHE", str(toy.lab("", "file") / "cache"))
    with pytest.raises(ValueError, match="cannot be made: Not a directory; set MINILLM_CACHE to a folder of yours"):
        graded(toy, TOTAL)


def test_what_is_due_is_recorded_once_for_a_state_of_the_tree(toy, nursery, monkeypatch):
    states = iter(["first", "first", "second"])
    monkeypatch.setattr("minillm.course.expectations.tree_state", lambda tests: next(states))
    found = [expectations(toy.lesson, toy.tests, nursery, LIMITS)]
    recorded = found[0].file.stat().st_mtime_ns
    found += [expectations(toy.lesson, toy.tests, nursery, LIMITS) for _ in range(2)]
    assert [each.file.name for each in found] == [f"lesson_91_{state}.json" for state in ("first", "first", "second")]
    assert found[0].file.stat().st_mtime_ns == recorded


def test_the_state_of_the_tree_is_that_of_all_its_code(tmp_path):
    (tmp_path / "test_it.py").write_text("x = 1\n")
    before = tree_hash([tmp_path])
    (tmp_path / "notes.md").write_text("no code")
    assert tree_hash([tmp_path]) == before
    (tmp_path / "test_it.py").write_text("x = 2\n")
    assert tree_hash([tmp_path]) != before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "check('mean', toy.mean([1]), 2)",
            "the reference itself fails tests/test_lesson_91_toy.py::test_it: mean: 1, ",
        ),
        ("os._exit(0)", "the reference's own run of tests/test_lesson_91_toy.py died"),
    ],
)
def test_a_reference_that_fails_its_own_tests_voids_all(tmp_path, change, why):
    tests = f"import os\nimport pytest\nimport toy\n\n@pytest.mark.task(91, 1)\ndef test_it(check):\n    {change}\n"
    with at_work(tmp_path, tests=tests) as toy:
        assert graded(toy, TOTAL).void.startswith(why)


SKIPPED = """import pytest


@pytest.mark.task(91, 1)
@pytest.mark.parametrize("machine", ["large", "small"])
def test_it(check, machine):
    if machine == "large":
        pytest.skip("not on this machine")
    check("it", 1, 1)
"""


def test_a_test_that_the_reference_skips_is_no_part_of_its_task(tmp_path):
    with at_work(tmp_path, tests=SKIPPED) as toy, Nursery(tmp_path) as nursery:
        assert expectations(toy.lesson, toy.tests, nursery, LIMITS).tests[1] == (
            "tests/test_lesson_91_toy.py::test_it[small]",
        )


def test_a_lesson_without_tests_is_void(tmp_path):
    with at_work(tmp_path) as toy:
        (toy.tests / "test_lesson_91_toy.py").unlink()
        assert "lesson 91 has no tests" in graded(toy, TOTAL).void
