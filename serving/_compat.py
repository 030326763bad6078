"""Where we reach into uvicorn, for request timeouts and for a server inside our own loop.

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

from agentrt.serving.server import Bounds


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def requests(self) -> set[asyncio.Task[Any]]:
        """The tasks of the requests under way."""
        return self.server_state.tasks


def timeout_protocol(bounds: Bounds) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn's ``http`` option."""

    class BoundedProtocol(TimeoutProtocol):
        BOUNDS = bounds

    return BoundedProtocol


class TimeoutProtocol(HttpToolsProtocol):
    """Drops a connection whose request is not whole in time, or whose answer nobody reads.

    uvicorn itself waits without end for a request that comes a byte at a time, and for a client
    that does not read.
    """

    BOUNDS = Bounds()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's base narrows it, too
        super().connection_made(transport)
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_body = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self._cancel_reader_timer()
        super().connection_lost(exc)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _cancel_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    # -- the request -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._request_timer is None and not self._in_body:
            self._await_request()  # the next one on a connection that is kept alive
        if not self._in_body:
            self._header_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._header_bytes > self.BOUNDS.header_bytes:
            self._refuse(431, "Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._header_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._header_bytes = 0
        self._cancel_request_timer()
        super().on_message_complete()

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

    # -- the response ------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self.BOUNDS.reader_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_reader_timer()
