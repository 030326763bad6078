"""A port before its server is ready, and after it has stopped."""

from __future__ import annotations

import socket

import httpx
import pytest

from agentrt import Runtime
from agentrt.errors import ConfigError
from agentrt.serving.listen import Listener
from agentrt.serving.observability import api as observability
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.watchdog import opened_app


async def test_a_bound_port_refuses_clients_and_other_servers_until_it_is_served() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("scripted",))
        listener = Listener("127.0.0.1", 0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port), 10).close()
        with pytest.raises(ConfigError, match="in use"):
            Listener("127.0.0.1", listener.port)
        async with (
            opened_app(server, [observability]) as app,
            listener.serving(app, server.bounds),
            httpx.AsyncClient(base_url=listener.url, timeout=60) as client,
        ):
            assert (await client.get("/health")).json() == {"status": "ok"}
        Listener("127.0.0.1", listener.port).close()
