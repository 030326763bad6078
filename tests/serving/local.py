"""A whole server over loopback, in the test's own loop, on a scripted engine under vLLM's front."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm")

from agentrt import Runtime
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.request import Call
from agentrt.serving.frontend.dispatch import FrontendApp, fronts_of
from agentrt.serving.listen import Listener
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import Bounds, KeyCheck, Served, Server
from agentrt.serving.tenants import Limits, Tenants
from agentrt.serving.tenants.sharing import FairSharing
from agentrt.steady import MachineClocks
from tests.doubles.scripted_engine import RawScript, ScriptedEngine
from tests.serving.watchdog import opened_app

MODEL = "scripted"
SAYS = "one two three"
WAIT_S = 240.0
"""What a test waits for is there sooner, or never."""

_SHARED: dict[tuple[str | None, tuple[str, ...], bool], Any] = {}


def called(*calls: tuple[str, Any]) -> str:
    """An output that calls a tool, in the form that the model's outputs are held to."""
    [(name, arguments)] = calls
    return json.dumps({"name": name, "arguments": arguments})


async def engine_and_fronts(
    flags: tuple[str, ...] = (), model: str | None = None, *, reminders: bool = True
) -> tuple[ScriptedEngine, Any]:
    """A started engine, and vLLM's front end on it: made once, since that takes seconds.

    A front end makes the calls of whoever asks it, and so serves the servers of all tests.
    """
    key = model, flags, reminders
    if key not in _SHARED:
        folder = model or str(embedded_model(lambda message: None))
        engine = ScriptedEngine(lambda call: SAYS, folder, flags)
        await engine.start(lambda message: None)
        front: Any = await open_frontend(engine, (MODEL,), reminders=reminders)
        front.close = _stays_open
        _SHARED[key] = replace(engine, front=front), front
    engine, front = _SHARED[key]
    return engine, fronts_of(front)


async def _stays_open() -> None:
    """Not closed by the runtimes that use it, one after another."""


class Held(ScriptedEngine):
    """An executor whose calls wait before their last token until they are released."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.open: set[str] = set()

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.open.add(call.call_id)
        made = ScriptedEngine.generate(self, call, stream=stream)
        try:
            async with contextlib.aclosing(made) as chunks:
                async for chunk in chunks:
                    if chunk.reply is not None:
                        self.began.set()
                        await self.go.wait()
                    yield chunk
        finally:
            self.open.discard(call.call_id)


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
        return await self.post("/v1/chat/completions", body, headers)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] = {}) -> Any:
        """The JSON of an answer that must be a success."""
        answer = await self.client.post(path, json=body, headers=dict(headers))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def programs(self) -> list[str]:
        """The ids of the live programs, in the order of their beginning."""
        return [row.program_id for row in self.runtime.table]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until ``condition()``: soon in this process, without haste for another one."""
        async with asyncio.timeout(WAIT_S):
            for turn in itertools.count():
                if condition():
                    return
                await asyncio.sleep(0 if turn < 200 else 0.002)


@asynccontextmanager
async def open_server(
    script: RawScript | None = None,
    *,
    kind: type[ScriptedEngine] = ScriptedEngine,
    flags: tuple[str, ...] = (),
    model: str | None = None,
    slots: int | None = None,
    served: Mapping[str, Served] | None = None,
    limits: Limits | None = None,
    limits_of: Mapping[str, Limits] | None = None,
    keys: KeyCheck | None = None,
    bounds: Bounds | None = None,
    isolate: bool = False,
    strict: bool = False,
    reminders: bool = True,
    keep_alive_s: float = 10.0,
    early_s: float = 0.0,
    is_shared: bool = False,
    submit: bool = False,
    apis: Sequence[Any] = (programs,),
    real: Executor | None = None,
    database: str = "sqlite:agentrt.db",
    machine: MachineClocks | None = None,
    middleware: Callable[[Any], Any] = lambda app: app,
) -> AsyncIterator[LocalServer]:
    """A server on a free port, until the block ends: on a scripted engine, or a ``real`` one.

    All requests pass the ``middleware``, as that of ``agentrt serve --middleware``.
    """
    if real is None:
        shared, fronts = await engine_and_fronts(flags, model, reminders=reminders)
        fields = {one.name: getattr(shared, one.name) for one in dataclasses.fields(shared)}
        own: dict[str, Any] = {"script": script or shared.script, "slots": slots}
        lists: dict[str, Any] = {"calls": [], "aborted_calls": [], "ended": [], "notes": []}
        engine: Any = kind(**{**fields, **own, **lists})
    else:
        engine, fronts = real, ()
    own_limits = limits_of or {}
    tenants = Tenants(asyncio.get_running_loop().time, limits or Limits(), lambda: own_limits)
    sharing = FairSharing(engine, tenants, is_shared=is_shared, isolate=isolate)
    async with Runtime(sharing, ask_human=None, model_names=(MODEL,)) as runtime:
        fronts = fronts or fronts_of(await runtime.frontend())
        server = Server(
            runtime,
            (MODEL,),
            served or {},
            database=database,
            machine=machine or MachineClocks(),
            tenants=tenants,
            keys=keys,
            bounds=bounds or Bounds(),
            submit=submit,
            keep_alive_s=keep_alive_s,
            early_s=early_s,
        )
        listener = Listener("127.0.0.1", 0)
        async with (
            opened_app(server, apis, FrontendApp(server, fronts, strict=strict)) as app,
            listener.serving(middleware(app), server.bounds),
            httpx.AsyncClient(base_url=listener.url, timeout=WAIT_S) as client,
        ):
            yield LocalServer(server, runtime, engine, listener.url, client, listener)
