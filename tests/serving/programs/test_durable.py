"""A server that is killed: the runs of native programs continue in the next one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.langgraph.postgres import cluster
from tests.serving.langgraph.processes import Process
from tests.serving.programs.durable import serve, store_of

WAIT_S = 60.0
WHOLE = [*(f"said branch {one} {one.upper()}" for one in "abc")]
WHOLE += ["teadefghi", "yes", "said help tea", "said last"]
EVERYTHING = {f"{what} {one}" for what in ("call branch", "tool") for one in "abc"}
EVERYTHING |= {"call help tea", "call last", "call tokens 3", "call tokens 6"}


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        in_file = getattr(request, "param", "sqlite") == "sqlite"
        yield f"sqlite:{tmp_path / 'j.db'}" if in_file else stack.enter_context(cluster())


@pytest.fixture
def process(database: str, tmp_path: Path) -> Iterator[Process]:
    process = Process(database, tmp_path, serve, "/v1/programs")
    yield process
    process.kill()


async def got(client: httpx.AsyncClient, run: str, *states: str) -> Any:
    """The run, once it is in one of these states."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = (await client.get(f"/v1/programs/work/runs/{run}")).json()
            if found["state"] in states:
                return found
            assert found["state"] in ("running", "waiting for a human"), found
            await asyncio.sleep(0.02)


def recorded_in(database: str) -> set[str]:
    """The calls and the tools that have answers in the journal."""
    store = store_of(database)
    rows = store.query(
        "SELECT kind, asked FROM agentrt_nodes WHERE state = 'done' AND kind IN ('call', 'tool')"
    )
    store.close()
    return {asked_as(kind, json.loads(text)) for kind, text in rows}


def asked_as(kind: str, asked: Any) -> str:
    """Return the recorded nodes, as the server writes them."""
    if kind == "tool":
        return f"tool {asked['arguments']['item']}"
    if "messages" in asked:
        return f"call {asked['messages'][-1]['content']}"
    return f"call tokens {len(asked['prompt_token_ids'])}"


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
async def test_killed_again_and_again(process: Process, database: str, tmp_path: Path) -> None:
    """1. Three servers are killed in the middle of a call or a tool. 2. The fourth asks, and is
    killed. 3. The fifth has the same question, and with its answer the run ends as if undisturbed,
    4. which the sixth still knows. Nothing that was recorded is done again.
    """
    rng, happened, dies = random.Random(3), tmp_path / "happened", tmp_path / "dies"
    happened.touch()
    lines, before = list[str](), set[str]()
    run = "work-1"
    for life in range(3):
        dies.write_text(str(len(lines) + rng.randint(1, 2)))
        if life:
            process.launch()  # it may be dead before it answers
        else:
            await process.start()
            async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
                with contextlib.suppress(httpx.TransportError):
                    await client.post(
                        "/v1/programs/work/runs", json={"input": "tea", "wait": False}
                    )
        await process.died()
        new = happened.read_text().splitlines()[len(lines) :]
        assert len(new) > 0
        assert not before & set(new)
        lines += new
        before = recorded_in(database)
    dies.unlink()
    seen = set[str]()
    for life in range(2):
        await process.start()
        async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
            [asked] = (await got(client, run, "waiting for a human"))["questions"]
            seen.add(asked["id"])
            if life:
                answer = await client.post(f"/v1/questions/{asked['id']}", json={"answer": "yes"})
                assert answer.status_code == 200, answer.text
                assert (await got(client, run, "done"))["result"] == WHOLE
        process.kill()
    assert len(seen) == 1
    new = happened.read_text().splitlines()[len(lines) :]
    assert not before & set(new)
    assert max(Counter(new).values()) == 1
    assert {*lines, *new} == EVERYTHING
    await process.start()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
        assert (await got(client, run, "done"))["result"] == WHOLE


async def test_a_run_whose_client_waited_ends_with_its_server(
    process: Process, tmp_path: Path
) -> None:
    """The client's connection ends with the server, so the run is cancelled."""
    (tmp_path / "happened").touch()
    (tmp_path / "dies").write_text("1")
    await process.start()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
        with pytest.raises(httpx.TransportError):
            await client.post("/v1/programs/work/runs", json={"input": "tea"})
    await process.died()
    (tmp_path / "dies").unlink()
    await process.start()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
        assert (await got(client, "work-1", "cancelled"))["result"] is None
        made = await client.post("/v1/programs/work/runs", json={"input": "tea", "wait": False})
        assert made.json()["id"] == "work-2"


async def test_a_server_that_stops_leaves_its_runs_to_the_next(
    process: Process, tmp_path: Path
) -> None:
    """A run that a client has cancelled is not resumed."""
    (tmp_path / "happened").touch()
    await process.start()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
        for _ in range(2):
            await client.post("/v1/programs/work/runs", json={"input": "tea", "wait": False})
        for run in ("work-1", "work-2"):
            await got(client, run, "waiting for a human")
        await client.post("/v1/programs/work/runs/work-2/cancel")
    process.stop()
    await process.start()
    async with httpx.AsyncClient(base_url=process.url, timeout=WAIT_S) as client:
        await got(client, "work-1", "waiting for a human")
        await got(client, "work-2", "cancelled")
