"""Where we reach into uvicorn, for timeouts and for a server inside our own loop.

uvicorn has no public setting for either. ``tests/serving/test_compat.py`` names the versions that
this was tested with, and fails when a hook that is overridden here is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agentrt.serving.server import Bounds

DROPPED_PER_S = 8 * 1024 * 1024
"""Bytes of one connection. A client that sends as fast as it can takes half of the event loop."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def requests(self) -> set[asyncio.Task[Any]]:
        """The tasks of the requests under way."""
        return self.server_state.tasks


def bounded(kind: type[ReaderTimeout], bounds: Bounds) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn's options ``http`` and ``ws``."""
    return type(kind.__name__, (kind,), {"BOUNDS": bounds})


class ReaderTimeout(asyncio.Protocol):
    """Drops a connection whose client reads nothing: uvicorn would wait without end."""

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


class SocketProtocol(ReaderTimeout, WebSocketsSansIOProtocol):
    """A WebSocket."""

    async def send(self, message: Any) -> None:
        """uvicorn would log an error for each handshake that is refused with a response."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


class TimeoutProtocol(ReaderTimeout, HttpToolsProtocol):
    """Drops a connection whose request is not whole in time, too: uvicorn itself waits without end
    for one that comes a byte at a time.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's base narrows it, too
        super().connection_made(transport)
        self._request_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_body = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        super().connection_lost(exc)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def data_received(self, data: bytes) -> None:
        if self._request_timer is None and not self._in_body:
            self._await_request()  # the next one on a connection that is kept alive
        if not self._in_body:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_body and self.cycle.response_complete:
            self._drop_slowly(len(data))
        if not self._in_body and self._header_bytes > self.BOUNDS.header_bytes:
            self._refuse(431, "Request Header Fields Too Large")

    def _drop_slowly(self, size: int) -> None:
        """The rest of a body that was refused is dropped no faster than `DROPPED_PER_S`."""
        self.flow.pause_reading()
        self.loop.call_later(size / DROPPED_PER_S, self._go_on)

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        self._header_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._header_bytes = 0
        self._cancel_request_timer()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._cancel_request_timer()
        super().handle_websocket_upgrade()

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(self.BOUNDS.request_s, self._too_late)

    def _too_late(self) -> None:
        if self._in_body:  # the application waits for it, and learns that the client is gone
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
        """No new request came. Nobody will read what has not been read by now."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()
