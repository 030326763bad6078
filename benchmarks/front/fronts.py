"""A front end on a scripted engine, in a process of its own: agentrt's front end, or vLLM's front
end alone.

``python -m benchmarks.front.fronts NAME`` prints the URL of the front end. For each line of its
standard input, the process prints the resources that it has used so far, as JSON: CPU seconds, and
the number of functions (of Python and C) that were called while the counting was on. The line
"count" turns the counting on or off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
import uvloop

from agentrt import Runtime
from agentrt.cli.serving import settle
from agentrt.executors.replicas import RestartedEngine
from agentrt.executors.vllm._compat.api_server import make_app, make_renderer
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.entrypoints.client import ProgramEngineClient
from agentrt.executors.vllm.entrypoints.model_frontend import front_args
from agentrt.serving import server as serving
from agentrt.serving._compat import EmbeddedServer
from agentrt.serving.app import load_apis, opened_app
from agentrt.serving.frontend.dispatch import FrontendApp, fronts_of
from agentrt.serving.listen import Listener
from agentrt.serving.tenants import Limits, Tenants
from agentrt.serving.tenants.sharing import FairSharing
from benchmarks.servers import PARSER, Server
from tests.doubles.scripted_engine import ScriptedEngine

SAYS = [300 + i * 37 % 5000 for i in range(64)]
_HOST = "127.0.0.1"
_REST_S = 0.05
"""Seconds to wait until the ends of programs have reached the engine."""
_CALLS = ("call", "c_call")


class Served(NamedTuple):
    """A front end that serves at ``url``. ``settle`` ends all idle programs at once."""

    url: str
    settle: Callable[[], object] = lambda: None


class _Nothing(list[Any]):
    """A list that stays empty. It replaces the list in which a scripted engine would keep all its
    calls.
    """

    def append(self, item: Any) -> None:
        pass


def _engine() -> ScriptedEngine:
    model = default_model(lambda message: None)
    return ScriptedEngine(lambda call: SAYS, model, PARSER, calls=_Nothing(), ended=_Nothing())


@asynccontextmanager
async def agentrt() -> AsyncIterator[Served]:
    """Serve as `agentrt serve` does, without keys."""
    tenants, listener = Tenants(time.monotonic, Limits(), dict), Listener(_HOST, 0)
    controller = FairSharing(RestartedEngine(_engine), tenants)
    with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as folder:
        database = f"sqlite:{Path(folder, 'bench.db')}"
        async with Runtime(controller, model_names=(Server.NAME,)) as runtime:
            server = serving.Server(runtime, (Server.NAME,), {}, database, tenants=tenants)
            front = FrontendApp(server, fronts_of(await runtime.frontend()))
            async with (
                opened_app(server, load_apis(), front) as app,
                _served(listener.serve(app, server.bounds), listener.stop),
            ):
                # Without this sweep, programs without a name would end only some time after their
                # last call.
                yield Served(listener.url, lambda: server.programs.sweep(all_idle=True))


class _Client(ProgramEngineClient):
    """A client that passes the engine's outputs to vLLM's front end, and does nothing else."""

    engine: ScriptedEngine

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        assert self.engine.replay is not None
        for output in self.engine.replay.outputs(request_id, prompt, sampling_params, {}, SAYS):
            await asyncio.sleep(0)
            yield output


@asynccontextmanager
async def stock() -> AsyncIterator[Served]:
    """Serve as `vllm serve` does."""
    engine = _engine()
    await engine.start(lambda message: None)
    (setup,) = await engine.front_setups()
    args = front_args(setup, (Server.NAME,))
    client = _Client(setup, *make_renderer(setup.vllm_config), engine)
    client.engine = engine
    app = await make_app(client, args, setup.tasks, alone=True)
    with socket.create_server((_HOST, 0)) as listener:
        config = uvicorn.Config(app, log_level="error", access_log=False)
        config.load()
        server = EmbeddedServer(config, asyncio.Event())
        stop = partial(setattr, server, "should_exit", True)
        async with _served(server.serve(sockets=[listener]), stop):
            yield Served(f"http://{_HOST}:{listener.getsockname()[1]}")


FRONTS: dict[str, Callable[[], AbstractAsyncContextManager[Served]]] = {
    "stock": stock,
    "agentrt": agentrt,
}


@asynccontextmanager
async def _served(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        stop()
        await task


class _Counter:
    """A counter of the functions that this thread calls."""

    def __init__(self) -> None:
        self.called = 0
        self._on = False

    def turn(self) -> None:
        """Turn the counting on or off."""
        self._on = not self._on
        sys.setprofile(self._count if self._on else None)

    def _count(self, frame: object, event: str, argument: object) -> None:
        self.called += event in _CALLS


async def _serve(name: str) -> None:
    lines = asyncio.StreamReader()
    loop, counter = asyncio.get_running_loop(), _Counter()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with FRONTS[name]() as served:
        settle()
        _say(served.url)
        while line := await lines.readline():
            served.settle()
            await asyncio.sleep(_REST_S)
            if line == b"count\n":
                counter.turn()
            _say(json.dumps([time.process_time(), counter.called]))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(sys.argv[1]))
