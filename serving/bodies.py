"""A request's body as it comes: bounded in bytes, and in what its JSON holds before it is read."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from agentrt.serving.tenants.loop import LONG, pause

MOST_VALUES = 512 * 1024
"""Values in the JSON of a body. Parsing so many takes some 50 ms, in which the server does nothing
else.
"""
MOST_OBJECTS = 20 * 1024
"""Objects and lists in it: each takes as long as many numbers."""
MOST_OBJECTS_SEARCHED = 1024
"""The same in a search, whose filter is bounded further."""
MOST_VALUES_OF_AGENTS = 20 * 1024
"""The values in a message to an agent (A2A), which the protocol's types take 2 µs each to read."""
_AGENTS = "/a2a/"
_SEARCHES = ("/search", "/count")
_SEARCH_BYTES = 128 * 1024
"""Filters are short, and lists of ids have an end."""
_MARKS = b'",[{'
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))


class JSONCount:
    """Counts the ``values`` of JSON that comes in pieces, and the ``objects`` and lists of them."""

    def __init__(self) -> None:
        self.values = self.objects = 0
        self._in_text = 0
        self._left = b""

    def feed(self, piece: bytes) -> None:
        """Read on: some nanoseconds a byte."""
        if self._left or b"\\" in piece:  # quotes that are escaped end no text
            piece = (self._left + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
            self._left = b"\\" if piece.endswith(b"\\") else b""
        marks = piece.translate(None, _NO_MARKS).replace(b'""', b"")
        outside = b"".join(marks.split(b'"')[self._in_text :: 2])
        self._in_text ^= marks.count(b'"') & 1
        self.objects += outside.count(b"{") + outside.count(b"[")
        self.values += len(outside)


class BoundedBody:
    """The body of a request at ``path``, of ``most_bytes``; `receive` raises `TooLargeError`.

    ``size`` is what was read of it.
    """

    def __init__(
        self,
        receive: Receive,
        path: str,
        headers: Mapping[bytes, bytes],
        most_bytes: int,
    ) -> None:
        self._receive = receive
        searches = path.endswith(_SEARCHES)
        self._most_bytes = min(most_bytes, _SEARCH_BYTES) if searches else most_bytes
        self._most_values = MOST_VALUES_OF_AGENTS if path.startswith(_AGENTS) else MOST_VALUES
        self._most_objects = MOST_OBJECTS_SEARCHED if searches else MOST_OBJECTS
        is_form = headers.get(b"content-type", b"").startswith(b"multipart/")
        self._json = None if is_form else JSONCount()
        self.size = 0
        self._read: Message | None = None
        self._declared = headers.get(b"content-length", b"0")
        self._is_open = b"transfer-encoding" in headers

    @property
    def is_large(self) -> bool:
        """Whether it is to be read with `read`, as far as is known before."""
        return self._is_open or self._declares(min(LONG, self._most_bytes))

    def _declares(self, size: int) -> bool:
        """Whether the headers announce more than so many bytes, or nothing that makes sense."""
        return not self._declared.isdigit() or int(self._declared[:20]) > size

    async def read(self) -> None:
        """Read it to its end, for `receive` to give it as a whole. Others go on between pieces."""
        if self._declares(self._most_bytes):
            raise self._too_long()
        pieces = []
        last = message = await self._next()
        while message.get("more_body", False):
            pieces.append(message["body"])
            await pause()
            last = message = await self._next()
        if message["type"] == "http.request":
            last = {**message, "body": b"".join([*pieces, message.get("body", b"")])}
        self._read = last

    async def receive(self) -> Message:
        """The next message, as an ASGI application gets it."""
        message, self._read = self._read, None
        return await self._next() if message is None else message

    async def _next(self) -> Message:
        message = await self._receive()
        piece = message.get("body", b"")
        self.size += len(piece)
        if self.size > self._most_bytes:
            raise self._too_long()
        if self._json is not None:
            self._json.feed(piece)
            if self._json.values > self._most_values:
                raise TooLargeError(f"has more than {self._most_values} values")
            if self._json.objects > self._most_objects:
                raise TooLargeError(f"has more than {self._most_objects} objects and lists")
        return message

    def _too_long(self) -> TooLargeError:
        return TooLargeError(f"is larger than {self._most_bytes} bytes")


class TooLargeError(HTTPException):
    """The body is larger than the server takes; ``fault`` says in what."""

    def __init__(self, fault: str) -> None:
        message = f"the request's body {fault}; send less"
        # The connection stays open, and the rest is read and dropped until the request times
        # out: closing it would reset it, and the client would never see this answer.
        super().__init__(413, message)
