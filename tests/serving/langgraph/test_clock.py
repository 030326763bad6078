"""The machine's clock is set, forward or back, while a server runs and between two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as ids
from langgraph_sdk.client import LangGraphClient

from agentrt import Context, program
from agentrt.serving.langgraph.database.interrupts import Deadlines
from agentrt.serving.langgraph.database.storage import open_storage
from tests.doubles.machine import Machine, boots, is_set, passes
from tests.serving.langgraph.graphs import steps_graph
from tests.serving.langgraph.runs.test_runs import IN, a_thread
from tests.serving.langgraph.serve import serving
from tests.serving.langgraph.threads.test_questions import clients

HOUR_S = 3600.0
LIMIT_S = 600.0


@program
async def asks(ctx: Context) -> str:
    return str(await ctx.human("now?", timeout=LIMIT_S, default="nobody"))


Life = list[Callable[[Machine], None]]
STORIES: dict[str, tuple[list[Life], float]] = {
    "set forward": ([[passes(100), is_set(HOUR_S), passes(100)]], 200),
    "set back": ([[passes(100), is_set(-HOUR_S), passes(100)]], 200),
    "set forward while no server runs": ([[], [is_set(HOUR_S), passes(100)]], 100),
    "set back while no server runs": ([[passes(100)], [is_set(-HOUR_S), passes(100)]], 200),
    "set forward, another boot": ([[is_set(HOUR_S), passes(100)], [boots(100)]], 200),
    "another boot, set back": ([[passes(100)], [boots(100), is_set(-HOUR_S), passes(100)]], 300),
    "another boot with a clock that is behind": ([[passes(100)], [boots(50, -HOUR_S)]], 100),
}
"""What happens in the lives of a server, and how much of a wait is over by that. What is first in
another life happens before it begins.
"""


@pytest.mark.parametrize("kind", ["run", "question"])
@pytest.mark.parametrize("story", STORIES)
async def test_a_wait_takes_its_set_time(story: str, kind: str, tmp_path: Path) -> None:
    """That of a run which is to start later, and that of a program's question in a thread: a second
    before its end it waits, and then it is over.
    """
    things, machine, begun = {"asks": asks, "steps": steps_graph()}, Machine(), ""
    lives, over_s = STORIES[story]

    async def waits(client: LangGraphClient, http: httpx.AsyncClient) -> None:
        await machine.looked()
        if kind == "run":
            assert (await client.runs.get(thread, begun))["status"] == "pending"
        else:
            [question] = (await http.get("/v1/questions", params={"thread": thread})).json()["data"]
            assert question["state"] == "open"
            left = question["expires_at"] - machine.time_of_day
            assert 0.5 < left <= LIMIT_S

    for number, life in enumerate(lives):
        happens = list(life)
        if number:
            happens.pop(0)(machine)
        with serving(things, tmp_path / "agentrt.db", machine=machine.clocks()) as it:
            async with clients(it, "") as (client, http):
                if not begun:
                    thread = await a_thread(client)
                    given = {"after_seconds": 600} if kind == "run" else {}
                    graph = "steps" if kind == "run" else "asks"
                    run = await client.runs.create(thread, graph, input=IN, **given)  # type: ignore[call-overload]  # a name is not known there
                    begun = run["run_id"]
                    if kind == "question":
                        await client.runs.join(thread, begun)
                await waits(client, http)
                for happen in happens:
                    happen(machine)
                    await waits(client, http)
                if number < len(lives) - 1:
                    continue
                machine.passes(LIMIT_S - over_s - 1.0)
                await waits(client, http)
                machine.passes(1.0)
                await over(client, thread, runs=1 if kind == "run" else 2)


async def over(client: LangGraphClient, thread: str, runs: int) -> None:
    """The thread has so many runs, and all of them have ended well."""
    async with asyncio.timeout(60):
        while [run["status"] for run in await client.runs.list(thread)] != ["success"] * runs:
            await asyncio.sleep(0.02)


async def test_a_wait_for_deadlines_is_not_longer_than_was_said() -> None:
    """The clock may be set meanwhile. A deadline that is nearer ends it, and a later one not."""
    deadlines = Deadlines()
    deadlines.note(time.time() + HOUR_S / 2)
    async with asyncio.timeout(60):
        await deadlines.wait(0.05)
    deadlines.note(time.time() + HOUR_S)
    waiting = asyncio.create_task(deadlines.wait(HOUR_S))
    await asyncio.sleep(0)
    deadlines.note(time.time() + 2 * HOUR_S)
    await asyncio.sleep(0)
    assert not waiting.done()
    deadlines.note(time.time() + HOUR_S / 4)
    async with asyncio.timeout(60):
        await waiting


async def test_checkpoints_are_later_than_those_of_a_server_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread continues from its greatest id, and ids begin with their time."""
    given = f"sqlite:{tmp_path / 'threads.db'}"
    config: Any = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    with monkeypatch.context() as before:
        before.setattr(ids, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**9 * 3600))
        old = str(ids.uuid6())
    async with open_storage(given) as storage:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = old
        await storage.saver.aput(config, checkpoint, {}, {})
    ids._last_v6_timestamp = None
    assert str(ids.uuid6()) < old
    async with open_storage(given):
        assert str(ids.uuid6()) > old
