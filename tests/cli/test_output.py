"""Output that nobody reads any more, that finds no room, or that was closed before the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrt.cli.faults import BUG, FAILED, UNREAD, exit_code_of
from tests.cli.conftest import Write

ROOT = Path(__file__).resolve().parents[2]
LONG = "@program\nasync def p(ctx):\n    return 'x' * 1_000_000\n"
PRINTS = "@program\nasync def p(ctx):\n    for n in range(100_000): print('line', n)\n"
HELLO = "@program\nasync def p(ctx):\n    return (await ctx.llm('hello')).text\n"
RUN = ("tests.cli.echoing", "run")
SIMULATE = ("benchmarks", "simulate", "run", "--workload", "react", "--programs", "9", "--jobs=1")


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", *map(str, args)]


@pytest.mark.parametrize(
    ("args", "source"),
    [(RUN, LONG), (RUN, PRINTS), (SIMULATE, None)],
)
def test_a_reader_that_leaves_ends_it_quietly(
    args: tuple[str, ...], source: str | None, write: Write
) -> None:
    path = [] if source is None else [write(source)]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(
            command(*args, *path),
            check=False,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == UNREAD
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


def test_a_full_disk_is_one_line(write: Write) -> None:
    with Path("/dev/full").open("wb") as out:
        done = subprocess.run(
            command(*RUN, write(HELLO)),
            check=False,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == FAILED
    assert done.stderr.splitlines()[-1] == "error: cannot write: no space left on device"
    assert "Traceback" not in done.stderr


def test_a_log_that_finds_no_room_is_told_to_the_user(write: Write) -> None:
    """What an engine prints while it starts goes to a file; the error does not go there."""
    path = write(
        "import resource\n"
        "from tests.cli.echo_engine import EchoEngine\n"
        "start = EchoEngine.start\n"
        "async def noisy(self, progress):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "    for _ in range(100): print('x' * 100)\n"
        "    await start(self, progress)\n"
        "EchoEngine.start = noisy\n"
        f"{HELLO}"
    )
    done = subprocess.run(
        command(*RUN, path), check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == FAILED
    assert done.stderr.splitlines()[-1] == "error: cannot write: file too large"


def shell(line: str, folder: Path = ROOT) -> tuple[int, str]:
    """The exit code and the output of a line for bash."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", line], check=False, stdout=subprocess.PIPE, cwd=folder, env=environment
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("closed", ["2>/dev/full", "<&- 2>&-"])
def test_what_cannot_be_said_ends_nothing(closed: str, write: Write) -> None:
    line = " ".join(command(*RUN, write(HELLO)))
    assert shell(f"{line} {closed}") == (0, "hello\n")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path, write: Write) -> None:
    """With all closed the command does its work, and what is printed goes nowhere."""
    path = write(
        "@program\nasync def p(ctx):\n"
        "    with open('told', 'w') as file:\n        file.write(str(file.fileno() > 2))\n"
        "        print('lost', flush=True)\n"
    )
    line = " ".join(command(*RUN, path))
    assert shell(f"{line} <&- >&- 2>&-", tmp_path) == (0, "")
    assert (tmp_path / "told").read_text("utf-8") == "True"


def test_a_usage_error_keeps_its_exit_code_when_it_cannot_be_said() -> None:
    assert shell(" ".join(command("agentrt.cli", "bogus", "2>/dev/full"))) == (2, "")


def test_faults_of_the_same_kinds_elsewhere_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk under any file is no bug, wherever in a group it is; a broken pipe is one,
    unless it is the output's.
    """
    full = OSError(28, "No space left on device", "agentrt.db")
    assert exit_code_of(ExceptionGroup("tasks", [ValueError(), ExceptionGroup("", [full])])) == 1
    assert capsys.readouterr().err == "error: cannot write to agentrt.db: no space left on device\n"
    assert exit_code_of(BrokenPipeError(32, "Broken pipe")) == BUG
