"""A server that is killed, or stopped, while graphs ask from inside subgraphs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.nested import (
    KINDS,
    answers,
    questions,
    until_asked,
    until_left,
    wrapped,
)
from tests.serving.langgraph.postgres import cluster
from tests.serving.langgraph.processes import Process
from tests.serving.langgraph.test_restart import started, starts_of
from tests.serving.langgraph.test_runs import a_thread

pytestmark = pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
on_both = pytest.mark.parametrize("process", ["sqlite", "postgresql"], indirect=True)
"""For what depends on the database's tables; each restart takes seconds."""
both_ways = pytest.mark.parametrize(
    ("process", "kill"), [("sqlite", False), ("postgresql", True)], indirect=["process"]
)
"""The server ends in another way on each."""
PAIRS = [f"pair-{kind}" for kind in KINDS]
TWICE = [f"twice-{kind}" for kind in (*KINDS, "bare")]
SOME = ["pair-deep", "pair-lasting", "twice-lasting", "twice-bare"]
"""Where the server ends more than once, or it is no matter how a graph holds its subgraph."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nested")


@pytest.fixture(scope="module", params=["sqlite"])
def process(request: pytest.FixtureRequest, folder: Path) -> Iterator[Process]:
    with ExitStack() as stack:
        in_file = request.param == "sqlite"
        database = f"sqlite:{folder / 'a.db'}" if in_file else stack.enter_context(cluster())
        process = Process(database, folder)
        stack.callback(process.kill)
        asyncio.run(process.start())
        yield process


@pytest.fixture
def gate(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The file that lets nodes of this test go on."""
    return folder / "".join(c if c.isalnum() else "-" for c in request.node.name)


@dataclass(slots=True)
class Asked:
    """A run that has asked "one", was answered "1", and waits before it asks "two"."""

    client: LangGraphClient
    graph: str
    thread: str
    run: Any

    @classmethod
    async def held(
        cls, client: LangGraphClient, graph: str, gate: Path, folder: Path, **more: Any
    ) -> Asked:
        thread = await a_thread(client)
        asked: Any = await client.runs.wait(thread, graph, input={"go": gate.name})
        assert questions(asked) == ["one"]
        if more.pop("placed", False):
            more["checkpoint"] = (await client.threads.get_state(thread))["checkpoint"]
        command: Any = {"resume": "1", **more.pop("command", {})}
        run = await client.runs.create(thread, graph, command=command, **more)
        await started(folder, run, "hold")
        return cls(client, graph, thread, run)

    async def joined(self) -> Any:
        return await self.client.runs.join(self.thread, self.run["run_id"])

    async def told(self, answer: str) -> list[str]:
        """What the graph has told once the second question was answered, too."""
        command: Any = {"resume": answer}
        done: Any = await self.client.runs.wait(self.thread, self.graph, command=command)
        assert "__interrupt__" not in done
        return list(done["told"])


async def restart(process: Process, gate: Path, *, kill: bool = True) -> None:
    """End the server, one way or the other, open the gate, and start it again."""
    if kill:
        process.kill()
    else:
        process.stop()
    await asyncio.to_thread(gate.touch)
    await process.start()


@asynccontextmanager
async def over_a_restart(
    process: Process,
    folder: Path,
    gate: Path,
    graphs: Sequence[str],
    *,
    kill: bool = True,
    **how: Any,
) -> AsyncIterator[list[Asked]]:
    """Runs that had taken an answer, over a restart: each comes to its second question."""
    async with get_client(url=process.url) as client:
        held = [await Asked.held(client, graph, gate, folder, **how) for graph in graphs]
        await restart(process, gate, kill=kill)
        for one in held:
            assert questions(await one.joined()) == ["two"], one.graph
        yield held


@both_ways
async def test_an_answer_that_a_subgraph_took_is_used_once(
    process: Process, folder: Path, gate: Path, kill: bool
) -> None:
    """A node of the subgraph took it and ended; a later one was under way."""
    async with over_a_restart(process, folder, gate, PAIRS, kill=kill) as held:
        for one in held:
            starts = starts_of(folder, one.run)
            # What had ended is not run again.
            assert (starts["first"], starts["hold"], starts.get("ready")) == (1, 2, None)
            told = await one.told("2")
            assert told == wrapped(one.graph, ["ready", "1", "pause", "2"]), one.graph


@pytest.mark.parametrize("kill", [True, False])
async def test_an_answer_that_a_node_took_is_used_once(
    process: Process, folder: Path, gate: Path, kill: bool
) -> None:
    """The node that took it was under way, and asks again: after a stop, it has noted it."""
    async with over_a_restart(process, folder, gate, TWICE, kill=kill) as held:
        for one in held:
            assert starts_of(folder, one.run).get("ready") is None
            assert await one.told("2") == wrapped(one.graph, ["ready", "1", "2"]), one.graph


async def test_it_is_used_once_however_often_the_server_is_killed(
    process: Process, folder: Path, gate: Path
) -> None:
    async with get_client(url=process.url) as client:
        held = [await Asked.held(client, graph, gate, folder) for graph in SOME]
        for n in range(1, 3):
            process.kill()
            await process.start()
            for one in held:
                async with asyncio.timeout(60):
                    while starts_of(folder, one.run)["hold"] <= n:
                        await asyncio.sleep(0.01)
        await restart(process, gate)
        for one in held:
            assert questions(await one.joined()) == ["two"], one.graph


async def test_an_answer_that_says_where_the_thread_stands_is_used_once(
    process: Process, folder: Path, gate: Path
) -> None:
    """As LangGraph's Studio does: it names the checkpoint, which is the last one."""
    async with over_a_restart(process, folder, gate, PAIRS, placed=True) as held:
        for one in held:
            told = await one.told("2")
            assert told == wrapped(one.graph, ["ready", "1", "pause", "2"]), one.graph


@pytest.mark.parametrize(
    ("process", "graph"), [("sqlite", "both"), ("postgresql", "both-bare")], indirect=["process"]
)
async def test_of_several_answers_those_that_were_taken_are_used_once(
    process: Process, folder: Path, gate: Path, graph: str
) -> None:
    """Two nodes are answered at once. One has asked again, as the other waits."""
    async with get_client(url=process.url) as client:
        thread = await a_thread(client)
        asked: Any = await client.runs.wait(thread, graph, input={"go": gate.name})
        run = await client.runs.create(thread, graph, command={"resume": answers(asked, "1")})
        await started(folder, run, "hold")
        await until_asked(client, thread, "a two")
        await restart(process, gate)
        asked = await client.runs.join(thread, run["run_id"])
        assert questions(asked) == ["a two", "b two"]
        done: Any = await client.runs.wait(thread, graph, command={"resume": answers(asked, "2")})
        assert sorted(done["told"]) == ["a1", "a2", "b1", "b2"]


@pytest.mark.parametrize("graph", ["beside", "beside-bare"])
async def test_an_answer_without_an_id_is_used_once(
    process: Process, folder: Path, gate: Path, graph: str
) -> None:
    """1. One node asks, and another is stopped. 2. The question is answered, and the next one is
    asked, as the other node runs again. 3. The server is killed.
    """
    async with get_client(url=process.url) as client:
        thread = await a_thread(client)
        run = await client.runs.create(thread, graph, input={"go": gate.name})
        await started(folder, run, "hold")
        await until_asked(client, thread, "one")
        await client.runs.cancel(thread, run["run_id"], wait=True)
        run = await client.runs.create(thread, graph, command={"resume": "1"})
        await started(folder, run, "hold")
        await until_asked(client, thread, "two")
        await restart(process, gate)
        asked: Any = await client.runs.join(thread, run["run_id"])
        assert questions(asked) == ["two"]
        done: Any = await client.runs.wait(thread, graph, command={"resume": "2"})
        assert sorted(done["told"]) == ["1", "2", "pause"]


@both_ways
async def test_what_comes_with_an_answer_is_done_once(
    process: Process, folder: Path, gate: Path, kill: bool
) -> None:
    async with get_client(url=process.url) as client:
        thread = await a_thread(client)
        await client.runs.wait(thread, "asks", input={"go": gate.name})
        command: Any = {"resume": "1", "update": {"steps": ["by hand"]}}
        run = await client.runs.create(thread, "asks", command=command)
        await started(folder, run, "hold")
        await restart(process, gate, kill=kill)
        asked: Any = await client.runs.join(thread, run["run_id"])
        assert questions(asked) == ["two"]
        done: Any = await client.runs.wait(thread, "asks", command={"resume": "2"})
        assert done["steps"] == ["by hand", "1", "2"]


async def test_a_node_that_an_answer_goes_to_runs_once(
    process: Process, folder: Path, gate: Path
) -> None:
    """It runs beside the subgraph that was answered, and has ended."""
    command = {"goto": "after"}
    async with get_client(url=process.url) as client:
        held = [
            await Asked.held(client, graph, gate, folder, command=command)
            for graph in PAIRS + TWICE[:-1]
        ]
        for one in held:
            await until_left(client, one.thread, ["sub"])
        await restart(process, gate)
        for one in held:
            assert questions(await one.joined()) == ["two"], one.graph
            assert starts_of(folder, one.run)["after"] == 1, one.graph


async def test_a_run_that_keeps_nothing_before_its_end_starts_over(
    process: Process, folder: Path, gate: Path
) -> None:
    """With ``durability: exit`` a stateful subgraph writes at its own end nevertheless."""
    async with over_a_restart(process, folder, gate, SOME, durability="exit") as held:
        for one in held:
            told = await one.told("2")
            assert set(told) >= {"ready", "1", "2"}, one.graph


@on_both
async def test_a_run_is_rolled_back_after_a_kill(
    process: Process, folder: Path, gate: Path
) -> None:
    """To where its first attempt began: its subgraph does not start from its top again."""
    async with get_client(url=process.url) as client:
        held = [await Asked.held(client, graph, gate, folder) for graph in PAIRS + TWICE]
        process.kill()
        await process.start()
        for one in held:
            await client.runs.cancel(one.thread, one.run["run_id"], wait=True, action="rollback")
        await asyncio.to_thread(gate.touch)
        for one in held:
            run = await client.runs.create(one.thread, one.graph, command={"resume": "x"})
            asked: Any = await client.runs.join(one.thread, run["run_id"])
            assert questions(asked) == ["two"], one.graph
            assert starts_of(folder, run).get("ready") is None, one.graph
            between = ["pause"] if one.graph in PAIRS else []
            told = await one.told("y")
            assert told == wrapped(one.graph, ["ready", "x", *between, "y"]), one.graph


async def test_an_answer_in_the_past_is_given_anew(
    process: Process, folder: Path, gate: Path
) -> None:
    """At a second question, beside which LangGraph has kept the first answer."""
    graph = "twice-bare"
    async with get_client(url=process.url) as client:
        await asyncio.to_thread(gate.touch)
        thread = await a_thread(client)
        await client.runs.wait(thread, graph, input={"go": gate.name})
        for answer in "12":
            state: Any = await client.threads.get_state(thread)
            await client.runs.wait(thread, graph, command={"resume": answer})
        await asyncio.to_thread(gate.unlink)
        run = await client.runs.create(
            thread, graph, command={"resume": "z"}, checkpoint=state["checkpoint"]
        )
        await started(folder, run, "hold")
        await restart(process, gate)
        done: Any = await client.runs.join(thread, run["run_id"])
        assert done["told"] == ["ready", "1", "z"]
