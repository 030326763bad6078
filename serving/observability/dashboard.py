"""The dashboard of programs that a command runs: a server with this API alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn

from agentrt.errors import ConfigError
from agentrt.runtime import Runtime
from agentrt.serving._compat import EmbeddedServer
from agentrt.serving.app import opened_app
from agentrt.serving.observability import api
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import Server

_HOST = "127.0.0.1"
_SHUTDOWN_S = 1


@contextlib.asynccontextmanager
async def dashboard(runtime: Runtime, port: int = 0) -> AsyncIterator[str]:
    """Serve the dashboard of ``runtime`` to this machine alone; gives the page's address.

    With ``port`` 0 any free one is taken. Raises `ConfigError` if the port is not free.
    """
    with contextlib.closing(_listen(port)) as listening:
        server = Server(runtime, models=(runtime.executor.info.model,))
        async with opened_app(server, [questions, api]) as app:
            config = uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="critical",  # stderr is the command's
                access_log=False,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
            web = EmbeddedServer(config)
            task = asyncio.create_task(web.serve([listening]), name="dashboard")
            try:
                yield f"http://{_HOST}:{listening.getsockname()[1]}/dashboard"
            finally:
                server.draining = web.should_exit = True
                await asyncio.wait([task])
                task.result()  # raises what the server failed with


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--dashboard {port}: {error}; give another port, or 0 for any that is free"
        ) from error
