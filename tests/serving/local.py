"""A whole server over loopback, in the test's own loop, on a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from agentrt import Runtime
from agentrt.executors.base import Chunk, Executor
from agentrt.request import Call
from agentrt.serving.app import opened_app
from agentrt.serving.listen import Listener
from agentrt.serving.openai.api import api as openai
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import Bounds, KeyCheck, Served, Server
from agentrt.serving.tenants import Limits, Tenants
from agentrt.serving.tenants.admission import AdmissionController
from agentrt.testing.scripted import ScriptedExecutor

MODEL = "scripted"
WAIT_S = 10.0
"""What a test waits for is there sooner, or never."""


class Held(ScriptedExecutor):
    """Its calls give one token, and then wait until they are let go."""

    def __init__(self, **options: Any) -> None:
        super().__init__(lambda call: "one two three", **options)
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.open: set[str] = set()

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.open.add(call.call_id)
        try:
            async for chunk in super().generate(call, stream=stream):
                yield chunk
        finally:
            self.open.discard(call.call_id)

    async def _step(self, state: Any) -> None:
        await super()._step(state)
        if state.steps > 1:
            self.began.set()
            await self.go.wait()


@dataclass
class LocalServer:
    """A server that runs, and a client of it."""

    server: Server
    runtime: Runtime
    engine: Any
    url: str
    client: httpx.AsyncClient
    listener: Listener

    async def chat(self, *messages: Any, headers: Mapping[str, str] = {}, **more: Any) -> Any:
        """A chat, of user texts or whole messages; the JSON of its answer."""
        chat = [m if isinstance(m, dict) else {"role": "user", "content": m} for m in messages]
        body = {"model": MODEL, "messages": chat, **more}
        answer = await self.client.post("/v1/chat/completions", json=body, headers=dict(headers))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, condition: Any) -> None:
        """Wait until ``condition()``."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0)


@asynccontextmanager
async def open_server(
    engine: Executor | None = None,
    *,
    served: Mapping[str, Served] | None = None,
    limits: Limits | None = None,
    limits_of: Mapping[str, Limits] | None = None,
    keys: KeyCheck | None = None,
    bounds: Bounds | None = None,
    isolate: bool = False,
    is_shared: bool = False,
    apis: Sequence[Any] = (programs, openai),
) -> AsyncIterator[LocalServer]:
    """A server on a free port, until the block ends."""
    engine = ScriptedExecutor() if engine is None else engine
    loop = asyncio.get_running_loop()
    own = limits_of or {}
    tenants = Tenants(loop.time, limits or Limits(), lambda: own)
    admission = AdmissionController(engine, tenants, is_shared=is_shared, isolate=isolate)
    async with Runtime(admission) as runtime:
        server = Server(
            runtime,
            (MODEL,),
            served or {},
            tenants=tenants,
            keys=keys,
            bounds=bounds or Bounds(),
        )
        listener = Listener("127.0.0.1", 0)
        async with opened_app(server, apis) as app:
            serving = asyncio.create_task(listener.serve(app, server.bounds))
            try:
                async with httpx.AsyncClient(base_url=listener.url, timeout=WAIT_S) as client:
                    local = LocalServer(server, runtime, engine, listener.url, client, listener)
                    await local.until(lambda: listener.is_serving or serving.done())
                    yield local
            finally:
                listener.stop()
                await serving
                listener.close()
