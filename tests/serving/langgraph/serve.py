"""A server in a thread of its own, on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from agentrt import Runtime
from agentrt.program import Program
from agentrt.serving._compat import SocketProtocol
from agentrt.serving.langgraph import api
from agentrt.serving.origins import Origins
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import Api, KeyCheck, ServedGraph, ServedProgram, Server
from agentrt.serving.webhook_rules import WebhookRules
from agentrt.steady import MachineClocks
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import TURN_S
from tests.serving.watchdog import opened_app


@dataclass(slots=True)
class Serving:
    """A server that runs: where, and what is in it."""

    url: str = ""
    server: Server | None = None
    executor: ScriptedExecutor = field(default_factory=ScriptedExecutor)
    loop: asyncio.AbstractEventLoop | None = None
    error: BaseException | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """Call something on the server's loop."""

        async def called() -> Any:
            return function()

        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(TURN_S)


def served(things: dict[str, Any]) -> dict[str, ServedGraph | ServedProgram]:
    """Graphs and programs as a server has them."""
    return {
        name: ServedProgram(one, "tests.py")
        if isinstance(one, Program)
        else ServedGraph(one, "tests.py")
        for name, one in things.items()
    }


@contextmanager
def serving(
    things: dict[str, Any],
    database: str | Path,
    own: Api = api,
    keys: KeyCheck | None = None,
    *more: Api,
    executor: ScriptedExecutor | None = None,
    origins: Sequence[str] = (),
    webhooks: WebhookRules | None = None,
    machine: MachineClocks | None = None,
) -> Iterator[Serving]:
    """Serve graphs and programs until the block's end, with ``more`` APIs beside their own."""
    where = str(database) if ":" in str(database) else f"sqlite:{database}"
    it = Serving(executor=executor or ScriptedExecutor())
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    it.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        it.loop = asyncio.get_running_loop()
        async with Runtime(it.executor) as runtime:
            it.server = Server(
                runtime,
                ("scripted",),
                served(things),
                where,
                keys=keys,
                origins=Origins(origins=origins),
                webhooks=webhooks or WebhookRules(),
                machine=machine or MachineClocks(),
            )
            async with opened_app(it.server, [questions, own, *more]) as app:
                config = uvicorn.Config(app, log_level="warning", lifespan="off", ws=SocketProtocol)
                web = uvicorn.Server(config)
                task = asyncio.create_task(web.serve(sockets=[listening]))
                while not web.started:
                    await asyncio.sleep(0.001)
                ready.set()
                await asyncio.to_thread(over.wait)
                web.should_exit = web.force_exit = True
                await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            it.error = error
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(TURN_S)
        if it.error is not None:
            raise it.error
        yield it
    finally:
        over.set()
        thread.join(TURN_S)
        listening.close()
        assert not thread.is_alive()
