"""Reads a request's body whole. Its bytes and the values in its JSON are bounded: both are checked
as it comes, before anything is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive

from agentrt.serving.encodings import coding_of, decompressed

MOST_VALUES = 512 * 1024
"""Values in the JSON of a body. Parsing so many takes some 50 ms, in which the server does nothing
else.
"""
MOST_OBJECTS = 20 * 1024
"""Objects and lists in it: each takes as long as many numbers."""
MOST_VALUES_OF_AGENTS = 20 * 1024
"""The values in a message to an agent (A2A), which the protocol's types take 2 µs each to read."""
LONG = 64 * 1024
"""Bytes of a body from which on its request is a large one."""
MANY_OBJECTS = 2048
"""Objects and lists in a body from which on its request is a large one."""
_AGENTS = "/a2a/"
_SEARCHES = ("/search", "/count")
_SEARCH_BYTES = 128 * 1024
"""Filters are short, and lists of ids have an end."""
_MARKS = b'",[{'
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))


async def pause() -> None:
    """Let other requests go on between two pieces of work for this one."""
    await asyncio.sleep(0)


class TooLargeError(Exception):
    """The body is larger than the server takes. The message says in what, and what to do."""

    def __init__(self, fault: str) -> None:
        # The connection stays open, and the rest is read and dropped until the request times
        # out: closing it would reset it, and the client would never see this answer.
        super().__init__(f"the request's body {fault}; send less")


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


def is_long(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body is long, or of unknown length, as the headers of its request say."""
    size = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not size.isdigit() or int(size[:20]) > LONG


async def read_body(
    receive: Receive, path: str, headers: dict[bytes, bytes], most_bytes: int
) -> tuple[Receive, int]:
    """Read the body of a request at ``path``. The first result gives it as one message, and then
    what ``receive`` gives; the second is how many objects and lists its JSON has. A compressed
    body is decompressed, and ``headers`` are then those of the plain one: they are changed.

    Raises `TooLargeError`, also of a body that is as large once it is decompressed, and
    `EncodingError` of one that cannot be.
    """
    coding = coding_of(headers)
    body = _Body(path, headers, most_bytes)
    body.check_size(int(headers.get(b"content-length", b"0")))
    add = body.add if coding is None else body.add_compressed
    while (message := await receive()).get("more_body", False):
        add(message["body"])
        await pause()
    add(message.get("body", b""))
    if message["type"] == "http.request":
        if coding is not None:
            await body.decompress(coding)
            del headers[b"content-encoding"]
            headers.pop(b"transfer-encoding", None)
            headers[b"content-length"] = b"%d" % body.size
        message = whole(b"".join(body.pieces))
    return given(message, receive), body.objects


def whole(body: bytes) -> Message:
    """A body as one message."""
    return {"type": "http.request", "body": body, "more_body": False}


class _Body:
    """A body as it comes, within the bounds of its path."""

    def __init__(self, path: str, headers: Mapping[bytes, bytes], most_bytes: int) -> None:
        is_search = path.endswith(_SEARCHES)
        self._most_bytes = min(most_bytes, _SEARCH_BYTES) if is_search else most_bytes
        self._most_values = MOST_VALUES_OF_AGENTS if path.startswith(_AGENTS) else MOST_VALUES
        self._is_form = headers.get(b"content-type", b"").startswith(b"multipart/")
        self._count = JSONCount()
        self._compressed = bytearray()
        self._is_compressed = False
        self.size = 0
        self.pieces: list[bytes] = []

    @property
    def objects(self) -> int:
        return self._count.objects

    def check_size(self, size: int) -> None:
        if size > self._most_bytes:
            when = " once it is decompressed" if self._is_compressed else ""
            raise TooLargeError(f"is larger than {self._most_bytes} bytes{when}")

    def add_compressed(self, piece: bytes) -> None:
        self._compressed += piece
        self.check_size(len(self._compressed))

    async def decompress(self, coding: str) -> None:
        """Add what was compressed, and let other requests go on between its pieces."""
        self._is_compressed = True
        for piece in decompressed(coding, bytes(self._compressed)):
            self.add(piece)
            await pause()

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.check_size(self.size)
        self.pieces.append(piece)
        if self._is_form:
            return
        self._count.feed(piece)
        if self._count.values > self._most_values:
            raise TooLargeError(f"has more than {self._most_values} values")
        if self._count.objects > MOST_OBJECTS:
            raise TooLargeError(f"has more than {MOST_OBJECTS} objects and lists")


def given(first: Message, receive: Receive) -> Receive:
    """Gives ``first``, and then what ``receive`` does."""
    messages = iter((first,))

    async def received() -> Message:
        message = next(messages, None)
        return await receive() if message is None else message

    return received
