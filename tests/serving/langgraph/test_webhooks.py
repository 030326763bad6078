"""Webhooks are called at the end of a run, only at hosts that the operator has named."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
from langgraph_sdk.client import LangGraphClient

from agentrt import Runtime
from agentrt.serving.langgraph import webhooks as telling
from agentrt.serving.langgraph.database.runs import NewRun, record_of
from agentrt.serving.langgraph.database.tables import webhooks
from agentrt.serving.langgraph.database.threads import Threads
from agentrt.serving.langgraph.runs import execution
from agentrt.serving.langgraph.tenant_state import open_tenant_state
from agentrt.serving.langgraph.webhooks import (
    TRIES,
    NotTakenError,
    Webhooks,
    new_client,
)
from agentrt.serving.server import Server
from agentrt.serving.webhook_rules import WebhookRules
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import TURN_S, all_graphs
from tests.serving.langgraph.protocol.test_protocol import start, until
from tests.serving.langgraph.runs.test_runs import IN, a_thread, at_a_gate
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.test_tls import made

LOCAL = WebhookRules(("127.0.0.1",), headers={"x-own": "yes", "content-type": "text/plain"})


class Listener:
    """Somebody who is told: what came, and what is answered next (200 when nothing is said)."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heard: Queue[tuple[dict[str, str], dict[str, Any]]] = Queue()
        self.answers: Queue[int] = Queue()
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                listener.heard.put((headers, json.loads(body)))
                status = 200 if listener.answers.empty() else listener.answers.get()
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Set-Cookie", "a=b")
                self.end_headers()

            def log_message(self, *about: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/told"
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
            self.url = self.url.replace("http", "https")

    async def next(self) -> tuple[dict[str, str], dict[str, Any]]:
        return await asyncio.to_thread(self.heard.get, timeout=TURN_S)


@contextmanager
def a_listener(tls: ssl.SSLContext | None = None) -> Iterator[Listener]:
    listener = Listener(tls)
    thread = threading.Thread(target=listener.server.serve_forever, args=(0.01,))
    thread.start()
    yield listener
    listener.server.shutdown()
    thread.join()
    listener.server.server_close()


@pytest.fixture(scope="module")
def listening() -> Iterator[Listener]:
    with a_listener() as listener:
        yield listener


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("hooks")
    with serving(all_graphs(), folder / "a.db", webhooks=LOCAL) as it:
        yield it


# -- ends ---------------------------------------------------------------------------------


async def test_an_end_is_told(client: LangGraphClient, listening: Listener) -> None:
    """With the run, the values of its thread, and the times."""
    thread = await a_thread(client)
    run = await client.runs.create(
        thread, "steps", input=IN, metadata={"n": 1}, webhook=listening.url
    )
    headers, body = await listening.next()
    assert headers["x-own"] == "yes"
    assert headers["content-type"] == "application/json"
    assert headers["host"] == listening.url.split("/")[2]
    assert (body["run_id"], body["thread_id"]) == (run["run_id"], thread)
    assert (body["status"], body["metadata"]["n"]) == ("success", 1)
    assert body["values"] == (await client.threads.get_state(thread))["values"]
    assert body["run_started_at"] <= body["run_ended_at"] <= body["webhook_sent_at"]
    assert "error" not in body


async def test_a_failure_is_told_and_a_run_without_a_thread(
    client: LangGraphClient, listening: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    await client.runs.wait(None, "fail", input=IN, webhook=listening.url, raise_error=False)
    _, body = await listening.next()
    assert body["status"] == "error"
    assert body["error"]["error"] == "ValueError"
    assert (
        f"run {body['run_id']} of thread {body['thread_id']} failed: ValueError at" in caplog.text
    )


async def test_a_run_whose_last_event_is_stored_at_the_second_try_is_told_once(
    it: Serving,
    client: LangGraphClient,
    http: httpx.AsyncClient,
    listening: Listener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the run and the end of its stream are stored together. The webhook is still to be
    called at the second try.
    """
    begin, begun = Webhooks.begin, list[tuple[Webhooks, str]]()
    monkeypatch.setattr(Webhooks, "begin", lambda *call: begun.append(call))
    monkeypatch.setattr(execution, "FIRST_BACKOFF_S", 0.01)
    faults = [sa.exc.OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))]

    def fail_once(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        is_end = "agentrt_events" in statement and '"completed"' in str(values)
        if is_end and faults:
            raise faults.pop()

    thread = str(uuid4())
    sa.event.listen(sa.Engine, "before_cursor_execute", fail_once)
    try:
        run = await start(http, thread, "bare", {"messages": []}, webhook=listening.url)
        await until(http, thread, "completed")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", fail_once)
    assert not faults
    assert (await client.runs.get(thread, run))["status"] == "success"
    it.call(lambda: [begin(*call) for call in begun])
    assert [(await listening.next())[1]["run_id"] for _ in begun] == [run]


async def test_an_end_that_was_stored_by_a_failed_try_is_not_stored_again(
    client: LangGraphClient,
    listening: Listener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection to the database breaks after the commit."""
    monkeypatch.setattr(execution, "FIRST_BACKOFF_S", 0.01)
    faults = [sa.exc.OperationalError("COMMIT", {}, sqlite3.OperationalError("disk is full"))]
    update_state = Threads.update_state

    async def stored_but_failed(threads: Threads, key: str, state: Any, *run_end: Any) -> None:
        await update_state(threads, key, state, *run_end)
        if run_end and faults:
            raise faults.pop()

    monkeypatch.setattr(Threads, "update_state", stored_but_failed)
    thread = (await client.threads.create())["thread_id"]
    stream = client.runs.stream(
        thread, "steps", input=IN, webhook=listening.url, stream_resumable=True
    )
    parts = [part.event async for part in stream]
    assert not faults
    assert parts.count("values") == len(parts) - 1, "and the metadata"
    [run] = await client.runs.list(thread)
    assert run["status"] == "success"
    _, body = await listening.next()
    assert (body["run_id"], listening.heard.empty()) == (run["run_id"], True)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_who_is_cancelled_is_not_told(client: LangGraphClient, listening: Listener) -> None:
    """As with LangGraph's own server, only the next run calls its webhook."""
    thread, run, _ = await at_a_gate(client, webhook=listening.url)
    await client.runs.cancel(thread, run, wait=True)
    after = await client.runs.create(thread, "steps", input=IN, webhook=listening.url)
    _, body = await listening.next()
    assert body["run_id"] == after["run_id"]


async def test_runs_of_a_cron_are_told(client: LangGraphClient) -> None:
    with a_listener() as own:
        cron: Any = await client.crons.create(
            "steps", schedule="* * * * * *", input=IN, webhook=own.url
        )
        _, body = await own.next()
        await client.crons.delete(cron["cron_id"])
    assert body["kwargs"]["config"]["configurable"]["cron_id"] == cron["cron_id"]


# -- tries --------------------------------------------------------------------------------


@asynccontextmanager
async def home(
    folder: Path, rules: WebhookRules = LOCAL, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[tuple[Server, Webhooks, list[float]]]:
    """A server's webhooks, which rest without time passing, and the rests."""
    runtime, rests = Runtime(ScriptedExecutor()), list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    server = Server(runtime, (), {}, f"sqlite:{folder / 'a.db'}", webhooks=rules)
    async with open_tenant_state(server) as state:
        hooks = state.webhooks
        hooks._sleep = rest
        if transport is not None:
            hooks._clients = {"https": new_client(transport=transport)}
        yield server, hooks, rests
        await hooks.close()


async def ended(hooks: Webhooks, url: str, tenant: str = "t") -> str:
    """A run that has ended, of which somebody is still to be told."""
    from agentrt.serving.langgraph.database.quotas import Quotas
    from agentrt.serving.langgraph.database.runs import Runs

    runs = Runs(hooks._database, Quotas(hooks._server))
    texts = {"tenant": tenant, "assistant_id": str(uuid4()), "graph_id": "g"}
    columns = {**texts, "multitask_strategy": "enqueue", "metadata": {}, "start_at": 0.0}
    row, _ = await runs.enter(NewRun(None, columns, {"webhook": url}, False, True), None)
    end = runs.end(row.run_id, "success", b"1", None)
    await hooks._database.write(end, *hooks.note(record_of(row), 0.0, {"v": 1}, None))
    return str(row.run_id)


async def left(hooks: Webhooks) -> int:
    """How many are still to be told."""
    while hooks._tasks:
        await asyncio.wait(list(hooks._tasks.values()))
    return await hooks._database.count(webhooks, [sa.true()])


async def test_what_was_not_told_is_told_after_the_next_start(
    tmp_path: Path, listening: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A server is killed between a run's end and the telling. 2. The next one tells it."""
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "begin", lambda *_: None)
        async with home(tmp_path) as (_, hooks, _):
            run_id = await ended(hooks, listening.url)
    async with home(tmp_path) as (_, hooks, _):
        _, body = await listening.next()
        assert (body["run_id"], body["values"]) == (run_id, {"v": 1})
        assert await left(hooks) == 0
        await hooks.look()
        assert not hooks._tasks


async def test_who_does_not_hear_is_tried_again_and_then_left(
    tmp_path: Path, listening: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the other side is tried again; its refusal, and a redirect, are not."""
    async with home(tmp_path) as (server, hooks, rests):
        for answers, tries in (([503, 429], 3), ([500] * TRIES, TRIES), ([404], 1), ([302], 1)):
            for status in answers:
                listening.answers.put(status)
            rests.clear()
            hooks.begin(await ended(hooks, listening.url))
            assert server.under_way
            assert await left(hooks) == 0
            assert len(rests) == tries - 1
            assert [(await listening.next())[0].get("cookie") for _ in range(tries)] == [
                None
            ] * tries
            assert listening.heard.empty()
        assert rests == sorted(rests)
        assert not server.under_way
    assert caplog.text.count("the call of its webhook failed") == 3


# -- where --------------------------------------------------------------------------------


async def test_the_address_that_was_checked_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means another address the next time gains nothing by it; TLS knows the name."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200)

    meanings = iter([["93.184.216.34"], ["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(meanings)

    monkeypatch.setattr(telling, "resolve", resolve)
    async with home(tmp_path, WebhookRules(("*",)), httpx.MockTransport(answer)) as (_, hooks, _):
        await hooks.post("https://hooks.example:8443/a?b=c", b"{}")
        for _ in range(2):
            with pytest.raises(ValueError, match=r"127\.0\.0\.1, which may not be called"):
                await hooks.post("https://hooks.example/", b"{}")
    [request] = asked
    assert str(request.url) == "https://93.184.216.34:8443/a?b=c"
    assert request.headers["host"] == "hooks.example:8443"
    assert request.extensions["sni_hostname"] == "hooks.example"


async def test_all_addresses_of_a_host_are_tried(
    tmp_path: Path, listening: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the first: as for a receiver at 127.0.0.1, if localhost is ::1, too."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(telling, "resolve", resolve)
    async with home(tmp_path, WebhookRules(("localhost",))) as (_, hooks, _):
        await hooks.post(listening.url.replace("127.0.0.1", "localhost"), b'{"a": 1}')
        headers, body = await listening.next()
        assert body == {"a": 1}
        assert headers["host"].startswith("localhost:")
        with pytest.raises(httpx.ConnectError):
            await hooks.post("http://localhost:9/", b"{}")


async def test_servers_are_trusted_by_the_certificates_of_the_environment(
    tmp_path: Path,
    listening: Listener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A file that cannot be read is named, and calls over HTTP need none. 2. A file with the
    server's certificate is enough."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    made(chain, key, "-nodes")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with a_listener(tls) as secure:
        async with home(tmp_path) as (_, hooks, rests):
            await hooks._try(secure.url, "r", b"{}")
            assert "SSL_CERT_FILE='/nonexistent': No such file" in caplog.text
            assert not rests
            await hooks.post(listening.url, b"{}")
            assert (await listening.next())[1] == {}
            monkeypatch.setenv("SSL_CERT_FILE", str(chain))
            await hooks.post(secure.url, b"{}")
            assert (await secure.next())[1] == {}


async def test_a_host_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    async with home(tmp_path, WebhookRules(("nowhere.invalid",))) as (_, hooks, rests):
        await hooks._try("http://nowhere.invalid/", "r", b"{}")
        assert len(rests) == TRIES - 1
        with pytest.raises((OSError, NotTakenError)):
            await hooks.post("http://nowhere.invalid/", b"{}")


async def test_who_asks_for_a_host_that_is_not_named_learns_it(http: httpx.AsyncClient) -> None:
    body = {"assistant_id": "steps", "input": IN, "webhook": "http://10.0.0.1/"}
    cron = {**body, "schedule": "@yearly"}
    for path, sent in (("/runs", body), ("/runs/batch", [body]), ("/runs/crons", cron)):
        answer = await http.post(path, json=sent)
        assert answer.status_code == 422
        assert "webhook: the host '10.0.0.1' is not allowed" in answer.json()["detail"]
