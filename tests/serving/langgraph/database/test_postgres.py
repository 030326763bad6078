"""The same API on PostgreSQL, for real: a cluster of the tests' own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
import pytest_asyncio
import sqlalchemy as sa
from fastapi import HTTPException
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError

from agentrt import Runtime
from agentrt.errors import ConfigError
from agentrt.serving.langgraph import tenant_state
from agentrt.serving.langgraph.database import connections as database
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.langgraph.database.threads import sweep
from agentrt.serving.langgraph.outages import READER
from agentrt.serving.lifetimes import ThreadTtl
from agentrt.serving.server import Server
from agentrt.serving.tenants import Limits, Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import GATES, TURN_S, all_graphs
from tests.serving.langgraph.postgres import new_database
from tests.serving.langgraph.runs.test_runs import DONE, IN, a_thread
from tests.serving.langgraph.runs.test_sweep import a_run, end
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.langgraph.threads.test_threads import changed_at_once
from tests.serving.tenants.plain_keys import PlainKeys


@pytest.fixture(scope="module")
def it(url: str) -> Iterator[Serving]:
    with serving(all_graphs(), url) as it:
        yield it


@pytest_asyncio.fixture
async def client(it: Serving) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=it.url) as client:
        yield client


async def test_threads_runs_and_states(client: LangGraphClient, url: str) -> None:
    thread = await a_thread(client)
    assert await client.runs.wait(thread, "steps", input=IN) == DONE
    states: list[Any] = list(await client.threads.get_history(thread))
    assert len(states) == 5
    place = states[2]["checkpoint"]
    again = await client.runs.wait(thread, "steps", input=None, checkpoint=place)
    assert again == DONE
    copy: Any = await client.threads.copy(thread)  # type: ignore[func-returns-value]
    assert (await client.threads.get_state(copy["thread_id"]))["values"] == DONE
    before = await _values_of(url, thread)
    await client.threads.prune([thread], strategy="keep_latest")
    assert len(await client.threads.get_history(thread)) == 1
    assert (await client.threads.get_state(thread))["values"] == DONE
    assert 0 < await _values_of(url, thread) < before
    await client.threads.delete(thread)
    assert await _values_of(url, thread) == 0
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)


_ENTERS_SLOWLY = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$;
CREATE TRIGGER hold BEFORE INSERT ON agentrt_runs FOR EACH ROW EXECUTE FUNCTION hold();
"""


async def test_a_thread_is_busy_if_a_run_enters_as_another_ends(url: str) -> None:
    """The row of the thread is locked by the new run as the state of the ended run is stored."""
    database, first, second = new_database(url), str(uuid4()), str(uuid4())
    own = await psycopg.AsyncConnection.connect(database, autocommit=True)
    with serving(all_graphs(), database) as it:
        async with own, get_client(url=it.url) as client:
            thread = await a_thread(client)
            await client.runs.create(thread, "gate", input={"gate": first, "steps": []})
            await GATES.reached(first)
            await own.execute(_ENTERS_SLOWLY)
            await own.execute("SELECT pg_advisory_lock(42)")
            entering = asyncio.create_task(
                client.runs.create(thread, "gate", input={"gate": second, "steps": []})
            )
            await _waiting(own, 1)
            GATES.open(first)
            await _waiting(own, 2)
            await own.execute("SELECT pg_advisory_unlock(42)")
            run = await entering
            await GATES.reached(second)
            assert (await client.threads.get(thread))["status"] == "busy"
            GATES.open(second)
            await client.runs.join(thread, run["run_id"])
            assert (await client.threads.get(thread))["status"] == "idle"


_INSERTS_TOGETHER = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$;
CREATE TRIGGER hold AFTER INSERT ON agentrt_{table} FOR EACH ROW EXECUTE FUNCTION hold();
"""


@pytest.mark.parametrize(
    ("table", "path", "body"),
    [
        ("threads", "/threads", {}),
        ("threads", "/runs/batch", [{"assistant_id": "steps", "input": {"steps": []}}]),
        ("assistants", "/assistants", {"graph_id": "steps"}),
        ("crons", "/runs/crons", {"assistant_id": "steps", "schedule": "@yearly"}),
    ],
    ids=["thread", "batch", "assistant", "cron"],
)
async def test_rows_that_are_added_at_once_all_count_towards_the_limit(
    url: str, table: str, path: str, body: Any
) -> None:
    """Four transactions have added a row, or wait to, before any of them counts."""
    database = new_database(url)
    own = await psycopg.AsyncConnection.connect(database, autocommit=True)
    with serving(all_graphs(), database, keys=PlainKeys()) as it:
        assert it.server is not None
        key = {"authorization": "Bearer small"}
        async with own, httpx.AsyncClient(base_url=it.url, headers=key, timeout=60) as http:
            listed = await http.post("/assistants/search", json={"limit": 1000})
            limits = Limits(threads=1, assistants=len(listed.json()) + 1, crons=1)
            it.server.tenants = Tenants(lambda: 0.0, limits_of=lambda: {"small": limits})
            await own.execute(_INSERTS_TOGETHER.replace("{table}", table))
            await own.execute("SELECT pg_advisory_lock(42)")
            adding = [asyncio.create_task(http.post(path, json=body)) for _ in range(4)]
            await _waiting(own, 4)
            await own.execute("SELECT pg_advisory_unlock(42)")
            statuses = sorted([(await task).status_code for task in adding])
            assert statuses == [200, 507, 507, 507]


async def _waiting(connection: psycopg.AsyncConnection[Any], transactions: int) -> None:
    """Wait until so many transactions wait for locks."""
    query = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(TURN_S):
        while (await (await connection.execute(query)).fetchone()) != (transactions,):
            await asyncio.sleep(0.01)


async def _values_of(url: str, thread: str) -> int:
    """How many values of checkpoints are stored."""
    query = "SELECT count(*) FROM checkpoint_blobs WHERE thread_id = %s AND type <> 'empty'"
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute(query, [thread])).fetchone()
    assert row is not None
    return int(row[0])


async def test_searches(client: LangGraphClient) -> None:
    mark = str(uuid4())
    for n in range(3):
        await client.threads.create(metadata={"mark": mark, "n": n, "tags": [n, "x"]})
    found = await client.threads.search(metadata={"mark": mark, "tags": [1]})
    assert [(one["metadata"] or {})["n"] for one in found] == [1]
    assert await client.threads.count(metadata={"mark": mark}) == 3
    assert await client.assistants.count(metadata={"created_by": "system"}) == len(all_graphs())


async def test_a_tenants_first_requests_may_come_at_once(it: Serving) -> None:
    """Each finds that the tenant has no assistants yet."""
    said = {"x-agentrt-tenant": "new"}
    async with httpx.AsyncClient(base_url=it.url, headers=said, timeout=60) as http:
        answers = await asyncio.gather(*(http.get("/assistants/steps") for _ in range(8)))
    assert {one.status_code for one in answers} == {200}


async def test_store_and_resumable_streams(client: LangGraphClient) -> None:
    root = str(uuid4())
    await client.store.put_item([root, "a"], "k", {"n": 1})
    assert (await client.store.get_item([root, "a"], "k"))["value"] == {"n": 1}
    assert (await client.store.list_namespaces(prefix=[root]))["namespaces"] == [[root, "a"]]
    thread = await a_thread(client)
    parts = [
        part
        async for part in client.runs.stream(
            thread, "steps", input=IN, stream_mode="values", stream_resumable=True
        )
    ]
    run = parts[0].data["run_id"]
    joined = client.runs.join_stream(thread, run, last_event_id="2")
    assert [part async for part in joined] == parts[2:]


async def test_background_work_of_a_server(url: str) -> None:
    """A server sweeps threads, sends waiting webhooks, and finds the runs of a task."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("CREATE DATABASE swept")
    where = url.replace("/postgres", "/swept")
    server = Server(Runtime(ScriptedExecutor()), (), {}, where)
    async with tenant_state.open_tenant_state(server) as state:
        row, _ = await state.runs.enter(a_run(temporary=False), None)
        thread = str(row.thread_id)
        run = row.run_id
        found = await state.runs.last_of_task(thread, f"{thread}:{run}", run)
        assert found is not None
        assert (found.run_id, found.interrupts, found.is_newest) == (run, {}, True)
        assert await state.runs.last_of_task(thread, "other", str(uuid4())) is None
        assert [one.run_id for one in await state.runs.statuses(thread, 5)] == [row.run_id]
        assert await state.runs.since(thread, 0, 5, time.time() + 9)
        await end(state, row)
        assert not await state.runs.since(thread, 0, 5, time.time() + 9)
        for strategy in ("keep_latest", "delete"):
            ttl = ThreadTtl(ttl=1, strategy=strategy)
            await state.threads.patch("t", UUID(thread), {}, ttl, None)
            assert await sweep(state.storage.database, time.time() + 61) == 1
        with pytest.raises(HTTPException, match="not found"):
            await state.threads.get("t", UUID(thread))
        await state.webhooks.look()
        await state.clear_away(time.time())


async def test_no_change_of_an_assistant_is_lost(client: LangGraphClient) -> None:
    await changed_at_once(client)


async def test_a_url_with_a_character_that_postgresql_refuses_is_the_clients_mistake(
    it: Serving, client: LangGraphClient
) -> None:
    for path, status in (
        ("/store/items?key=%00&namespace=a", 400),
        ("/store/items?key=a&namespace=%00", 400),
        ("/v1/questions?thread=%00", 400),
        ("/v1/questions/%00", 404),
        ("/threads/%00/state", 404),
    ):
        answer = await client.http.client.get(path)
        assert (answer.status_code, "NUL" in answer.text) == (status, True), answer.text
    assert (await client.http.client.get("/store/items?key=%2500")).json() is None


def test_a_missing_database_gets_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"--database postgresql://x@127\.0\.0\.1:1/y"),
        serving(all_graphs(), "postgresql://x:secret@127.0.0.1:1/y"),
    ):
        pass


async def test_a_clients_slow_statement_is_cancelled(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE slow")
    monkeypatch.setattr(database, "READ_S", 0.05)
    async with database.open_database(Address.parse(url.replace("/postgres", "/slow"))) as slow:
        token = READER.set("ann")
        with pytest.raises(HTTPException, match="try again later") as refused:
            async with slow.reading() as reads:
                await reads.execute(sa.text("SELECT pg_sleep(60)"))
        READER.reset(token)
        assert refused.value.status_code == 503
        async with slow.reading() as reads:  # the server's own take what they take
            await reads.execute(sa.text("SELECT pg_sleep(0.1)"))
