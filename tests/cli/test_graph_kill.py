"""A command that is killed between two nodes continues from its SQLite checkpoint."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.conftest import ROOT, forked
from tests.cli.graphs import HEAD
from tests.doubles.forked_python import forked_python

LIMIT_S = 240

SOURCE = f"""{HEAD}
import os
import threading

def calls(name):
    async def node(state: Tea) -> Tea:
        with open(os.environ["CALLS"], "a") as calls:
            calls.write(name + " ")
        return {{"seen": [name, type((await model.ainvoke(name)).content).__name__]}}
    node.__name__ = name
    return node

def gate(state: Tea) -> Tea:
    if "SIGNAL" in os.environ:
        with open(os.environ["SIGNAL"], "w") as signal:
            signal.write("at the gate")
        threading.Event().wait()
    return {{"seen": ["gate"]}}

graph = chain(Tea, calls("one"), calls("two"), gate, calls("three"))
"""


def command(folder: Path, *args: str) -> list[str]:
    where = ["--checkpointer", f"sqlite:{folder / 't.db'}", "--thread", "t", "--json"]
    return ["-m", "tests.cli.echoing", "run", f"{folder / 'g.py'}:graph", *where, *args]


def kill_at_the_gate(folder: Path) -> None:
    """Run it until the graph says that it is at the gate, and kill it there."""
    fifo = folder / "signal"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with subprocess.Popen(
            [forked_python(), *command(folder, "--input", '{"cups": 1}')],
            cwd=ROOT,
            env={**os.environ, "CALLS": str(folder / "calls"), "SIGNAL": str(fifo)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                ready, _, _ = select.select([reader], [], [], LIMIT_S)
            finally:
                process.kill()
        assert ready
        assert process.returncode == -signal.SIGKILL
    finally:
        os.close(reader)


def go_on(folder: Path) -> Any:
    done = forked(*command(folder), CALLS=str(folder / "calls"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_call_is_lost_and_none_is_made_again(tmp_path: Path) -> None:
    """1. Two calls, then the gate, where the process is killed. 2. The third alone is made."""
    (tmp_path / "g.py").write_text(SOURCE)
    kill_at_the_gate(tmp_path)
    assert (tmp_path / "calls").read_text().split() == ["one", "two"]
    value = go_on(tmp_path)
    assert (tmp_path / "calls").read_text().split() == ["one", "two", "three"]
    seen = ["one", "str", "two", "str", "gate", "three", "str"]
    assert value["results"] == [{"cups": 1, "seen": seen}]
    assert value["programs"][0]["calls"] == 1
