"""Workers in processes of their own, as `agentrt worker` makes them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.forked_python import forked_python

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(__file__).with_name("worker_tools.py")


class WorkerProcess:
    """A worker that can be killed."""

    def __init__(
        self, url: str, *options: str, folder: Path, python: str = "", **environment: str
    ) -> None:
        command = ["-m", "agentrt.cli", "worker", str(TOOLS), "--broker", url, *options]
        self.process = subprocess.Popen(
            [python or forked_python(), *command],
            cwd=ROOT,
            env={**os.environ, "FOLDER": str(folder), **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def name(self) -> str:
        """What it calls itself, once it offers its tools."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert " offers " in line, line + self.process.stderr.read()
        return line.split()[0]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and its last words."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextmanager
def workers(
    count: int, url: str, *options: str, folder: Path, python: str = ""
) -> Iterator[list[WorkerProcess]]:
    """So many workers, all of which have offered their tools."""
    made = [WorkerProcess(url, *options, folder=folder, python=python) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate()
