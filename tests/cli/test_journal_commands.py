"""`agentrt journal`: what a journal has of programs, compared, and forked."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt.journal.analysis.reading import ReadingStore
from agentrt.journal.analysis.wall import read_program
from tests.cli.conftest import Invoke, Refused, Run, Write
from tests.journal.made import Made
from tests.journal.test_misses import RULES, chat

SOURCE = """
import asyncio
from agentrt import tool

@tool
def look(item: str) -> str:
    return item.upper()

async def branch(ctx, name):
    return await ctx.tool(look, item=str(await ctx.llm(f"branch {name}")))

@program
async def main(ctx, text):
    first = str(await ctx.llm(f"plan \\x1b[31m{text}"))
    found = await asyncio.gather(*(branch(ctx, name) for name in "ab"))
    answer = await ctx.human("go on?")
    return str(await ctx.llm(f"{first} {found} {answer}"))
"""
RESULT = "plan \x1b[31mtea ['BRANCH A', 'BRANCH B'] yes"


@pytest.fixture
def journal(write: Write, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of one program, `main-1`. Nobody is there to answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    path, given = tmp_path / "j", ["--input", "tea", "--human", "yes"]
    assert invoke("run", write(SOURCE), *given, "--journal", path) == 0
    return path


@pytest.fixture
def runs(command: Run) -> Run:
    return partial(command, "journal")


@pytest.fixture
def prog(tmp_path: Path) -> Path:
    return tmp_path / "prog.py"


def test_ls(journal: Path, runs: Run) -> None:
    assert runs("fork", journal, "main-1", journal.with_name("prog.py"), "--at", "0#1").code == 2
    listed = [line.split()[:3] for line in runs("ls", journal).out.splitlines()]
    ids = ["main-1-fork-1", "main", "failed"], ["main-1", "main", "done"]
    assert listed == [["id", "type", "state"], *ids]
    found = runs("ls", journal, "--state", "done", "--type", "main", "--limit", 3, "--json").json
    assert [(one["id"], one["calls"], one["prompt_tokens"]) for one in found] == [("main-1", 4, 12)]
    assert "no matching run" in runs("ls", journal, "--type", "other").said


def test_show(journal: Path, runs: Run) -> None:
    """The tasks' nodes come together, below those of the program; nothing steers a terminal."""
    shown = runs("show", journal, "main-1").out
    places = [line.split()[0] for line in shown.splitlines()[3:]]
    assert places == ["0#0", "0.0#0", "0.0#1", "0.1#0", "0.1#1", "0#1", "0#2"]
    assert '  {"item": "branch a"} > BRANCH A\n' in shown
    assert "\x1b" not in shown + runs("show", journal, "main-1", "--full").out
    one = runs("show", journal, "main-1", "--node", "0.1#1").out
    assert '    request: {"item": "branch b"}\n    answer: BRANCH B\n' in one
    assert one.splitlines()[:2] == shown.splitlines()[:2], "the totals of the whole run"
    node = runs("show", journal, "main-1", "--node", "human", "--json").json["nodes"][0]
    assert (node["node"], node["outcome"], node["asked"]["question"]) == ("0#1", "yes", "go on?")


def test_a_whole_chat(runs: Run, tmp_path: Path) -> None:
    """In full a call has all its messages, else the last."""
    path = Made(2.0).node("0#0", "call", 0.0, 1.0, asked=chat(RULES, "tea?")).write(tmp_path / "j")
    assert "  tea?\n" in runs("show", path, "p-1").out
    for given in (["--full"], ["--node", "0#0"]):
        assert (
            f"request: [system] {RULES}\n    [user] tea?\n" in runs("show", path, "p-1", *given).out
        )


def test_a_long_chat_is_shown_a_call_at_a_time(
    invoke: Invoke, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each request has the whole chat, so that all requests together need not fit into memory."""
    made, turns = Made(99.0), [f"{turn} {'tea ' * 2_500}" for turn in range(24)]
    for turn in range(len(turns)):
        made.node(f"0#{turn}", "call", turn, turn + 1, asked=chat("", *turns[: turn + 1]))
    path = made.write(tmp_path / "j")
    for form in ("--json", "--full"):
        tracemalloc.start()
        assert invoke("journal", "show", path, "p-1", form) == 0
        peak = tracemalloc.get_traced_memory()[1] - path.stat().st_size
        tracemalloc.stop()
        out = capfd.readouterr().out
        assert peak < 2 * len(out) // 3, f"{peak} bytes"
        if form == "--json":
            shown = json.loads(out)
            assert [len(node["asked"]["messages"]) for node in shown["nodes"]] == [*range(2, 26)]
            assert (shown["id"], shown["calls"], shown["outcome"]) == ("p-1", 0, None)


def test_nodes_that_are_no_calls(run_program: Run, runs: Run, tmp_path: Path) -> None:
    source = """
from agentrt import tool

@tool
def breaks():
    raise ValueError("no tea")

@program
async def main(ctx):
    if ctx.patched("new"):
        await ctx.sleep(0)
    ctx.random()
    await ctx.tool(breaks)
"""
    assert run_program(source, "--journal", tmp_path / "j").code == 1
    shown = runs("show", tmp_path / "j", "main-1", "--dag", tmp_path / "d.json").out
    assert [line.split()[:3] for line in shown.splitlines()[3:]] == [
        ["0!new", "patch", "new"],
        ["0#0", "sleep", "sleep"],
        ["0#1", "value", "random"],
        ["0#2", "tool", "breaks"],
    ]
    assert shown.endswith("  {} > ValueError: no tea\n")
    dag = json.loads((tmp_path / "d.json").read_text())
    assert [node["state"] for node in dag["nodes"]] == ["done", "failed"]


def test_the_graph_has_the_states_of_the_run(run_program: Run, runs: Run, tmp_path: Path) -> None:
    """A node that the code has cancelled, and a program that has ended."""
    source = """
import asyncio

@program
async def main(ctx):
    running = asyncio.Event()

    async def hang():
        running.set()
        await asyncio.Event().wait()

    await ctx.llm("tea?")
    hanging = asyncio.create_task(ctx.tool(hang))
    await running.wait()
    hanging.cancel()
    await asyncio.wait([hanging])
    await ctx.llm("coffee?")
"""
    graphs = [tmp_path / "run.json", tmp_path / "journal.json"]
    assert run_program(source, "--journal", tmp_path / "j", "--dag", graphs[0]).code == 0
    assert runs("show", tmp_path / "j", "main-1", "--dag", graphs[1]).code == 0
    for graph in graphs:
        dag = json.loads(graph.read_text())
        assert dag["program"]["state"] == "done"
        assert dag["program"]["closed_at"] is not None
        states = [node["state"] for node in dag["nodes"]]
        assert states == ["done", "cancelled", "done"]


def test_a_journal_without_content(run_program: Run, runs: Run, tmp_path: Path) -> None:
    given: list[Any] = ["--input", "tea", "--human", "yes", "--journal", tmp_path / "j"]
    run_program(SOURCE, *given, "--journal-content", "digest")
    shown = runs("show", tmp_path / "j", "main-1")
    assert "(--journal-content digest)" in shown.out
    assert "tea" not in shown.out
    forked = runs("fork", tmp_path / "j", "main-1", tmp_path / "prog.py", "--at", "0#1")
    assert (forked.code, "digest" in forked.said) == (2, True)


def test_fork_and_diff(journal: Path, prog: Path, runs: Run, tmp_path: Path) -> None:
    """1. Nothing changed: the same again. 2. With other answers of a call and of a human, what
    asks for another thing runs anew. 3. The first place at which both part is named.
    """
    forking: list[Any] = ["fork", journal, "main-1", prog, "--at", "human"]
    same = runs(*forking, "--human", "yes", "--json")
    assert same.json["results"] == [RESULT]
    both = [journal, "main-1", "main-1-fork-1"]
    assert runs("diff", *both).out.startswith(
        "7 nodes are equal in main-1 (was) and main-1-fork-1 "
    )
    sets = ["--set", "human=no", "--set", '0.0#1="tea"', "--into", tmp_path / "k"]
    other = runs(*forking, *sets, "--model", "other", "--json").json
    assert other["results"] == [RESULT.replace("BRANCH A", "tea").replace("yes", "no")]
    assert other["engine"]["model"] == "other"
    with_k = ["diff", journal, "main-1", "main-1-fork-1", "--with", tmp_path / "k"]
    found = runs(*with_k, "--json").json
    assert [one["node"] for one in found["differences"]] == ["0.0#1", "0#1", "0#2"]
    assert found["differences"][1]["what"] == ["answer: the value was 'yes' and is 'no'"]
    told = runs(*with_k, "--dag", tmp_path / "both.mmd").out
    assert told.startswith("4 nodes are equal in main-1 (was) and main-1-fork-1 (is), ")
    assert told.partition("\n")[0].endswith(" 0.0#1")
    assert (tmp_path / "both.mmd").read_text().count("subgraph") == 2
    assert "fork: of main-1" in runs("show", tmp_path / "k", "main-1-fork-1").out
    [listed] = runs("ls", tmp_path / "k", "--json").json
    with closing(ReadingStore(tmp_path / "k")) as store:
        recorded = read_program(store, "main-1-fork-1")
    assert listed["wall_s"] == recorded.until - recorded.since, "as `agentrt journal why` has it"
    assert recorded.since > recorded.program.started, "it is there before its engine"


_HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_fork_of_a_journal_in_use_says_where_else_it_may_go(
    journal: Path, prog: Path, runs: Run
) -> None:
    """Another process has its lock, as a server that runs."""
    command = [sys.executable, "-S", "-c", _HOLDS, f"{journal}.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        refused = runs("fork", journal, "main-1", prog, "--at", "human")
        holder.communicate()
    assert refused.code == 2
    assert "is being written by another process" in refused.said
    assert "--into OTHER.journal" in refused.said


def test_the_answers_of_a_fork_are_for_the_questions_that_it_asks(
    command: Run, runs: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first answer is in the record. 2. The fork stops at its second question. 3. The same
    command goes on there.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO())
    path = write("""
@program
async def asks(ctx):
    return [await ctx.human(name) for name in "abc"]
""")
    answers = ("--human", "1", "--human", "2", "--human", "3")
    assert command("run", path, "--journal", tmp_path / "j", *answers).code == 0
    forking: list[Any] = ["fork", tmp_path / "j", "asks-1", path, "--at", "0#1", "--human", "two"]
    assert runs(*forking).code == 2
    ended = runs(*forking, "--human", "three", "--json")
    assert ended.json["results"] == [["1", "two", "three"]]


def test_a_fork_has_another_input(journal: Path, prog: Path, runs: Run, command: Run) -> None:
    """The command that made the old program is not disturbed by that."""
    forking: list[Any] = ["fork", journal, "main-1", prog, "--at", "human", "--human", "yes"]
    ran = runs(*forking, "--set", "input=milk", "--json")
    assert ran.json["results"] == [RESULT.replace("tea", "milk")]
    given = ["--input", "tea", "--n", 2, "--human", "yes", "--json"]
    assert command("run", prog, "--journal", journal, *given).json["results"] == [RESULT] * 2


def test_a_new_input_gets_the_type_of_its_annotation(
    run_program: Run, runs: Run, prog: Path, tmp_path: Path
) -> None:
    source = """
@program
async def main(ctx, cups: int):
    await ctx.llm("tea?")
    return cups + 1
"""
    assert run_program(source, "--input", "2", "--journal", tmp_path / "j").code == 0
    forking: list[Any] = ["fork", tmp_path / "j", "main-1", prog, "--at", "0#0"]
    assert runs(*forking, "--set", "input=3", "--json").json["results"] == [4]
    refused = runs(*forking, "--set", "input=many")
    assert (refused.code, "'cups' must be int" in refused.said) == (2, True)


def test_the_same_command_goes_on(journal: Path, prog: Path, runs: Run) -> None:
    """1. There is nobody to answer. 2. The same command continues with its fork. 3. That is done:
    it makes another. 4. Code that asks for another thing before the node is found.
    """
    forking: list[Any] = ["fork", journal, "main-1", prog, "--at", "human"]
    assert runs(*forking).code == 2
    for made in ("main-1-fork-1", "main-1-fork-2"):
        assert runs(*forking, "--human", "yes", "--json").json["programs"][0]["id"] == made
    prog.write_text(prog.read_text().replace("branch {", "twig {"))
    failed = runs(*forking, "--human", "yes")
    assert (failed.code, "0.0#0" in failed.said) == (1, True)
    reruns = runs(*forking, "--human", "yes", "--on-divergence", "rerun", "--json")
    assert reruns.json["results"] == [RESULT.replace("BRANCH", "TWIG")]


TYPED = """
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pydantic import BaseModel
from agentrt import tool

class Approval(BaseModel):
    ok: bool
    until: date | None = None

@dataclass
class Seat:
    row: int
    free: bool = True

@tool
def seat():
    return Seat(1)

@tool
def price():
    return Decimal("1.5")

@program
async def main(ctx):
    booked = await ctx.tool(seat)
    number = ctx.uuid()
    answer = await ctx.human("go on?", schema=list[Approval] | None)
    again = await ctx.human("really?", schema=bool)
    cost = await ctx.tool(price)
    await ctx.sleep(0)
    kinds = [type(booked).__name__, repr(booked), type(number).__name__]
    return [*kinds, repr(answer), repr(again), repr(cost)]
"""


def test_an_answer_that_is_set_has_the_type_of_the_recorded_answer(
    write: Write, runs: Run, run_program: Run, tmp_path: Path
) -> None:
    """Of a question, it has the type that the code asks for, whatever was answered."""
    answers = ["--human", "null", "--human", "no"]
    assert run_program(TYPED, "--journal", tmp_path / "j", *answers).code == 0
    forking: list[Any] = ["fork", tmp_path / "j", "main-1", tmp_path / "prog.py", "--at", "sleep"]
    sets = ["--set", 'seat={"row": 7}', "--set", f"uuid={'1' * 32}", "--set", "0#3=yes"]
    sets += ["--set", '0#2=[{"ok": true, "until": "2026-01-02"}]', "--set", "price=2.50"]
    ran = runs(*forking, *sets, "--json")
    approval = "[Approval(ok=True, until=datetime.date(2026, 1, 2))]"
    seat = "Seat(row=7, free=True)"
    assert ran.json["results"] == [["Seat", seat, "UUID", approval, "True", "Decimal('2.50')"]]
    diff = runs("diff", tmp_path / "j", "main-1", "main-1-fork-1", "--json").json
    assert [each["node"] for each in diff["differences"]] == ["0#0", "0#1", "0#2", "0#3", "0#4"]
    shown = runs("show", tmp_path / "j", "main-1-fork-1", "--node", "0#2").out
    assert 'answer: [{"ok": true, "until": "2026-01-02"}]' in shown
    other = runs(*forking, "--set", 'seat="none"', "--json").json["results"]
    assert other[0][:2] == ["str", "'none'"], "another kind of JSON value stays as it is"
    for setting, words in (
        ('seat={"row": "x"}', "--set 0#0: tool seat: the recorded answer is a Seat, and this"),
        ("uuid=7x", "the recorded answer is a UUID, and this value does not fit: "),
        ('0#2=[{"ok": 7}]', "--set 0#2: the answer does not fit the question: "),
    ):
        refused = runs(*forking, "--set", setting)
        assert (refused.code, words in refused.said) == (2, True), refused.err


def test_mistakes(journal: Path, write: Write, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "prog.py"
    fork: list[Any] = ["journal", "fork", journal, "main-1", path]
    refused("journal", "ls", tmp_path / "no", says=["does not exist"])
    refused("journal", "ls", path, says=["is not a journal"])
    refused("journal", "lss", journal, says=["did you mean 'ls'?"])
    refused("journal", journal, says=[f"did you mean 'agentrt journal ls {journal}'?"])
    refused("journal", "show", journal, "main-2", says=["did you mean 'main-1'?"])
    refused(
        "journal",
        "show",
        journal,
        "main-1",
        "--node",
        "0#9",
        says=["has no node", "did you mean"],
    )
    refused("journal", "show", journal, "main-1", "--dag", "d.png", says=["--dag", ".mmd"])
    (tmp_path / "full.mmd").symlink_to("/dev/full")
    for show in (["show", journal, "main-1"], ["diff", journal, "main-1", "main-1"]):
        dag = ["--dag", tmp_path / "full.mmd"]
        refused("journal", *show, *dag, says=[f"--dag '{dag[1]}': No space left on device"])
    refused(*fork, says=["--at"])
    refused(*fork, "--at", "llm", says=["several nodes", "0#0, 0.0#0"])
    refused(*fork, "--at", "0#1", "--set", "tea", says=["--set 'tea'", "NODE=VALUE"])
    refused(*fork, "--at", "0#1", "--set", "0#2=x", says=["began after node 0#1"])
    refused("journal", "fork", "postgresql://h/d", "a-1", path, "--at", "0#1", says=["--into FILE"])
    write("@program\nasync def main(ctx): return ctx.now()\n")
    refused(*fork, "--at", "0#1", says=["takes no input"])
    write("@program\nasync def another(ctx): return ctx.now()\n")
    refused(*fork, "--at", "0#1", says=["'another'", "main-1", "'main'"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE agentrt_starts SET asked = substr(asked, 3) WHERE kind = 'call'", "is not JSON"),
        ("UPDATE agentrt_starts SET started = 'tea'", "started of run 'main-1' has a wrong type"),
        ("UPDATE agentrt_starts SET name = CAST(x'c328' AS TEXT)", "not UTF-8"),
        ("UPDATE agentrt_ends SET account = '{' WHERE account <> ''", "is not JSON"),
        ("UPDATE agentrt_ends SET parents = x'00'", "parents of run 'main-1' has a wrong type"),
        ("UPDATE agentrt_programs SET options = '{\"fork'", "is not JSON"),
        ("UPDATE agentrt_programs SET started = 1e300", "is not a time"),
        ("UPDATE agentrt_journal SET value = '{' WHERE key = 'clock'", "the reading of its clock"),
    ],
)
def test_a_damaged_row_is_named(journal: Path, refused: Refused, damage: str, says: str) -> None:
    """A bit that flips on a disk is no bug of agentrt, which each of these was."""
    with closing(sqlite3.connect(journal)) as writer:
        writer.execute(damage)
        writer.commit()
    for command in (["ls"], ["show", "main-1", "--full"], ["diff", "main-1", "main-1"], ["why"]):
        name, *rest = command
        wanted = ["is damaged or cut off", says, "restore an undamaged copy"]
        refused("journal", name, journal, *rest, says=wanted)
