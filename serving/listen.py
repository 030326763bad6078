"""Listens on a port, in the runtime's own event loop, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from agentrt.errors import ConfigError
from agentrt.serving.server import Bounds, Server
from agentrt.serving.timeouts import timeout_protocol

_KEEP_ALIVE_S = 30
_SPARE_FILES = 256
"""File descriptors that are no connections: the engine's, the database's, the programs' own."""


class _Quiet(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command has some."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A port that is ours. Nobody is answered there before `serve`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server: _Quiet | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        """Whether it takes connections by now."""
        return self._server is not None and self._server.started

    async def serve(self, app: Any, bounds: Bounds) -> None:
        """Serve ``app`` until `stop`. Cancelled, it drops what is under way."""
        config = uvicorn.Config(
            app,
            http=timeout_protocol(bounds),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # not a line for each bad request of somebody
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            limit_concurrency=min(bounds.connections, _files() - _SPARE_FILES),
        )
        server = self._server = _Quiet(config)
        try:
            await server.serve(sockets=[self._socket])
        except OSError as error:
            raise _taken(self.host, self.port, error) from error

    async def drain(self, server: Server, patience_s: float) -> None:
        """Take nothing new, and wait for what is under way, for so many seconds at most."""
        server.draining = True
        until = asyncio.get_running_loop().time() + patience_s
        while tasks := self._requests() | server.under_way:
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.wait(tasks, timeout=left)
        self.stop()

    def _requests(self) -> set[asyncio.Task[Any]]:
        return set() if self._server is None else self._server.server_state.tasks

    def stop(self) -> None:
        """End `serve`."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Free the port. Idempotent."""
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host!r}: no such address ({error})") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(0)  # so that a second server is refused now, and not when its engine is up
    except OSError as error:
        bound.close()
        raise _taken(host, port, error) from error
    return bound


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"port {port} at {host}: {reason}; choose another with --port")


def _files() -> int:
    """How many files this process may open, as many as it is allowed to ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
