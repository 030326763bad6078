"""Bad usage of `agentrt run` with graphs: exit code 2, one line, the way out."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Refused, Run, Write
from tests.cli.graphs import ASKS, ECHO, FORK, HEAD

pytestmark = pytest.mark.usefixtures("clean_imports")

ONE = "def one(state: Tea) -> Tea:\n    return {}\n"
SQLITE = ["--checkpointer", "sqlite:t.db"]
ON_T = [*SQLITE, "--thread", "t"]
NO_ID = "0" * 32
PROGRAM = "@program\nasync def good(ctx): return 1\n"
WITH_INPUT = ["--input", '{"text": "a"}']
CHAT = f"{HEAD}def talk(state: MessagesState): return {{}}\ngraph = chain(MessagesState, talk)\n"
WRONG_MESSAGES = {
    '{"messages": 5}': ["takes messages as 'messages', such as", "not 5: Unsupported"],
    '{"messages": [{"content": "x"}]}': ["must contain 'role' and 'content'"],
    '{"messages": [{"role": "king", "content": "x"}]}': ["Unexpected message type: 'king'"],
    '{"messages": [{"role": "user", "content": 5}]}': ["content: Input should be a valid"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files to fall over, and nobody at the terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.db").write_text("tea\n" * 99)
    (tmp_path / "folder.db").mkdir()
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE teas (name TEXT)")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "suffix", "options", "words"),
    [
        ("import langgraph.graph\n", "", [], ["no program", "compile a LangGraph graph"]),
        (f"{ECHO}other = chain(Tea, say)\n", "", [], ["several programs (graph, other)"]),
        (f"{PROGRAM}{ECHO}", "", [], ["(good, graph)", "prog.py:good"]),
        (ECHO, ":tea", [], ["'tea'", "available: graph"]),
        (f"{HEAD}def make(): pass\n", ":make", [], ["'make'", "it is None"]),
        (f"{HEAD}def make(a, b): pass\n", ":make", [], ["required parameters b"]),
        (ECHO, "", [], ["graph 'graph' needs an input", "--input '{\"text\":"]),
        (ECHO, "", ["--input", "tea"], ["the fields 'text', 'cups', 'seen'", "JSON object"]),
        (ECHO, "", ["--input", "[1]"], ["takes an object with the fields 'text'", "not [1]"]),
        (ECHO, "", ["--input", '{"tex": "a"}'], ["has no field 'tex'", "'text', 'cups'"]),
        (ECHO, "", ["--input", "{}"], ["empty input", "'text', 'cups', 'seen'"]),
        (ECHO, "", ["--input", '{"text": 3}'], ["takes text as 'text', not 3"]),
        (ECHO, "", ["--input", '{"cups": true}'], ["takes an integer as 'cups', not true"]),
        (ECHO, "", ["--input", '{"seen": "a"}'], ["takes a list as 'seen', not \"a\""]),
        *((CHAT, "", ["--input", wrong], words) for wrong, words in WRONG_MESSAGES.items()),
        (ECHO, "", [*WITH_INPUT, "--thread", " "], ["--thread ''", "empty"]),
        (ECHO, "", [*WITH_INPUT, "--thread", "t"], ["--thread t", "sqlite:FILE"]),
        (ECHO, "", [*WITH_INPUT, "--journal", "j"], ["--journal is for agentrt programs"]),
        (ECHO, "", [*WITH_INPUT, "--journal-keep", "3"], ["a graph does not have; leave them out"]),
        (ECHO, "", ON_T, ["unknown thread 't'", "sqlite:t.db has no checkpoint", "--input"]),
        (ECHO, "", [*ON_T[2:], "--checkpointer", "memory"], ["unknown thread 't'", "memory has"]),
        (ECHO, "", ["--checkpointer", "redis:x"], ["'redis:x'", "memory or sqlite:FILE"]),
        (ECHO, "", ["--checkpointer", "sqlite:"], ["'sqlite:'", "sqlite:FILE"]),
        (ECHO, "", ["--checkpointer", "sqlite:no/t.db"], ["folder 'no' does not exist"]),
        (ECHO, "", ["--checkpointer", "sqlite:folder.db"], ["folder.db is a folder"]),
        (ECHO, "", [*WITH_INPUT, "--checkpointer", "sqlite:notes.db"], ["not a database", "new"]),
        (ECHO, "", [*WITH_INPUT, "--checkpointer", "sqlite:other.db"], ["no checkpoints"]),
        (ECHO, "", [*ON_T, "--human", "@no.txt"], ["--human @no.txt: no such"]),
        (PROGRAM, "", ["--thread", "t"], ["--thread is for LangGraph graphs", "'good'"]),
        (PROGRAM, "", SQLITE, ["--checkpointer is for LangGraph graphs"]),
    ],
)  # fmt: skip
def test_before_anything_runs(
    source: str, suffix: str, options: list[str], words: list[str], write: Write, refused: Refused
) -> None:
    refused("run", f"{write(source)}{suffix}", *options, says=words)


def test_a_pydantic_state_needs_all_its_fields(write: Write, refused: Refused) -> None:
    path = write(
        f"{HEAD}from pydantic import BaseModel\nclass Form(BaseModel):\n    who: str\n"
        "    why: str\ndef one(state: Form) -> dict:\n    return {}\ngraph = chain(Form, one)\n"
    )
    refused("run", path, "--input", '{"who": "a"}', says=["'why'", "to its input"])


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (ASKS, ["--human", f"{NO_ID}=a"], [NO_ID, "Is it good?"]),
        (FORK, ["--human", "a"], ["left?", "right?", "=TEXT"]),
        (ASKS, ["--input", '{"cups": 1}', "--human", "a"], ["leave --input out"]),
        (ECHO, ["--human", "a"], ["thread 't' has no pending interrupt"]),
        (ECHO, [], ["thread 't' has ended", "--input"]),
    ],
)
def test_a_thread_that_stands_otherwise(
    source: str,
    options: list[str],
    words: list[str],
    write: Write,
    invoke: Invoke,
    refused: Refused,
) -> None:
    path = write(source)
    assert invoke("run", path, *WITH_INPUT, *ON_T) in (0, 3)
    refused("run", path, *ON_T, *options, says=words)


def test_a_reply_that_does_not_fit_a_later_question(run_program: Run) -> None:
    """The engine runs by then: its progress is on stderr, too."""
    replies = ["--human", "yes", "--human", f"{NO_ID}=Ann"]
    ran = run_program(ASKS, *WITH_INPUT, *replies)
    assert (ran.code, ran.out, "Traceback" in ran.err) == (2, "", False)
    assert ran.said.startswith(f"error: --human {NO_ID}=…: ")


def test_a_model_that_is_not_served(run_program: Run) -> None:
    source = ECHO.replace("ChatAgentRT(max_tokens=8)", "ChatAgentRT(model='big')")
    ran = run_program(source, *WITH_INPUT)
    assert (ran.code, "Traceback" in ran.err) == (2, False)
    assert ran.said.startswith("error: run graph-1: this engine serves 'echo', not model 'big'")
    assert ran.said.endswith("or start the engine with --model")


def test_a_checkpointer_that_cannot_wait(write: Write, refused: Refused) -> None:
    path = write(
        "import sqlite3\nfrom langgraph.checkpoint.sqlite import SqliteSaver\n"
        f"{HEAD}{ONE}saver = SqliteSaver(sqlite3.connect('own.db', check_same_thread=False))\n"
        "graph = chain(Tea, one, checkpointer=saver)\nimport atexit\n"
        "atexit.register(saver.conn.close)\n"
    )
    words = ["SqliteSaver, has no async methods", "--checkpointer sqlite:FILE"]
    refused("run", path, *WITH_INPUT, says=words)


def test_a_factory_that_raises(run_program: Run, folder: Path) -> None:
    ran = run_program("def make():\n    raise KeyError('tea')\n", *WITH_INPUT, name=":make")
    path = folder / "prog.py"
    assert ran.code == 1
    assert ran.err == f"error: cannot import {path}: KeyError: 'tea' ({path}:3)\n"


@pytest.mark.parametrize(
    ("project", "suffix", "words"),
    [
        ("{", "", ["langgraph.json: bad JSON"]),
        ("[]", "", ["langgraph.json", "object"]),
        ({}, "", ["'graphs'", "./agent.py:graph"]),
        ({"graphs": {"a": "./a.py"}}, "", ["graph 'a' is \"./a.py\"", "./agent.py:graph"]),
        ({"graphs": {"a": 3}}, "", ["graph 'a' is 3"]),
        ({"graphs": {"a": "./no.py:g"}}, "", ["graph 'a'", "./no.py"]),
        ({"graphs": {"a": "./prog.py:no"}}, "", ["graph 'a'", "variable 'no'"]),
        ({"graphs": {"a": "./prog.py:model"}}, "", ["'a'", "type ChatAgentRT"]),
        ({"graphs": {"a": "./prog.py:graph", "b": "./prog.py:say"}}, "", ["several graphs (a, b)"]),
        ({"graphs": {"a": "./prog.py:graph"}}, ":b", ["graph 'b'", "available: a"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": ".env"}, "", ["'env'", "'.env'"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": "bad.env"}, "", ["bad.env:1", "NAME=VALUE"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": 3}, "", ["'env'", "the name of a file"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": {"A": None}}, "", ["'A' to null"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": {"A=B": 1}}, "", ["'A=B' to 1"]),
        ({"graphs": {"a": "./prog.py:graph"}, "env": {"A": "\0"}}, "", ["'A'", "a text"]),
        ({"graphs": {"a": "./prog.py:graph"}, "dependencies": "."}, "", ["must be a list"]),
        ({"graphs": {"a": "./prog.py:graph"}, "dependencies": ["./x"]}, "", ["dependency './x'"]),
    ],
)
def test_a_project(
    project: object, suffix: str, words: list[str], folder: Path, write: Write, refused: Refused
) -> None:
    write(ECHO)
    (folder / "bad.env").write_text("KEY\n")
    text = project if isinstance(project, str) else json.dumps(project)
    (folder / "langgraph.json").write_text(text)
    refused("run", f".{suffix}", *WITH_INPUT, says=words)
