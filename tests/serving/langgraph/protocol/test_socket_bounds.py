"""The limits of a WebSocket, and its end with its server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from websockets.frames import Opcode

from agentrt import Runtime
from agentrt.serving import listen
from agentrt.serving.langgraph import api
from agentrt.serving.langgraph.protocol.routes import MOST_SUBSCRIPTIONS
from agentrt.serving.listen import Listener
from agentrt.serving.origins import Origins
from agentrt.serving.server import Bounds, Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import GATES, TURN_S, all_graphs
from tests.serving.langgraph.protocol.test_protocol import VALUES
from tests.serving.langgraph.protocol.test_protocol_socket import opened, status
from tests.serving.langgraph.serve import Serving, served
from tests.serving.watchdog import opened_app


async def test_a_connection_has_so_many_subscriptions(it: Serving) -> None:
    async with opened(it.url) as socket:
        for _ in range(MOST_SUBSCRIPTIONS):
            await socket.subscribe("lifecycle")
        more = await socket.ask("subscription.subscribe", channels=["lifecycle"])
        assert (more["error"], "64" in more["message"]) == ("invalid_argument", True)


async def test_commands_count_as_requests_and_are_bounded_as_they_are(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert it.server is not None
    async with opened(it.url) as socket:
        many: list[Any] = [[]] * 70_000
        text = json.dumps({"id": 1, "method": "run.start", "params": {"input": many}})
        await socket.connection.send(text)
        code, why = await socket.closed()
        assert (code, "objects and lists" in why) == (4413, True)
    limits = it.server.tenants.limits("default")
    with monkeypatch.context() as patch:
        few = type(limits)(http_requests_per_minute=2)
        patch.setattr(it.server.tenants, "_limits_of", lambda: {"frugal": few})
        headers = {"x-agentrt-tenant": "frugal"}
        async with opened(it.url, additional_headers=headers) as socket:
            await socket.ask("state.get", namespace=[])
            busy = await socket.ask("state.get", namespace=[])
            assert (busy["error"], "per minute" in busy["message"]) == ("unknown_error", True)
            assert await status(it.url, additional_headers=headers) == 429


# -- its own listener ---------------------------------------------------------------------


@asynccontextmanager
async def listening(path: Path, bounds: Bounds) -> AsyncIterator[tuple[Listener, Server]]:
    """A server as ``agentrt serve`` has it."""
    listener = Listener("127.0.0.1", 0)
    async with Runtime(ScriptedExecutor()) as runtime:
        database = f"sqlite:{path / 'agentrt.db'}"
        things = served(all_graphs())
        server = Server(runtime, ("m",), things, database, bounds=bounds, origins=Origins())
        async with opened_app(server, [api]) as app:
            serve = asyncio.create_task(listener.serve(app, bounds))
            while not listener.ready.is_set():
                await asyncio.sleep(0)
            try:
                yield listener, server
            finally:
                listener.stop()
                await serve
    listener.close()


async def test_messages_that_are_too_long_end_the_connection(tmp_path: Path) -> None:
    async with listening(tmp_path, Bounds(message_bytes=1000)) as (listener, _):
        async with opened(listener.url) as socket:
            await socket.connection.send("x" * 2000)
            assert (await socket.closed())[0] == 1009
        assert await status(listener.url) == 101


async def test_a_silent_connection_is_pinged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "SOCKET_PING_S", 0.02)
    pings, came = 0, asyncio.Event()
    async with listening(tmp_path, Bounds()) as (listener, _), opened(listener.url) as socket:
        process: Any = socket.connection.process_event

        def counted(event: Any) -> None:
            nonlocal pings
            pings += getattr(event, "opcode", None) is Opcode.PING
            if pings == 3:
                came.set()
            process(event)

        monkeypatch.setattr(socket.connection, "process_event", counted)
        async with asyncio.timeout(TURN_S):
            await came.wait()


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    """At most one buffer of unread events is kept in the server."""
    async with (
        listening(tmp_path, Bounds(reader_s=0.2)) as (listener, _),
        opened(listener.url) as socket,
    ):
        await socket.subscribe("values")
        steps = ["x" * 1000] * 3_000
        await socket.ask("run.start", assistant_id="steps", input={"steps": steps})
        transport: Any = socket.connection.transport
        transport.pause_reading()
        web = listener._server
        assert web is not None
        async with asyncio.timeout(TURN_S):
            while web.server_state.connections:
                await asyncio.sleep(0.005)
        transport.abort()


async def test_a_server_that_stops_ends_connections_when_their_runs_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(tmp_path, Bounds()) as (listener, server):
        gate = str(uuid4())
        async with opened(listener.url) as idle, opened(listener.url) as socket:
            await socket.subscribe(*VALUES)
            given = {"gate": gate, "steps": []}
            await socket.ask("run.start", assistant_id="gate", input=given)
            await GATES.reached(gate)
            draining = asyncio.create_task(listener.drain(server, TURN_S))
            assert await idle.closed() == (1001, "the server is stopping")
            assert await status(listener.url) == 503
            GATES.open(gate)
            await socket.until("completed")
            assert await socket.closed() == (1001, "the server is stopping")
        await draining
    assert [one for one in caplog.records if one.name == "uvicorn.error"] == []
