"""The command line: what users see, above all when something is wrong."""

import io
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from minillm import cli
from minillm.commands.generate import INTERRUPTED
from minillm.commands.test import lesson_tests
from minillm.doctor import Finding
from minillm.llm import LLM
from minillm.model.tiny import tiny
from minillm.model.tokenizer import ByteTokenizer
from minillm.request import SamplingParams
from minillm.serving import LanguageModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
EIGHT_TOKENS = ("--max-tokens", "8", "--ignore-eos")


@pytest.fixture
def model(monkeypatch):
    """The tiny model, which the commands get in place of the one that they would load."""
    model = LanguageModel(tiny(), ByteTokenizer())
    monkeypatch.setattr("minillm.llm.load", lambda path, dtype, device: model)
    return model


def run(*arguments):
    return CliRunner().invoke(cli.app, arguments)


def main(monkeypatch, *arguments) -> int:
    """The exit code of the program itself."""
    monkeypatch.setattr(sys, "argv", ["minillm", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_help_names_every_command():
    text = run("--help").stdout
    assert all(name in text for name in ("demo", "generate", "compare", "doctor", "test"))


def test_generate_continues_a_bare_text(model):
    result = run("generate", "hello", "--raw", *EIGHT_TOKENS)
    [output] = LLM(model).generate("hello", GREEDY)
    assert (result.exit_code, result.stdout) == (0, output.outputs[0].text + "\n")


def test_generate_asks_as_the_user_of_a_chat(model):
    result = run("generate", "hello", *EIGHT_TOKENS)
    [output] = LLM(model).chat([{"role": "user", "content": "hello"}], GREEDY)
    assert result.stdout == output.outputs[0].text + "\n"


def test_generate_shows_each_of_several_samples(model):
    result = run("generate", "hello", "--n", "3", "--temperature", "1", *EIGHT_TOKENS)
    assert [f"Sample {index}" in result.stdout for index in (2, 3)] == [True, True]


def test_generate_keeps_statistics_apart_from_the_text(model):
    plain, with_stats = (run("generate", "hello", *EIGHT_TOKENS, *more) for more in ([], ["--stats"]))
    assert with_stats.stdout == plain.stdout
    assert "tokens/s" in with_stats.stderr


def test_ctrl_c_ends_generate_without_a_traceback(model, monkeypatch):
    def interrupted(self, prompts, params):
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", interrupted)
    result = run("generate", "hello")
    assert result.exit_code == INTERRUPTED
    assert isinstance(result.exception, SystemExit)


def test_a_model_that_breaks_down_is_an_error(model):
    model.transformer.norm.weight.data[:] = float("nan")
    result = run("generate", "hello")
    assert result.exit_code == 1
    assert "minillm: the model's logits" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x", "--temperature", "-1"], "temperature is -1.0"),
        (["generate", "x", "--model", "missing.gguf"], "there is no model at missing.gguf"),
        (["generate", "x", "--dtype", "int4"], "dtype 'int4' is unknown"),
        (["test", "--lesson", "99"], "lesson 99 has no tests; lessons with tests: 1,"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(monkeypatch, capsys, arguments, message):
    assert main(monkeypatch, *arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("minillm: ")
    assert message in line


def test_a_prompt_longer_than_the_context_is_a_mistake(model, monkeypatch, capsys):
    assert main(monkeypatch, "generate", "x" * 300) == 2
    assert "exceed the context of" in capsys.readouterr().err


def test_a_lessons_tests_are_found_by_their_number(tmp_path):
    for name in ("test_lesson_01_transformer.py", "test_lesson_11_tokens.py", "test_llm.py"):
        (tmp_path / name).touch()
    assert lesson_tests(tmp_path, 1) == [tmp_path / "test_lesson_01_transformer.py"]


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("limit", 0), ("missing", 1)])
def test_the_doctors_exit_code_tells_whether_anything_is_missing(monkeypatch, verdict, code):
    monkeypatch.setattr("minillm.commands.doctor.examine", lambda: [Finding("x", verdict, "[text]", "remedy")])
    result = run("doctor")
    assert result.exit_code == code
    assert "[text]" in result.stdout
    assert "remedy" in result.stdout


def test_the_tests_of_a_lesson_end_with_whose_code_they_tested(monkeypatch, tmp_path):
    monkeypatch.setattr("minillm.commands.test.run_pytest", lambda *files: 0)
    monkeypatch.setenv("MINILLM_LABS", str(tmp_path))
    monkeypatch.delenv("MAKELEVEL", raising=False)
    lab = tmp_path / "lab_04_paged_attention.py"
    assert run("test", "--lesson", "4").stdout == f"tested: the reference; your {lab} was not: minillm lab run 4\n"


def test_what_the_terminal_cannot_show_is_shown_as_an_escape(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(cli, "app", lambda: print("bad \ud800 \u2026"))
    cli.main()
    stream.flush()
    assert stream.buffer.getvalue() == rb"bad \ud800 \u2026" + b"\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_end_leaves_by_an_exception_so_that_what_was_made_is_cleaned_up(name):
    end = f"cli.app = lambda: os.kill(os.getpid(), signal.{name})"
    program = f"import os, signal\nfrom minillm import cli\n{end}\ntry:\n    cli.main()\nfinally:\n    print('clean')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("clean\n", 128 + signal.Signals[name])
