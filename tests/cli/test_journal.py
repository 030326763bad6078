"""`agentrt run --journal`: killed by the kernel, the same command continues; and its mistakes."""

from __future__ import annotations

import io
import json
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, program
from agentrt.errors import EngineStartError
from agentrt.journal import JournalOptions
from tests.cli.conftest import Invoke, Refused, Run, Write, forked
from tests.cli.echo_engine import EchoEngine

SOURCE = """
import asyncio
from agentrt import program, tool
from tests.cli.killed import happened

@tool(idempotent=True)
def look(item: str) -> str:
    happened(f"tool {item}")
    return item.upper()

async def branch(ctx, name):
    return await ctx.tool(look, item=str(await ctx.llm(f"branch {name}")))

async def helper(ctx, text):
    return str(await ctx.llm(f"help {text}"))

@program
async def main(ctx, text):
    helping = ctx.spawn(helper, text)
    found = await asyncio.gather(*(branch(ctx, name) for name in "abc"))
    answer = await ctx.human("go on?")
    return [*found, answer, await helping, str(await ctx.llm("last"))]
"""
GOOD = "@program\nasync def good(ctx, text=None): return str(await ctx.llm('tea'))\n"
ASKS = "@program\nasync def asks(ctx): return [str(await ctx.llm('tea')), await ctx.human('?')]\n"


def command(folder: Path, journal: Path, dies: int = 0) -> subprocess.CompletedProcess[str]:
    """One run of the command, which is killed when it does the ``dies``-th thing of all lives."""
    given = ["--input", "tea", "--human", "yes", "--journal", journal, "--json"]
    run = ("-m", "tests.cli.killed", "run", folder / "p.py", *given)
    return forked(*run, HAPPENED=str(folder / "happened"), DIES=str(dies))


def done_in(journal: Path) -> set[str]:
    """The calls and tools that are recorded, as the engine and the tools write them down."""
    with closing(sqlite3.connect(journal)) as reader:
        rows = reader.execute(
            "SELECT kind, asked FROM agentrt_nodes WHERE state = 'done' AND kind <> 'spawn'"
        ).fetchall()
    asked = [(kind, json.loads(text)) for kind, text in rows if kind in ("call", "tool")]
    return {
        f"call {one['messages'][-1]['content']}" if kind == "call" else
        f"tool {one['arguments']['item']}"
        for kind, one in asked
    }  # fmt: skip


def test_five_kills(tmp_path: Path) -> None:
    """Five processes are killed in the middle of a call or a tool; the sixth ends as one that was
    never disturbed. Nothing that was recorded was done again.
    """
    (tmp_path / "p.py").write_text(SOURCE)
    rng, happened = random.Random(7), tmp_path / "happened"
    journal, lines, recorded = tmp_path / "j", 0, set[str]()
    for _ in range(5):
        killed = command(tmp_path, journal, dies=lines + rng.randint(1, 3))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        new = happened.read_text().splitlines()[lines:]
        lines += len(new)
        assert not recorded & set(new)
        recorded = done_in(journal)
    ended = command(tmp_path, journal)
    assert ended.returncode == 0, ended.stderr
    new = happened.read_text().splitlines()[lines:]
    assert not recorded & set(new)
    assert max(Counter(new).values()) == 1
    result = json.loads(ended.stdout.splitlines()[-1])["results"][0]
    assert result == ["BRANCH A", "BRANCH B", "BRANCH C", "yes", "help tea", "last"]
    again = command(tmp_path, journal)
    assert json.loads(again.stdout.splitlines()[-1])["results"][0] == result
    assert len(happened.read_text().splitlines()) == lines + len(new)


def test_a_question_that_nobody_answered_is_asked_again(
    run_program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. There is nobody to ask: exit code 2. 2. The same command with an answer continues."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    journal = tmp_path / "j"
    assert run_program(ASKS, "--journal", journal).code == 2
    ran = run_program(ASKS, "--journal", journal, "--human", "yes", "--json")
    assert (ran.code, ran.json["results"]) == (0, [["tea", "yes"]])


def test_a_resumed_program_does_not_get_an_answer_twice(
    run_program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    source = """
@program
async def asks(ctx):
    return [await ctx.human('First?'), await ctx.human('Second?')]
"""
    terms = "--journal", tmp_path / "j", "--human", "one"
    assert run_program(source, *terms).code == 2  # nobody answers the second question
    ran = run_program(source, *terms, "--human", "two", "--json")
    assert (ran.code, ran.json["results"]) == (0, [["one", "two"]])


def test_a_program_over_its_time_can_go_on(run_program: Run, tmp_path: Path) -> None:
    hangs = GOOD.replace("'tea'", "'hang'")
    ran = run_program(hangs, "--journal", tmp_path / "j", "--timeout", 0.1)
    assert (ran.code, "run the same command again" in ran.said) == (1, True)


def test_instances_of_one_command(run_program: Run, tmp_path: Path) -> None:
    ran = run_program(GOOD, "--journal", tmp_path / "j", "--n", 3, "--json")
    assert ran.json["results"] == ["tea"] * 3
    with closing(sqlite3.connect(tmp_path / "j")) as reader:
        programs = reader.execute(
            "SELECT id, number FROM agentrt_programs ORDER BY number"
        ).fetchall()
    assert programs == [("good-1", 1), ("good-2", 2), ("good-3", 3)]
    again = run_program(GOOD, "--journal", tmp_path / "j", "--n", 3, "--json")
    assert again.json["results"] == ["tea"] * 3
    assert f"{tmp_path / 'j'} has the results of all runs, so nothing runs again" in again.err
    assert "nothing runs again" not in ran.err


def test_without_a_journal_there_is_none(run_program: Run, tmp_path: Path) -> None:
    assert run_program(GOOD).code == 0
    assert [one.name for one in tmp_path.iterdir() if one.name != "__pycache__"] == ["prog.py"]


def test_code_that_has_changed(run_program: Run, tmp_path: Path) -> None:
    """Exit code 1, and a line that shows both; with ``rerun`` it runs anew."""
    journal = tmp_path / "j"
    run_program(GOOD, "--journal", journal)
    other = GOOD.replace("'tea'", "'coffee'")
    ran = run_program(other, "--journal", journal)
    assert ran.code == 1
    for word in ("good-1", "node 0#0", "'tea'", "'coffee'", "file has changed", "--on-divergence"):
        assert word in ran.said
    ran = run_program(other, "--journal", journal, "--on-divergence", "rerun", "--json")
    assert ran.json["results"] == ["coffee"]


def test_bad_usage(write: Write, invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    journal, path = tmp_path / "j", write(GOOD)
    assert invoke("run", path, "--journal", journal) == 0
    refused("run", path, "--journal", journal, "--input", "x", says=["another input", "'x'"])
    refused("run", path, "--journal-keep", 3, says=["--journal-keep", "--journal FILE"])
    refused("run", path, "--journal", path, says=["is not a journal", str(path)])
    refused("run", path, "--journal", tmp_path / "no" / "j", says=["name a file", "folder"])
    refused("run", path, "--journal", journal, "--journal-keep", 0, says=["--journal-keep"])
    digest: list[Any] = ["--journal", tmp_path / "d", "--journal-content", "digest"]
    assert invoke("run", path, *digest) == 0
    refused("run", path, *digest, says=["--journal-content digest", "full"])


def test_a_graph_has_no_journal(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "g.py").write_text(
        "from langgraph.graph import StateGraph, START\n"
        "made = StateGraph(dict)\nmade.add_node('n', lambda state: state)\n"
        "made.add_edge(START, 'n')\ngraph = made.compile()\n"
    )
    target = f"{tmp_path / 'g.py'}:graph"
    refused("run", target, "--journal", tmp_path / "j", says=["--journal", "--checkpointer"])


@pytest.mark.parametrize(
    ("given", "database", "where"),
    [
        (None, "sqlite:agentrt.db", "agentrt.journal.db"),
        ("mine.db", "postgresql://me@here/name", "mine.db"),
        (None, "postgresql://me@here/name", "postgresql://me@here/name"),
        ("off", "sqlite:agentrt.db", None),
    ],
)
def test_where_a_server_keeps_its_journal(
    given: str | None, database: str, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside its database, or in it if that is PostgreSQL; and none if it serves no programs."""
    pytest.importorskip("sqlalchemy")
    from agentrt.cli import journals
    from agentrt.serving.server import ServedGraph, ServedProgram

    @program
    async def made(ctx: Context) -> None: ...

    monkeypatch.setattr(journals, "SQLiteStore", str)
    monkeypatch.setattr(journals, "postgres_journal", str)
    options: dict[str, Any] = {"journal": given, "database": database, "journal_content": "full"}
    options |= {"journal_keep": 7, "on_divergence": "rerun", "on_unrecordable": "go-on"}
    plan = journals.server_journal(options, [ServedProgram(made, "p.py")])
    assert journals.server_journal(options, [ServedGraph(None, "g.py")]) is None
    if plan is None:
        assert where is None
        return
    assert str(plan.opened()) == where
    assert plan.options == JournalOptions("full", 7, drops=True, reruns=True, skips=True)


def test_the_engine_starts_before_programs_that_are_not_done(
    run_program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first of two programs is done, and one at a time may run. An engine that cannot
    start ends the command, as without a journal, and not each program.
    """

    async def start(self: EchoEngine, progress: object) -> None:
        raise EngineStartError("no memory")

    options = ("--journal", tmp_path / "j", "--max-live", 1)
    assert run_program(GOOD, *options).code == 0
    with monkeypatch.context() as without:
        without.setattr(EchoEngine, "start", start)
        ran = run_program(GOOD, *options, "--n", 2)
    assert (ran.code, ran.out) == (1, "")
    assert ran.said.startswith("error: no memory (vLLM's own log: ")
    assert run_program(GOOD, *options, "--n", 2, "--model", "other").code == 0
    with closing(sqlite3.connect(tmp_path / "j")) as file:
        [text] = file.execute("SELECT value FROM agentrt_journal WHERE key = 'engine'").fetchone()
    assert json.loads(text)["model"] == "other"


def test_programs_that_are_done_need_no_engine(
    run_program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts once they ask for something else, though their file is the same."""
    source = "import os\n" + GOOD.replace("'tea'", "os.environ['WORD']")
    given: list[Any] = ["--journal", tmp_path / "j", "--json"]
    monkeypatch.setenv("WORD", "tea")
    assert run_program(source, *given, "--n", 2).code == 0
    with monkeypatch.context() as without:
        without.delattr(EchoEngine, "start")
        ran = run_program(source, *given)
    assert (ran.code, ran.json["results"], ran.json["programs"][0]["calls"]) == (0, ["tea"], 1)
    monkeypatch.setenv("WORD", "coffee")
    ran = run_program(source, *given, "--on-divergence", "rerun")
    assert (ran.json["results"], "warming up" in ran.err) == (["coffee"], True)
