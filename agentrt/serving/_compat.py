"""The places that depend on uvicorn's internals: timeouts, and a server inside the runtime's event
loop.

uvicorn has no public settings for these features. ``tests/serving/test_compat.py`` names the tested
versions of uvicorn, and fails if a method that is overridden here has disappeared.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import Receive
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agentrt.executors.chat_api import GONE
from agentrt.serving.server import Bounds

DROPPED_PER_S = 8 * 1024 * 1024
"""Maximum rate at which the rest of a refused body is read and dropped (bytes per second). Without
a limit, a single client could use half of the event loop's time.
"""
_UPGRADE = re.compile(rb"\r\nupgrade:(?![ \t]*websocket)[^\r\n]*(?=\r\n|$)", re.IGNORECASE)


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that installs no signal handlers, and sets ``ready`` when it answers
    connections.
    """

    def __init__(self, config: uvicorn.Config, ready: asyncio.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def requests(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of the requests in flight."""
        return self.server_state.tasks


def bounded(kind: type[ReaderTimeout], bounds: Bounds) -> type[asyncio.Protocol]:
    """Return a subclass of ``kind`` with ``bounds``, for uvicorn's options ``http`` and ``ws``."""
    return type(kind.__name__, (kind,), {"BOUNDS": bounds})


class ReaderTimeout(asyncio.Protocol):
    """A protocol that closes a connection whose client does not read.

    uvicorn would wait for such a client without a limit.
    """

    BOUNDS = Bounds()
    transport: asyncio.Transport
    _reader_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_reader_timer()
        super().connection_lost(exc)

    def _cancel_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None:
            later = asyncio.get_running_loop().call_later
            self._reader_timer = later(self.BOUNDS.reader_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_reader_timer()


def is_unwrapped(receive: Receive) -> bool:
    """Return whether ``receive`` is uvicorn's own function, and not a middleware's around it."""
    return isinstance(getattr(receive, "__self__", None), RequestResponseCycle)


def _without_upgrade(data: bytes) -> bytes:
    """Return the head of a request, and what follows it in ``data``, without an upgrade to a
    protocol other than WebSocket.

    A server may ignore the upgrade, but the parser would drop the request's body. Java's HTTP
    client offers ``h2c`` with its requests.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + end + rest


class SocketProtocol(ReaderTimeout, WebSocketsSansIOProtocol):
    """The protocol of WebSockets, which closes connections whose client does not read."""

    async def send(self, message: Any) -> None:
        """Send a message. Without this override, uvicorn logs an error for each refused
        handshake.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


class TimeoutProtocol(ReaderTimeout, HttpToolsProtocol):
    """The protocol of HTTP, which also closes a connection whose request takes too long to arrive.

    uvicorn itself waits without a limit for a request that arrives byte by byte. If too many
    connections are open, the application gets the request with ``is_over_limit`` in its state,
    because uvicorn's own answer has no JSON, no ``Retry-After`` and no request id.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's base narrows it, too
        super().connection_made(transport)
        self._request_timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] | None = None
        self._header_bytes = 0
        self._in_body = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        super().connection_lost(exc)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def data_received(self, data: bytes) -> None:
        if self._request_timer is None and not self._in_body:
            self._await_request()  # the next request on a kept-alive connection
        if not self._in_body:
            self._header_bytes += len(data)
            if b"upgrade" in data.lower():
                data = _without_upgrade(data)
        super().data_received(data)
        if self._in_body and self.cycle.response_complete:
            self._drop_slowly(len(data))
        if not self._in_body and self._header_bytes > self.BOUNDS.header_bytes:
            self._refuse(431, "Request Header Fields Too Large")

    def _drop_slowly(self, size: int) -> None:
        """Drop the rest of a refused body no faster than `DROPPED_PER_S`."""
        self.flow.pause_reading()
        self.loop.call_later(size / DROPPED_PER_S, self._go_on)

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        super().on_headers_complete()
        self._in_body = True  # not before: uvicorn refuses some requests here, such as odd URLs

    def on_message_complete(self) -> None:
        self._in_body = False
        self._header_bytes = 0
        self._cancel_request_timer()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._cancel_request_timer()
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if app is service_unavailable:  # too many connections: the application refuses the request
            cycle.scope["state"]["is_over_limit"] = True
            app = self.app
        self._gone = cycle.scope[GONE] = self.loop.create_future()
        super()._start_asgi_task(cycle, app)

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(self.BOUNDS.request_s, self._too_late)

    def _too_late(self) -> None:
        if self._in_body and self.flow.read_paused and not self.cycle.response_complete:
            # The client is not slow: the application has not yet read what has arrived.
            self._await_request()
        elif self._in_body:  # the waiting application learns that the client has disconnected
            self.transport.abort()
        else:
            self._refuse(408, "Request Timeout")

    def _refuse(self, status: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        head = f"HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        self.transport.write(head.encode("ascii"))
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close a kept-alive connection without a new request, even if answers are still unread."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()
