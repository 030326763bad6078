"""Listens on a port, in the runtime's own event loop, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from agentrt.errors import ConfigError
from agentrt.serving._compat import EmbeddedServer, SocketProtocol, TimeoutProtocol, bounded
from agentrt.serving.server import Bounds, Server

_KEEP_ALIVE_S = 30
SOCKET_PING_S = 10.0
"""Seconds between the pings of a WebSocket: proxies cut connections that are silent."""
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds until a silent connection is probed, seconds between probes, and how many of them may be
lost: an answer that comes in one piece has no other sign of life, and its client may be gone.
"""
_SPARE_FILES = 256
"""File descriptors for other things: the engine, the database, the programs themselves."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server shows of itself over TLS: PEM files. Without ``key`` it is in ``chain``."""

    chain: Path
    key: Path | None = None

    def check(self) -> None:
        """Raise `ConfigError` for files that cannot be used."""

        def no_password() -> str:
            raise ConfigError(
                f"--ssl-keyfile {self.key or self.chain}: give one without a password"
            )

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.chain, self.key, no_password)
        except OSError as error:  # an SSLError is one
            why = "no certificate and its key, as PEM"
            if not isinstance(error, ssl.SSLError):
                why = (error.strerror or str(error)).lower()
            given = f"--ssl-certfile {self.chain}"
            if self.key is not None:
                given += f", --ssl-keyfile {self.key}"
            raise ConfigError(f"{given}: {why}") from error


class Listener:
    """A bound port, with TLS if there is a ``certificate``. Connections are answered once `serve`
    runs.
    """

    def __init__(self, host: str, port: int, certificate: Certificate | None = None) -> None:
        if certificate is not None:
            certificate.check()
        self.host = host
        self._certificate = certificate
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server: EmbeddedServer | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """The server's address for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._certificate is None else 'https'}://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        """Whether it accepts connections yet."""
        return self._server is not None and self._server.started

    async def serve(self, app: Any, bounds: Bounds) -> None:
        """Serve ``app`` until `stop`. When cancelled, drop the requests under way."""
        own = self._certificate
        config = uvicorn.Config(
            app,
            ssl_certfile=None if own is None else own.chain,
            ssl_keyfile=None if own is None else own.key,
            http=bounded(TimeoutProtocol, bounds),
            ws=bounded(SocketProtocol, bounds),
            ws_max_size=min(bounds.message_bytes, bounds.body_bytes),
            ws_ping_interval=SOCKET_PING_S,
            ws_per_message_deflate=False,  # it costs each connection memory, and unpacks bombs
            lifespan="off",
            log_config=None,
            log_level="error",  # no line for every bad request
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            limit_concurrency=min(bounds.connections, _file_limit() - _SPARE_FILES),
        )
        logging.getLogger("uvicorn.error").addFilter(_is_a_fault)
        server = self._server = EmbeddedServer(config)
        server.should_exit = self._is_stopped
        try:
            await server.serve(sockets=[self._socket])
        except OSError as error:
            raise _port_error(self.host, self.port, error) from error

    @contextlib.asynccontextmanager
    async def serving(self, app: Any, bounds: Bounds) -> AsyncIterator[None]:
        """Serve ``app`` while the block runs, and free the port after it. Raises what serving
        failed with.
        """
        with contextlib.closing(self):
            task = asyncio.create_task(self.serve(app, bounds))
            try:
                yield
            finally:
                self.stop()
                await task

    async def drain(self, server: Server, timeout_s: float) -> None:
        """Take nothing new, wait at most ``timeout_s`` for what is under way, and stop."""
        server.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(end() for end in server.at_drain))
                while tasks := self._requests() | server.under_way:
                    await asyncio.wait(tasks)
        self.stop()

    def _requests(self) -> set[asyncio.Task[Any]]:
        return set() if self._server is None else self._server.requests()

    def stop(self) -> None:
        """End `serve`, also one that is yet to begin."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Free the port. Idempotent."""
        self._socket.close()


def _is_a_fault(record: logging.LogRecord) -> bool:
    """A request that a stop has cut off is none: uvicorn would log its traceback."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


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
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its connections have it too
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        bound.bind(address)
        bound.listen(0)  # a second server fails now, and not only once its engine is up
    except OSError as error:
        bound.close()
        raise _port_error(host, port, error) from error
    return bound


def _port_error(host: str, port: int, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"port {port} at {host}: {reason}; choose another with --port")


def _file_limit() -> int:
    """How many files this process may open, after raising the limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
