"""An engine that answers at once, and a command line that runs in this process on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.vllm.options import EngineOptions
from agentrt.request import Call, CallReport, Reply

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
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


class EchoEngine(Executor):
    """Answers each call with its last message. A call that says 'hang' never ends.

    What the options leave open it settles when it starts, as vLLM does.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.model = options.model or "echo"
        self.max_num_seqs = options.max_num_seqs
        self.closed = False

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,), self.max_num_seqs)

    async def start(self, progress: Progress) -> None:
        progress("warming up")
        self.max_num_seqs = self.max_num_seqs or 16

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.messages
        text = str(call.spec.messages[-1]["content"])
        if text == "hang":
            await asyncio.Event().wait()
        report = CallReport(service_s=0.5, steps=2, prompt_tokens=3, output_tokens=2)
        yield Chunk(text, Reply(text, report=report))

    async def snapshot(self) -> Mapping[str, Any]:
        return {"programs": [], "steps": 7}

    async def close(self) -> None:
        self.closed = True


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
    monkeypatch.setattr("agentrt.executors.vllm.engine.VLLMEngine", EchoEngine)

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
