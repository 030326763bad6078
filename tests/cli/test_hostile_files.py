"""Every file that a command reads, with what nobody would write into it: one line, exit code 2."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from agentrt import files
from agentrt.lab.workloads import fields
from tests.cli.conftest import Invoke, Write

pytestmark = pytest.mark.usefixtures("clean_imports")

PROGRAM = "@program\nasync def good(ctx, given=None): return 1\n"
GRAPH = (
    "from typing import TypedDict\nfrom langgraph.graph import StateGraph\n"
    "class Tea(TypedDict, total=False):\n    text: str\n"
    "graph = StateGraph(Tea).add_node('say', lambda state: {}).set_entry_point('say').compile()\n"
)
SERVE = ("serve", "--port", "0")
SIMULATE = ("simulate", "run", "--policy", "fcfs", "--programs", "2", "--jobs", "1")

READERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "input": ("f.json", ("run", "prog.py", "--input", "@{}")),
    "project": ("langgraph.json", ("run", "{}")),
    "served project": ("langgraph.json", (*SERVE, "{}")),
    "check": ("langgraph.json", ("serve", "--check", "{}")),
    "mcp": ("f.json", ("run", "prog.py", "--mcp", "{}")),
    "keys": ("f.json", (*SERVE, "--api-key-file", "{}")),
    "new key": ("f.json", ("keys", "new", "acme", "--file", "{}")),
    "history": ("f.json", ("run", "prog.py", "--policy", "adaptive", "--history", "{}")),
    "trace": ("f.jsonl", (*SIMULATE, "--workload", "{}")),
    "step model": ("f.json", (*SIMULATE, "--workload", "trace.jsonl", "--step-time", "{}")),
}
"""What reads a file: its name, and the command."""

WRONG: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "text": b"no JSON at all\r\n",
    "cut off": b'{"tenants": {"a": {"ke',
    "a number": b"3",
    "a list": b"[1, 2]",
    "null": b"null",
    "NaN": b'{"version": NaN}',
    "too large a number": b'{"version": 1e999}',
    "many digits": b'{"version": 1' + b"0" * 5000 + b"}",
    "wrong types": b'{"tenants": [1], "graphs": {"a": 3}, "mcpServers": {"a": []}, "version": {},'
    b' "cells": 3, "env": 3, "base_s": {}, "calls": "x", "key": 1, "summaries": []}',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "a mark at its beginning": "\ufeff[]\r\n".encode(),
    "another encoding": '{"tenants": {}}'.encode("utf-16"),
}


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_terabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def nowhere(path: Path) -> None:
    path.symlink_to(path)


FINE = {
    ("new key", "nowhere"),  # a new file takes the link's name
    ("check", "wrong types"),  # it says of each graph what is wrong
    *(("input", any_) for any_ in ("a number", "a list", "null", "wrong types")),
    ("input", "a mark at its beginning"),
}
DATABASES = {
    "served": (*SERVE, "graph.py", "--database", "sqlite:{}"),
    "checkpointer": ("run", "graph.py", "--input", "{{}}", "--checkpointer", "sqlite:{}"),
}
NO_FILES: list[Callable[[Path], None]] = [a_device, a_pipe, a_folder, a_terabyte, nowhere]


@pytest.fixture
def refused(
    tmp_path: Path,
    write: Write,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs a command with a file of a name; returns its only line."""
    write(PROGRAM)
    (tmp_path / "graph.py").write_text(GRAPH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "WAIT_S", 0.01)
    monkeypatch.setattr(fields, "_MOST", 2**22)

    def run(args: tuple[str, ...], name: str) -> str:
        assert invoke(*(arg.format(name) for arg in args)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        assert line.startswith("error: ")
        assert len(line) < 1000
        return line

    return run


@pytest.mark.parametrize(
    ("reader", "what"), [one for one in product(READERS, WRONG) if one not in FINE]
)
def test_content(reader: str, what: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    name, args = READERS[reader]
    (tmp_path / name).write_bytes(WRONG[what])
    assert name in refused(args, name)


@pytest.mark.parametrize(
    ("reader", "make"),
    [one for one in product(READERS, NO_FILES) if (one[0], one[1].__name__) not in FINE],
)
def test_what_is_no_file(
    reader: str, make: Callable[[Path], None], tmp_path: Path, refused: Callable[..., str]
) -> None:
    name, args = READERS[reader]
    make(tmp_path / name)
    assert name in refused(args, name)


@pytest.mark.parametrize("reader", DATABASES)
@pytest.mark.parametrize("what", ["binary", "text", "cut off", "another version"])
def test_databases(reader: str, what: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "f.db"
    path.write_bytes(WRONG.get(what, b""))
    with closing(sqlite3.connect(path if what not in WRONG else ":memory:")) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT)")
        connection.execute("CREATE TABLE agentrt_about (key TEXT, value TEXT)")
        connection.execute("INSERT INTO agentrt_about VALUES ('version', '999')")
        connection.commit()
    assert "f.db" in refused(DATABASES[reader], "f.db")


@pytest.mark.parametrize("reader", DATABASES)
@pytest.mark.parametrize("make", NO_FILES)
def test_no_databases(
    reader: str, make: Callable[[Path], None], tmp_path: Path, refused: Callable[..., str]
) -> None:
    make(tmp_path / "f.db")
    assert "f.db" in refused(DATABASES[reader], "f.db")


@pytest.mark.parametrize("what", ["binary", "deep", "another encoding"])
def test_programs(what: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "f.py").write_bytes(WRONG[what])
    assert "f.py" in refused(("run", "f.py"), "f.py")


@pytest.mark.parametrize("make", NO_FILES)
def test_no_programs(
    make: Callable[[Path], None], tmp_path: Path, refused: Callable[..., str]
) -> None:
    make(tmp_path / "f.py")
    assert "f.py" in refused(("run", "f.py"), "f.py")
