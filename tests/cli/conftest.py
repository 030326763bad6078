"""The command line, in this process and in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from tests.cli.echo_engine import EchoEngine
from tests.doubles.forked_python import forked_python

ROOT = Path(__file__).resolve().parents[2]
Write = Callable[[str], Path]
Invoke = Callable[..., int]


@dataclass(frozen=True)
class Ran:
    """A command that ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of its output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def said(self) -> str:
        """The last line on stderr."""
        return self.err.splitlines()[-1]


Run = Callable[..., Ran]
Refused = Callable[..., None]


def python(*args: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another process of Python, which has ended, and what it wrote."""
    return _ended(sys.executable, args, cwd, environment)


def forked(*args: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same of `-m MODULE …`, which finds imported what commands need."""
    return _ended(forked_python(), args, cwd, environment)


def _ended(
    python: str, args: Sequence[object], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a program file with the usual import line, and returns its path."""

    def put(text: str) -> Path:
        path = tmp_path / "prog.py"
        path.write_text(f"from agentrt import program\n{text}", encoding="utf-8")
        return path

    return put


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line in this process, with `EchoEngine` for vLLM. Returns the exit code."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # a program's folder goes there
    monkeypatch.setattr("agentrt.engines.VLLMEngine", EchoEngine)

    def run(*args: object) -> int:
        return call([str(arg) for arg in args])

    return run


@pytest.fixture
def command(invoke: Invoke, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs any command, as `invoke` does, and has what it wrote."""

    def run(*args: object) -> Ran:
        capfd.readouterr()
        code = invoke(*args)
        return Ran(code, *capfd.readouterr())

    return run


@pytest.fixture
def run_program(write: Write, command: Run) -> Run:
    """Runs the program of this source, by `agentrt run`; ``name`` picks one of several."""

    def run(source: str, *options: object, name: str = "") -> Ran:
        return command("run", f"{write(source)}{name}", *options)

    return run


@pytest.fixture
def refused(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that is a mistake: exit code 2, and one line on stderr that has ``says``."""

    def run(*args: object, says: Iterable[str]) -> None:
        capsys.readouterr()
        check(capsys, invoke(*args), *says)

    return run


def check(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> None:
    """The command was refused: exit code 2, and one line on stderr with these words."""
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    [line] = err.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
