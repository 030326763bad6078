"""The dashboard beside programs that a command runs: a server of this room alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from agentrt.errors import ConfigError
from agentrt.runtime import Runtime
from agentrt.serving.app import opened_app
from agentrt.serving.observability import room
from agentrt.serving.server import Server

_HOST = "127.0.0.1"
_SHUTDOWN_S = 1


class _Guest(uvicorn.Server):
    """A uvicorn server that leaves signals to whom they belong."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def dashboard(runtime: Runtime, port: int = 0) -> AsyncIterator[str]:
    """Serve the dashboard of ``runtime`` on this machine alone; gives the page's address.

    With ``port`` 0 any free one is taken. Raises `ConfigError` where it is not free.
    """
    with contextlib.closing(_listen(port)) as listening:
        server = Server(runtime, models=(str(getattr(runtime.executor, "model", "")),))
        async with opened_app(server, [room]) as app:
            config = uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="critical",  # stderr is the command's
                access_log=False,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
            guest = _Guest(config)
            task = asyncio.create_task(guest.serve([listening]), name="dashboard")
            try:
                yield f"http://{_HOST}:{listening.getsockname()[1]}/dashboard"
            finally:
                server.draining = guest.should_exit = True
                await asyncio.wait([task])
                task.result()  # a fault of the server must not pass unseen


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"--dashboard {port}: {error}; give another port, or 0 for any that is free"
        ) from error
    return listening
