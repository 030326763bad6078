"""Forks: all that had ended before a node is as it was, and the rest is asked anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, tool
from agentrt.errors import JournalError, UsageError
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.analysis.forking import answer_of, fork_in
from agentrt.journal.analysis.reading import History, ReadingStore, find, histories, history
from agentrt.journal.codec import loads
from agentrt.journal.schema import RecordedProgram
from agentrt.request import Reply
from agentrt.runtime.durable import Durable
from tests.journal.killing import Engine, QuickStore, World, ended, lived

OLD = "all_kinds-1"


def read(path: Path, program: str) -> History:
    with closing(ReadingStore(path)) as store:
        return history(store, program)


def fork(
    path: Path, old: History, at: str, answers: Mapping[str, str] | None = None, **how: Any
) -> RecordedProgram:
    with closing(QuickStore(path)) as store:
        return fork_in(store, old, at, answers or {}, old.program.input, {"at": at, **how})


def durable(row: RecordedProgram, old: str = OLD) -> Durable:
    return Durable(id=row.id, draws_as=old)


def settled(result: Any) -> Any:
    """What does not depend on chance, nor on who came first."""
    return {**result, "chance": 0, "order": sorted(result["order"])}


def seeds_of(engine: Engine) -> dict[str, int | None]:
    asked = [call.spec for call in engine.calls if call.spec.messages]
    return {str(spec.messages[-1]["content"]): spec.seed for spec in asked}


async def test_a_fork_at_each_node(tmp_path: Path) -> None:
    """1. A program of all kinds of nodes is forked at each of them. 2. What had ended before is
    there as it was. 3. So many calls and tools run as are not there, with the seeds that they had.
    4. The result is the same, since nothing else was changed; and so is the old program.
    """
    path, world = tmp_path / "j", World()
    run = await ended(path, world, engine=(engine := Engine(world)))
    old, seeds = read(path, OLD), seeds_of(engine)
    assert len(old.nodes) > 25
    ends = {place: node.end for place, node in old.nodes.items() if node.end}
    for at, node in old.nodes.items():
        row, anew = fork(path, old, at), World()
        before = read(path, row.id).nodes
        began = node.start.started
        assert {place for place, end in ends.items() if end.ended < began} <= before.keys()
        assert at not in before
        for place, kept in before.items():
            assert kept.end
            assert kept.end.outcome == ends[place].outcome
            assert ends[place].ended <= began
        forked = await ended(path, anew, durable=durable(row), engine=(made := Engine(anew)))
        assert settled(forked.result) == settled(run.result)
        for kind, happened in (("call", anew.calls), ("tool", anew.tools)):
            kinds = [[each.start.kind for each in some.values()] for some in (old.nodes, before)]
            assert sum(happened.values()) == kinds[0].count(kind) - kinds[1].count(kind), at
        assert seeds_of(made).items() <= seeds.items()
        assert read(path, row.id).nodes.keys() == old.nodes.keys()
    assert read(path, OLD) == old


async def test_another_answer_of_a_tool(tmp_path: Path) -> None:
    """What then asks for another thing runs anew, with what comes after it there; a branch beside
    it keeps its answers.
    """
    found: list[str] = []

    @tool
    async def search(item: str) -> list[str]:
        found.append(item)
        return [f"about {item}"]

    async def branch(ctx: Context, name: str) -> str:
        return str(await ctx.llm(f"read {await ctx.tool(search, item=name)}"))

    async def code(ctx: Context) -> list[str]:
        read = await asyncio.gather(branch(ctx, "tea"), branch(ctx, "milk"))
        return [*read, str(await ctx.llm("last"))]

    path = tmp_path / "j"
    await lived(path, code)
    old = read(path, "main-1")
    assert find(old, "0.1#0") == "0.1#0"
    answers = {"0.1#0": answer_of(old.nodes["0.1#0"], ["nothing"])}
    row = fork(path, old, "0#0", answers)
    world, made = World(), JournalOptions(reruns=True)
    run = await lived(path, code, world=world, options=made, durable=durable(row, "main-1"))
    assert run.result == ["said read ['about tea']", "said read ['nothing']", "said last"]
    assert world.calls == {"read ['nothing']": 1, "last": 1}
    assert sorted(found) == ["milk", "tea"]


async def test_what_was_under_way_begins_anew(tmp_path: Path) -> None:
    """A tool that may not run twice ran when the node began: the fork is another program, and runs
    it once. Until that has ended, it is open, no server continues with it, and there is no other.
    """
    runs: list[str] = []

    async def code(ctx: Context) -> list[Any]:
        go = asyncio.Event()

        @tool
        async def slow() -> str:
            runs.append("slow")
            await go.wait()
            return "slow"

        async def beside() -> str:
            await ctx.llm("one")
            go.set()
            return str(await ctx.llm("two"))

        return list(await asyncio.gather(ctx.tool(slow), beside()))

    path = tmp_path / "j"
    run = await lived(path, code)
    old = read(path, "main-1")
    row = fork(path, old, "0.1#1")
    assert list(read(path, row.id).nodes) == ["0.1#0"]
    assert fork(path, old, "0.1#1") == row
    assert fork(path, old, "0.1#1", by="other").id == "main-1-fork-2"
    async with await Journal.open(lambda: QuickStore(path)) as journal:
        assert await journal.open_programs() == []
        await journal.check("main", None)
        assert read(path, "main-1") == old  # while another has it open
    again = await lived(path, code, world=(world := World()), durable=durable(row, "main-1"))
    assert (again.result, world.calls, len(runs)) == (run.result, {"two": 1}, 2)
    assert fork(path, read(path, row.id), "0.1#1").id == "main-1-fork-3"
    with closing(ReadingStore(path)) as store:
        found = [(one.program.id, one.state) for one in histories(store, limit=2, state="open")]
    assert found == [("main-1-fork-3", "open"), ("main-1-fork-2", "open")]


async def test_nodes_that_cannot_be_had(tmp_path: Path) -> None:
    @tool
    async def look() -> Any:
        return object()

    async def code(ctx: Context) -> None:
        await ctx.tool(look)
        await ctx.llm("one")
        await ctx.llm("two")

    path = tmp_path / "j"
    await lived(path, code, options=JournalOptions(skips=True))
    old = read(path, "main-1")
    for name, words in (("llm", "several nodes 'llm'; name one of 0#1, 0#2"), ("lok", "'look'")):
        with pytest.raises(UsageError, match=words):
            find(old, name)
    with pytest.raises(UsageError, match=r"could not be recorded.* --set 0#0=JSON"):
        fork(path, old, "0#1")
    with pytest.raises(UsageError, match="--set 0#2: this node began after node 0#1"):
        fork(path, old, "0#1", {"0#0": "1", "0#2": "1"})
    row = fork(path, old, find(old, "0#1"), {"0#0": '"seen"'})
    end = read(path, row.id).nodes["0#0"].end
    assert end is not None
    assert loads(end.outcome) == "seen"
    with pytest.raises(JournalError, match="no run 'main-2'; did you mean 'main-1'"):
        read(path, "main-2")


@pytest.mark.parametrize(
    ("place", "given", "answer"),
    [
        ("0#0", "3", Reply("3")),
        ("0#0", '"3"', Reply("3")),
        ("0#0", {"a": 1}, Reply('{"a": 1}')),
        ("0#1", "3", 3),
        ("0#1", "tea", "tea"),
        pytest.param("0#1", "[" * 3000, "[" * 3000, id="nested too deeply"),
        ("0#2", "3", "3"),
        ("0#3", {"$": "date", "value": "2026-01-02"}, date(2026, 1, 2)),
        ("0#4", "1.5", 1.5),
    ],
)
async def test_answers_that_are_typed(
    place: str, given: Any, answer: Any, program_of_answers: History
) -> None:
    assert loads(answer_of(program_of_answers.nodes[place], given)) == answer


async def test_answers_that_cannot_be(program_of_answers: History) -> None:
    for place, given, words in (
        ("0#3", {"$": "date", "value": "?"}, "--set 0#3: tool when: ValueError"),
        ("0#5", "1", "sleep sleep has no answer that can be set"),
        ("0#6", "1", "call .* has no answer that can be set"),
    ):
        with pytest.raises(UsageError, match=words):
            answer_of(program_of_answers.nodes[place], given)


@pytest.fixture
async def program_of_answers(tmp_path: Path) -> History:
    @tool
    async def count() -> int:
        return 2

    @tool
    async def when() -> date:
        return date(2025, 1, 2)

    async def code(ctx: Context) -> None:
        await ctx.llm("one")
        await ctx.tool(count)
        await ctx.human("go on?")
        await ctx.tool(when)
        ctx.now()
        await ctx.sleep(0.0)
        await (await ctx.context("once")).generate(3)

    await lived(tmp_path / "j", code)
    return read(tmp_path / "j", "main-1")
