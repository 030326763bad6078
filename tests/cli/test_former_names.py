"""Former names of commands still work, say what they are called now, and are in no list."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.cli.app import call
from tests.cli.conftest import Run, Write

FORMER = {
    ("runs", "ls"): "'agentrt runs' is now called 'agentrt journal'",
    ("why",): "'agentrt why' is now called 'agentrt journal why'",
    ("trace",): "'agentrt trace' is now called 'agentrt journal trace'",
    ("replay",): "'agentrt replay' is now called 'agentrt journal replay'",
    ("answer",): "'agentrt answer' is now called 'agentrt questions answer'",
}


@pytest.mark.parametrize("words", FORMER)
def test_a_former_name_does_the_same_and_says_its_new_one(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*words, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == f"{FORMER[words]}; the old name works until version 0.4\n"
    new = FORMER[words].split("'")[3].split()[1:]
    assert call([*new, *words[1:], "--help"]) == 0
    now = capsys.readouterr()
    assert (now.out, now.err) == (said.out, "")


def test_former_names_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert not listed & {words[0] for words in FORMER}


def test_questions_without_a_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["questions", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_former_option_does_the_same_and_says_its_new_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["run", "no-such-file.py", "--interrupt-reply", "yes"]) == 2
    notice, error = capsys.readouterr().err.splitlines()
    assert notice == "--interrupt-reply is now called --human; the old name works until version 0.4"
    assert "no-such-file.py" in error


@pytest.mark.parametrize(
    "words",
    [
        ["questions", "ls", "--url", "http://127.0.0.1:9"],
        ["journal", "trace", "no.journal", "o.json"],
    ],
)
def test_the_former_option_of_a_runs_id_does_the_same(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = call([*words, "--run", "main-1"])
    now = capsys.readouterr()
    assert call([*words, "--program", "main-1"]) == code
    notice, *rest = capsys.readouterr().err.splitlines()
    assert notice == "--program is now called --run; the old name works until version 0.4"
    assert rest == now.err.splitlines()


def test_an_option_that_is_given_twice_is_not_dropped_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["run", "no-such-file.py", "--input", "a", "--input", "b"]) == 2
    assert "--input is set 2 times" in capsys.readouterr().err
    assert call(["run", "no-such-file.py", "--seed", "1", "--seed=2", "--", "--seed", "3"]) == 2
    notice, error = capsys.readouterr().err.splitlines()
    assert notice.startswith("--seed is set 2 times; ")
    assert "no-such-file.py" in error


def test_a_programs_file_that_uses_a_former_name_is_told_its_line(
    write: Write, run_program: Run, recwarn: pytest.WarningsRecorder
) -> None:
    source = "@program\nasync def main(ctx):\n    return ctx.program_id\n"
    ran = run_program(source)
    assert (ran.code, ran.out) == (0, "main-1\n")
    [warning] = [each for each in recwarn if each.category is DeprecationWarning]
    text = "Context.program_id is now run_id; the old name works until version 0.4"
    assert (str(warning.message), warning.filename) == (text, str(write(source)))
