"""Threads and items that do not stay: gone when their time is over, and not while they are used."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID, uuid4

import httpx
import pytest
import sqlalchemy as sa
from fastapi import HTTPException
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph_sdk.client import LangGraphClient

from agentrt import Runtime
from agentrt.errors import AgentrtError
from agentrt.serving.langgraph.bodies import ThreadCreate
from agentrt.serving.langgraph.database import threads as keeping
from agentrt.serving.langgraph.database import threads as sweeping
from agentrt.serving.langgraph.database._compat import keep_latest
from agentrt.serving.langgraph.database.tables import webhooks
from agentrt.serving.langgraph.database.threads import sweep
from agentrt.serving.langgraph.store import TenantStore
from agentrt.serving.langgraph.tenant_state import TenantState, open_tenant_state
from agentrt.serving.lifetimes import Lifetimes, ThreadTtl, read_lifetimes
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.runs.test_sweep import a_run, end

MINUTE = 60.0
Opened = Callable[[Lifetimes], AbstractAsyncContextManager[TenantState]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A server's state, without a queue that runs anything."""

    @asynccontextmanager
    async def state(lifetimes: Lifetimes) -> AsyncIterator[TenantState]:
        where = f"sqlite:{tmp_path / 'a.db'}"
        server = Server(Runtime(ScriptedExecutor()), (), {}, where, lifetimes=lifetimes)
        async with open_tenant_state(server) as state:
            yield state

    return state


async def a_thread(state: TenantState, **ttl: Any) -> str:
    """A thread with two checkpoints."""
    body = ThreadCreate(ttl=ThreadTtl(**ttl) if ttl else None)
    key = str((await state.threads.create("t", body))[0]["thread_id"])
    for _ in range(2):
        where: Any = {"configurable": {"thread_id": key, "checkpoint_ns": ""}}
        await state.storage.saver.aput(where, empty_checkpoint(), {}, {})
    return key


async def checkpoints(state: TenantState, thread: str) -> int | None:
    """How many a thread has; None for a thread that is not there."""
    where: Any = {"configurable": {"thread_id": thread}}
    count = len([one async for one in state.storage.saver.alist(where)])
    try:
        await state.threads.get("t", UUID(thread))
    except HTTPException:
        assert count == 0
        return None
    return count


async def later(state: TenantState, minutes: float) -> None:
    await state.clear_away(time.time() + minutes * MINUTE)


async def test_a_thread_goes_when_its_time_is_over(opened: Opened) -> None:
    """A thread is deleted, another loses its history, and a third stays."""
    async with opened(Lifetimes()) as state:
        gone = await a_thread(state, ttl=10)
        short = await a_thread(state, ttl=20, strategy="keep_latest")
        kept = await a_thread(state)
        for minutes, left in ((9, [2, 2, 2]), (11, [None, 2, 2]), (21, [None, 1, 2])):
            await later(state, minutes)
            assert [await checkpoints(state, key) for key in (gone, short, kept)] == left
        assert await sweep(state.storage.database, time.time() + 1e6) == 0


async def test_a_thread_that_is_used_stays(opened: Opened) -> None:
    """1. While it has a run. 2. After the run's end its time begins anew."""
    async with opened(Lifetimes(ThreadTtl(ttl=10))) as state:
        row, _ = await state.runs.enter(a_run(temporary=False), None)
        thread = UUID(row.thread_id)
        await later(state, 100)
        await state.threads.get("t", thread)
        await end(state, row)
        await later(state, 9)
        await state.threads.get("t", thread)
        await later(state, 11)
        with pytest.raises(HTTPException, match="not found"):
            await state.threads.get("t", thread)


async def test_a_run_that_begins_meanwhile_saves_its_thread(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread had expired when the sweep read it, and is in use when the sweep reaches it."""
    async with opened(Lifetimes(ThreadTtl(ttl=10))) as state:
        row, _ = await state.runs.enter(a_run(temporary=False), None)
        await end(state, row)
        database, now = state.storage.database, time.time() + 11 * MINUTE
        seen = await database.rows(sweeping._over(now))
        assert [one.thread_id for one in seen] == [row.thread_id]
        again = a_run(temporary=False)
        object.__setattr__(again, "thread", UUID(row.thread_id))
        await state.runs.enter(again, None)
        assert not await sweeping._claim(database, row.thread_id, now, deletes=True)


async def test_a_thread_goes_whole_or_not_at_all(opened: Opened) -> None:
    """Its row and its checkpoints in one transaction: a server that is killed leaves none. Who
    makes a thread of its id anew has an empty one, for ever.
    """
    async with opened(Lifetimes()) as state:
        database = state.storage.database
        for sweeps in (True, False):
            thread = await a_thread(state, ttl=10)
            now = time.time() + 11 * MINUTE
            if sweeps:
                assert await sweeping._claim(database, thread, now, deletes=True)
            else:
                await state.threads.remove([thread])
            assert await checkpoints(state, thread) is None
            await state.threads.create("t", ThreadCreate(thread_id=UUID(thread)))
            await later(state, 100)
            assert await checkpoints(state, thread) == 0


async def test_threads_stay_until_their_ends_are_told(opened: Opened) -> None:
    """Also those of runs without a thread, after a server was down for long."""
    async with opened(Lifetimes(ThreadTtl(ttl=10))) as state:
        for temporary in (True, False):
            row, _ = await state.runs.enter(a_run(temporary=temporary), None)
            await end(state, row)
            told = {"run_id": row.run_id, "tenant": "t", "url": "http://a.example", "body": "{}"}
            await state.storage.database.write(sa.insert(webhooks).values(told))
            await later(state, 100)
            await state.runs.get("t", row.thread_id, row.run_id)
            await state.storage.database.write(sa.delete(webhooks))
            await later(state, 100)
            with pytest.raises(HTTPException, match="not found"):
                await state.runs.get("t", row.thread_id, row.run_id)


async def test_more_threads_go_than_a_statement_takes(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_AT_ONCE", 2)
    async with opened(Lifetimes()) as state:
        keys = [await a_thread(state) for _ in range(5)]
        written: list[int] = []
        write = state.storage.database.write

        async def counted(*statements: Any) -> None:
            written.append(len(statements[-1].compile().params["thread_id_1"]))
            await write(*statements)

        with monkeypatch.context() as patched:  # the database keeps its clock when it closes
            patched.setattr(state.storage.database, "write", counted)
            await state.threads.remove(keys)
        assert written == [2, 2, 1]
        assert [await checkpoints(state, key) for key in keys] == [None] * 5


class Deltas(TypedDict):
    """A state whose values are in the writes of all steps."""

    steps: Annotated[list[str], DeltaChannel(lambda now, writes: [*now, *chain(*writes)])]


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_a_state_that_is_in_the_past_keeps_it(opened: Opened) -> None:
    builder = StateGraph(Deltas)
    builder.add_node("a", lambda _: {"steps": ["a"]})
    builder.add_edge(START, "a")
    async with opened(Lifetimes()) as state:
        body = ThreadCreate(ttl=ThreadTtl(ttl=10, strategy="keep_latest"))
        thread = (await state.threads.create("t", body))[0]["thread_id"]
        where: Any = {"configurable": {"thread_id": thread}}
        graph = builder.compile(checkpointer=state.storage.saver)
        done = await graph.ainvoke({"steps": ["in"]}, where)
        assert done == {"steps": ["in", "a"]}
        assert not await keep_latest(state.storage.database, thread)
        await later(state, 11)
        assert (await graph.aget_state(where)).values == done


async def test_what_holds_for_all_new_threads(opened: Opened) -> None:
    """Also those of runs, but for temporary ones; one's own time comes first; older ones stay."""
    async with opened(Lifetimes()) as state:
        old = await a_thread(state)
    async with opened(Lifetimes(ThreadTtl(ttl=10))) as state:
        new, own = await a_thread(state), await a_thread(state, ttl=30)
        await later(state, 11)
        assert [await checkpoints(state, key) for key in (old, new, own)] == [2, None, 2]


async def test_items_have_a_time_by_default(opened: Opened) -> None:
    async with opened(Lifetimes(items=10.0)) as state:
        store = TenantStore(state.storage.store, "t")
        await store.aput(("n",), "a", {"v": 1})
        await store.aput(("n",), "for ever", {"v": 1}, ttl=None)
        query = "UPDATE store SET expires_at = '2000-01-01 00:00:00' WHERE ttl_minutes = 10"
        async with state.storage.database.writing() as connection:
            assert (await connection.exec_driver_sql(query)).rowcount == 1
        await state.storage.forget_items()
        assert [one.key for one in await store.asearch(("n",))] == ["for ever"]


async def test_clients_set_and_see_it(client: LangGraphClient, http: httpx.AsyncClient) -> None:
    made = await client.threads.create(ttl=60)
    key = made["thread_id"]
    found: Any = await client.threads.get(key, include=["ttl"])
    assert (found["ttl"]["strategy"], found["ttl"]["ttl_minutes"]) == ("delete", 60)
    assert found["ttl"]["expires_at"] > found["updated_at"]
    await client.threads.update(key, metadata={"a": 1}, ttl={"ttl": 5, "strategy": "keep_latest"})
    found = await client.threads.get(key, include=["ttl"])
    assert (found["ttl"]["strategy"], found["metadata"]) == ("keep_latest", {"a": 1})
    assert "ttl" not in await client.threads.get(key)
    other = (await client.threads.create())["thread_id"]
    assert "ttl" not in await client.threads.get(other, include=["ttl"])
    for wrong in ({"ttl": -1}, {"ttl": 1, "strategy": "burn"}, {}, 60):
        answer = await http.post("/threads", json={"thread_id": str(uuid4()), "ttl": wrong})
        assert (answer.status_code, "ttl" in answer.text) == (422, True)
    assert (await http.get(f"/threads/{key}?include=all")).status_code == 422


def test_a_project_says_how_long(tmp_path: Path) -> None:
    path = _project(
        tmp_path,
        checkpointer={"ttl": {"default_ttl": 60, "strategy": "keep_latest", "sweep_limit": 5}},
        store={"ttl": {"default_ttl": 10, "sweep_interval_minutes": 5}},
    )
    assert read_lifetimes([path]) == Lifetimes(ThreadTtl(ttl=60, strategy="keep_latest"), 10, True)
    assert read_lifetimes([_project(tmp_path)]) == read_lifetimes([]) == Lifetimes()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"checkpointer": {"ttl": {"default_ttl": "soon"}}}, "checkpointer.ttl.default_ttl"),
        ({"checkpointer": {"ttl": {"strategy": "burn"}}}, "checkpointer.ttl.strategy"),
        ({"store": {"ttl": {"after": 3}}}, "store.ttl.after"),
        ({"store": {"ttl": 3}}, "store.ttl"),
    ],
)
def test_invalid_settings_get_an_error(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentrtError, match=says):
        read_lifetimes([_project(tmp_path, **settings)])


def _project(folder: Path, **settings: Any) -> Path:
    path = folder / "langgraph.json"
    path.write_text(json.dumps({"graphs": {}, **settings}))
    return path
