"""uvicorn's HTTP protocol with bounds on what a slow or a greedy client may hold open.

uvicorn itself waits without end for a request that comes a byte at a time, and for a client
that does not read.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrt.serving.server import Bounds


def timeout_protocol(bounds: Bounds) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's ``http`` option."""

    class Patient(TimeoutProtocol):
        BOUNDS = bounds

    return Patient


class TimeoutProtocol(HttpToolsProtocol):
    """Drops a connection whose request is not whole in time, or whose answer nobody reads."""

    BOUNDS = Bounds()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's base narrows it, too
        super().connection_made(transport)
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_body = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_arriving()
        self._cancel_unread()
        super().connection_lost(exc)

    def _cancel_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    # -- what comes in -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._arriving is None and not self._in_body:
            self._await_request()  # the next one of a connection that is kept
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
        self._cancel_arriving()
        super().on_message_complete()

    def _await_request(self) -> None:
        self._arriving = self.loop.call_later(self.BOUNDS.request_s, self._too_late)

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
        """Nothing new came; what has not been read by now nobody will read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    # -- what goes out -----------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.BOUNDS.reader_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_unread()
