"""A server that is killed and started again: nothing is lost, and what ran goes on."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.entry import WALK
from tests.serving.langgraph.processes import Process
from tests.serving.langgraph.test_runs import a_thread

pytestmark = pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
WALKED = [f"n{n}" for n in range(WALK)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("restart")


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[Process]:
    process = Process(f"sqlite:{folder / 'agentrt.db'}", folder)
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


async def until(client: LangGraphClient, runs: list[Any], ended: int) -> None:
    """Wait until so many of the runs have ended."""
    async with asyncio.timeout(60):
        while True:
            got = [await client.runs.get(run["thread_id"], run["run_id"]) for run in runs]
            if sum(run["status"] == "success" for run in got) >= ended:
                return


async def started(folder: Path, run: Any, node: str) -> None:
    """Wait until a node of the run has started."""
    async with asyncio.timeout(60):
        while node not in starts_of(folder, run):
            await asyncio.sleep(0.01)


def starts_of(folder: Path, run: Any) -> dict[str, int]:
    """How often each node of a run was started."""
    file = folder / run["run_id"]
    return collections.Counter(file.read_text().split()) if file.exists() else {}


async def test_what_ran_goes_on_where_it_was(process: Process, folder: Path) -> None:
    """1. Runs are held in their second node; others wait behind them; one has been answered.
    2. The server is killed. 3. It starts again, and the gate is open. 4. Clients that were
    waiting get their results, and so do those that ask again.
    """
    async with get_client(url=process.url) as client:
        threads = [await a_thread(client) for _ in range(6)]
        held = [await client.runs.create(key, "held", input={"go": "1"}) for key in threads]
        behind = [await client.runs.create(key, "walk", input={"steps": []}) for key in threads]
        made: asyncio.Queue[Any] = asyncio.Queue()
        waiting = asyncio.create_task(
            client.runs.wait(None, "held", input={"go": "1"}, on_run_created=made.put_nowait)
        )
        stream = asyncio.create_task(_streamed(client, made.put_nowait))
        answered = await _an_answered_thread(client, folder)
        for run in held:
            await started(folder, run, "hold")
        for run in [await made.get() for _ in range(2)]:
            await started(folder, run, "hold")
        process.kill()
        (folder / "1").touch()
        await process.start()
        for run, after in zip(held, behind, strict=True):
            result = await client.runs.join(run["thread_id"], run["run_id"])
            assert result["steps"] == ["before", "hold", "after"]
            result = await client.runs.join(after["thread_id"], after["run_id"])
            assert result["steps"] == ["before", "hold", "after", *WALKED]
            assert starts_of(folder, run) == {"before": 1, "hold": 2, "after": 1}
        assert await waiting == {"go": "1", "steps": ["before", "hold", "after"]}
        await _check_stream(await stream)
        # The answer was taken before the kill: the second question must not get it again.
        asked = await client.runs.join(*answered)
        assert [one["value"] for one in asked["__interrupt__"]] == ["two"]
        done = await client.runs.wait(answered[0], "asks", command={"resume": "2"})
        assert done == {"go": "1", "steps": ["1", "2"]}


async def _an_answered_thread(client: LangGraphClient, folder: Path) -> tuple[str, str]:
    thread = await a_thread(client)
    await client.runs.wait(thread, "asks", input={"go": "1"})
    run = await client.runs.create(thread, "asks", command={"resume": "1"})
    await started(folder, run, "hold")
    return thread, run["run_id"]


async def _streamed(client: LangGraphClient, made: Callable[[Any], None]) -> list[Any]:
    parts = client.runs.stream(
        await a_thread(client),
        "held",
        input={"go": "1"},
        stream_mode="updates",
        stream_resumable=True,
        on_run_created=made,
    )
    return [part async for part in parts]


async def _check_stream(parts: list[Any]) -> None:
    """One stream, as if nothing had been: ids in a row, and a second attempt in it."""
    assert [part.id for part in parts] == [str(n) for n in range(1, len(parts) + 1)]
    attempts = [part.data["attempt"] for part in parts if part.event == "metadata"]
    assert attempts == [1, 2]
    nodes = [name for part in parts if part.event == "updates" for name in part.data]
    assert nodes == ["before", "hold", "after"]


@pytest.mark.parametrize("seed", [7])
async def test_no_step_is_lost_or_done_twice_in_a_state(
    process: Process, folder: Path, seed: int
) -> None:
    """Killed under load: each thread has the steps of its runs, in their order, once."""
    async with get_client(url=process.url) as client:
        threads = [await a_thread(client) for _ in range(16)]
        runs: list[Any] = [
            await client.runs.create(key, "walk", input={"steps": []})
            for _ in range(3)
            for key in threads
        ]
        await until(client, runs, random.Random(seed).randrange(1, 40))
        process.kill()
        await process.start()
        for run in runs:
            await client.runs.join(run["thread_id"], run["run_id"])
            kept = await client.runs.get(run["thread_id"], run["run_id"])
            assert kept["status"] == "success"
        for key in threads:
            state: Any = await client.threads.get_state(key)
            assert state["values"]["steps"] == WALKED * 3
            assert (await client.threads.get(key))["status"] == "idle"


async def test_a_run_from_the_past_goes_on_where_it_was(process: Process, folder: Path) -> None:
    """It does not start again from there: its input would be lost."""
    (folder / "3").touch()
    async with get_client(url=process.url) as client:
        thread = await a_thread(client)
        await client.runs.wait(thread, "held", input={"go": "3"})
        state: Any = await client.threads.get_state(thread)
        config: Any = {"configurable": {"checkpoint_id": state["checkpoint"]["checkpoint_id"]}}
        run = await client.runs.create(thread, "held", input={"go": "4"}, config=config)
        await started(folder, run, "hold")
        process.kill()
        (folder / "4").touch()
        await process.start()
        result = await client.runs.join(thread, run["run_id"])
        assert result == {"go": "4", "steps": ["before", "hold", "after"] * 2}
