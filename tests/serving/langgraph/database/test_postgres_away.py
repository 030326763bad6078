"""PostgreSQL that is cut off, silent, read-only or locked: a server waits for it, and continues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import httpx
import psycopg
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, InternalServerError

from agentrt.errors import ConfigError
from agentrt.serving.langgraph import outages, tenant_state
from agentrt.serving.langgraph.database import connections as database
from agentrt.serving.langgraph.database import storage
from agentrt.serving.langgraph.database.connections import Address, open_database
from agentrt.serving.langgraph.runs import execution
from tests.serving.langgraph.graphs import GATES, all_graphs
from tests.serving.langgraph.postgres import Proxy, new_database
from tests.serving.langgraph.runs.test_runs import IN, a_thread, at_a_gate
from tests.serving.langgraph.serve import Serving, serving

WAIT_S = 60.0
READ_ONLY = "default_transaction_read_only"


@pytest_asyncio.fixture
async def admin(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection of ours to a new database."""
    own = new_database(url)
    async with await psycopg.AsyncConnection.connect(own, autocommit=True) as connection:
        yield connection


def url_of(admin: psycopg.AsyncConnection[Any]) -> str:
    return f"postgresql://agentrt@127.0.0.1:{admin.info.port}/{admin.info.dbname}"


T = TypeVar("T")


async def tried(request: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: each connection that broke is met once, and made anew."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(InternalServerError):
                return await request()


async def another(client: LangGraphClient) -> Any:
    """A run on a new thread, to its end."""
    return await client.runs.wait(await a_thread(client), "steps", input=IN)


async def all_is_well(
    it: Serving, client: LangGraphClient, begun: list[tuple[str, str, str]]
) -> None:
    """All runs come to their ends, and the next is as ever."""
    assert it.server is not None
    async with httpx.AsyncClient(base_url=it.url, timeout=WAIT_S) as http, asyncio.timeout(WAIT_S):
        for thread, run, _ in begun:
            at = f"/threads/{thread}/runs/{run}"
            while (answer := await http.get(f"{at}/join")).status_code != 200:
                assert (answer.status_code, answer.headers["retry-after"] > "0") == (503, True)
            ended = await tried(partial(client.runs.get, thread, run))
            assert ended["status"] in ("success", "error")
            kept = await tried(partial(client.threads.get, thread))
            assert kept["status"] in ("idle", "error")
        while it.call(it.server.background.failing):
            await asyncio.sleep(0.01)
        done: Any = await tried(partial(another, client))
    assert done["steps"][-1] == "last"


@asynccontextmanager
async def behind(url: str) -> AsyncIterator[tuple[Serving, LangGraphClient, Proxy]]:
    """A server whose database is behind a proxy, which runs in the test's own event loop."""
    proxy = Proxy(url)
    await proxy.open()
    opened = serving(all_graphs(), proxy.url)
    it = await asyncio.to_thread(opened.__enter__)
    try:
        async with get_client(url=it.url) as client:
            yield it, client, proxy
    finally:
        proxy.flow()
        await asyncio.to_thread(opened.__exit__, None, None, None)
        await proxy.cut()


async def refused(it: Serving, *asked: tuple[str, str]) -> None:
    async with httpx.AsyncClient(base_url=it.url, timeout=WAIT_S) as http:
        for method, path in asked:
            answer = await http.request(method, path, json={} if method == "POST" else None)
            assert answer.status_code == 503, (path, answer.text)
            assert answer.headers["retry-after"] > "0"


async def test_a_connection_that_is_cut_under_load(
    admin: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away, whoever asks is told so; what was under way ends once it is back, and the
    database is this server's again.
    """
    monkeypatch.setattr(execution, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(tenant_state, "KEEP_LOCK_S", 0.05)
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.1)
    async with behind(url_of(admin)) as (it, client, proxy):
        begun = [await at_a_gate(client) for _ in range(4)]
        await proxy.cut()
        for *_, gate in begun:
            GATES.open(gate)
        await refused(it, ("GET", f"/threads/{begun[0][0]}"), ("POST", "/threads"))
        await proxy.open()
        await all_is_well(it, client, begun)
        async with asyncio.timeout(WAIT_S):
            while not await is_taken(url_of(admin)):
                await asyncio.sleep(0.1)


async def is_taken(url: str) -> bool:
    """Return whether a server uses a database."""
    try:
        async with open_database(Address.parse(url)):
            return False
    except ConfigError as error:
        return "another server uses this database" in str(error)


async def test_a_database_that_is_silent(
    admin: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads are answered in time. What was under way takes as long as that, and loses nothing."""

    async def try_cancel(self: object, **options: object) -> None:
        """psycopg would wait for 5 s for the server to hear of it."""

    async with behind(url_of(admin)) as (it, client, proxy):
        begun = [await at_a_gate(client) for _ in range(2)]
        monkeypatch.setattr(outages, "READ_S", 0.1)
        monkeypatch.setattr(psycopg.AsyncConnection, "_try_cancel", try_cancel)
        proxy.stall()
        for *_, gate in begun:
            GATES.open(gate)
        await refused(it, ("GET", f"/threads/{begun[0][0]}"))
        monkeypatch.undo()
        proxy.flow()
        await all_is_well(it, client, begun)
        for thread, *_ in begun:
            assert (await client.threads.get(thread))["status"] == "idle"


async def test_a_database_that_takes_no_writes(
    admin: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a standby: rows can be read, and runs end when the database accepts writes again."""
    monkeypatch.setattr(execution, "FIRST_BACKOFF_S", 0.01)

    async def set_to(value: str) -> None:
        await admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {READ_ONLY} = {value}")
        await admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    async with behind(url_of(admin)) as (it, client, _):
        begun = [await at_a_gate(client)]
        await set_to("on")
        await tried(partial(client.threads.get, begun[0][0]))
        await refused(it, ("POST", "/threads"), ("POST", "/threads"))
        GATES.open(begun[0][2])
        await set_to("off")
        await all_is_well(it, client, begun)


async def test_the_wait_for_a_foreign_lock_is_limited(
    admin: psycopg.AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph's own tables have the same limit as ours."""
    monkeypatch.setattr(storage, "_BUSY_S", 1.0)  # more than a statement takes by itself
    async with behind(url_of(admin)) as (_, client, _):
        await client.store.put_item(["a"], "b", {})
        async with admin.transaction():
            await admin.execute("LOCK TABLE store IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(APIStatusError, match="statement timeout") as raised:
                await client.store.put_item(["a"], "b", {})
            assert raised.value.response.status_code == 503
        await client.store.put_item(["a"], "b", {})
