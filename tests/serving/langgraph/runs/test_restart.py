"""A server that is killed, or stopped, and started again: nothing is lost, or used twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph import interrupted as after
from tests.serving.langgraph.entry import KILL
from tests.serving.langgraph.interrupted import SOME, WALKED, Gate, Scenario
from tests.serving.langgraph.postgres import new_database
from tests.serving.langgraph.processes import Process
from tests.serving.langgraph.runs.test_runs import a_thread

pytestmark = [
    pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect"),
    pytest.mark.asyncio(loop_scope="module"),
]
ON_BOTH: list[Scenario] = [
    after.what_ran_goes_on_where_it_was,
    after.what_ran_goes_on_before_a_run_whose_time_has_come,
    after.what_another_run_stops_does_not_run_on,
    after.what_a_client_cancelled_does_not_run_on,
    after.several_answers_some_of_which_were_taken,
    after.what_comes_with_an_answer,
]
"""What depends on the database's tables."""
ENDS: dict[str, tuple[Callable[[Process], None], list[Scenario]]] = {
    "sqlite-killed": (
        Process.kill,
        [
            *ON_BOTH,
            after.a_run_is_rolled_back,
            after.a_run_from_the_past_goes_on_where_it_was,
            after.an_answer_that_a_subgraph_took,
            after.an_answer_that_a_node_took,
            after.an_answer_without_an_id,
            after.a_node_that_an_answer_goes_to,
            after.a_run_that_keeps_nothing_before_its_end,
            after.an_answer_in_the_past,
        ],
    ),
    "postgresql-killed": (Process.kill, [*ON_BOTH, after.some_runs_are_rolled_back]),
    "sqlite-stopped": (
        Process.stop,
        [
            after.an_answer_that_a_subgraph_took,
            after.an_answer_that_a_node_took,
            after.what_comes_with_an_answer,
        ],
    ),
}


class Restarts:
    """A server's process on its database, and a client."""

    def __init__(self, process: Process, client: LangGraphClient, folder: Path) -> None:
        self.process = process
        self.client = client
        self.folder = folder
        self.played: dict[Scenario, AsyncGenerator[None]] = {}

    def gate(self) -> Gate:
        """A new one."""
        return Gate(self.client, self.folder)

    async def play_on(self, scenario: Scenario) -> None:
        """To its end."""
        assert await anext(self.played[scenario], "over") == "over"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, url: str
) -> AsyncIterator[Restarts]:
    """A server that has ended, and started again, in the middle of its scenarios."""
    folder: Path = tmp_path_factory.mktemp("restart")
    end, scenarios = ENDS[request.param]
    with ExitStack() as stack:
        in_file = request.param.startswith("sqlite")
        database = f"sqlite:{folder / 'a.db'}" if in_file else new_database(url)
        process = Process(database, folder)
        stack.callback(process.kill)
        await process.start()
        async with get_client(url=process.url) as client:
            restarts = Restarts(process, client, folder)
            restarts.played = {one: one(restarts.gate()) for one in scenarios}
            await asyncio.gather(*map(anext, restarts.played.values()))
            end(process)
            await process.start()
            yield restarts


def scenarios_of(end: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scenario", ENDS[end][1], ids=lambda one: one.__name__)


def on(end: str) -> pytest.MarkDecorator:
    """One server for all tests of that end: pytest would make one for each pair of parameters."""
    return pytest.mark.parametrize("server", [end], indirect=True)


@on("sqlite-killed")
@scenarios_of("sqlite-killed")
async def test_after_a_kill(server: Restarts, scenario: Scenario) -> None:
    await server.play_on(scenario)


@on("postgresql-killed")
@scenarios_of("postgresql-killed")
async def test_after_a_kill_on_postgresql(server: Restarts, scenario: Scenario) -> None:
    await server.play_on(scenario)


@on("sqlite-stopped")
@scenarios_of("sqlite-stopped")
async def test_after_a_stop(server: Restarts, scenario: Scenario) -> None:
    await server.play_on(scenario)


@on("sqlite-killed")
async def test_an_answer_is_used_once_however_often_the_server_is_killed(
    server: Restarts,
) -> None:
    gate = server.gate()
    held = await gate.held(SOME)
    for kills in (1, 2):
        server.process.kill()
        await server.process.start()
        for one in held:
            await gate.reached(one.run, kills + 1)
    await gate.ask_two(held)


@on("sqlite-killed")
async def test_no_thread_is_busy_for_ever_after_a_kill_during_a_rollback(server: Restarts) -> None:
    """The server is killed by a reducer, which it calls to store the thread's state."""
    client, gate = server.client, server.gate()
    thread = await a_thread(client)
    await client.runs.wait(thread, "kills", input={"go": gate.name})
    run = await gate.created(thread, "kills", command={"resume": "1"})
    (server.folder / KILL).touch()
    with pytest.raises(httpx.TransportError):
        await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    await server.process.died()
    await server.process.start()
    gate.open()
    for left in await client.runs.list(thread):
        await client.runs.join(thread, left["run_id"])
    assert (await client.threads.get(thread))["status"] != "busy"


@on("sqlite-killed")
async def test_no_step_is_lost_or_done_twice_in_a_state(server: Restarts) -> None:
    """Killed under load: each thread has the steps of its runs, in their order, once."""
    client = server.client
    threads = [await a_thread(client) for _ in range(8)]
    runs: list[Any] = [
        await client.runs.create(key, "walk", input={"steps": []})
        for _ in range(3)
        for key in threads
    ]
    ended = random.Random(7).randrange(1, 20)
    async with asyncio.timeout(60):
        while sum([await is_done(client, run) for run in runs]) < ended:
            await asyncio.sleep(0.05)
    server.process.kill()
    await server.process.start()
    for run in runs:
        await client.runs.join(run["thread_id"], run["run_id"])
        assert await is_done(client, run)
    for key in threads:
        state: Any = await client.threads.get_state(key)
        assert state["values"]["steps"] == WALKED * 3
        assert (await client.threads.get(key))["status"] == "idle"


async def is_done(client: LangGraphClient, run: Any) -> bool:
    return (await client.runs.get(run["thread_id"], run["run_id"]))["status"] == "success"
