"""Read the body of a request, and limit its size and the number of values in its JSON.

Both limits are checked before the body is parsed: while it arrives, or while it is decompressed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from agentrt.serving.encodings import coding_of, decompressed

MOST_VALUES = 512 * 1024
"""Maximum number of values in the JSON of a body. Parsing this many values takes about 50 ms, in
which the server does nothing else.
"""
MOST_OBJECTS = 20 * 1024
"""Maximum number of objects and lists in a body. Parsing an object takes as long as parsing many
numbers.
"""
MOST_VALUES_OF_AGENTS = 20 * 1024
"""Maximum number of values in a message to an agent (A2A). The protocol's types need 2 µs for each
value.
"""
LONG = 64 * 1024
"""A request whose body has more bytes is a large request (`agentrt.serving.middleware`)."""
MANY_OBJECTS = 2048
"""A request whose body has more objects and lists is a large request, too."""
_AGENTS = "/a2a/"
_FORMS = ("/v1/files", "/v1/audio/")
"""The paths whose routes read forms."""
_SEARCHES = ("/search", "/count")
_SEARCH_BYTES = 128 * 1024
"""Maximum size of the body of a search (bytes)."""
_BOM = b"\xef\xbb\xbf"
_MARKS = b'",[{'
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))


async def pause() -> None:
    """Let other requests run on the event loop before the next piece of work for this request."""
    await asyncio.sleep(0)


class TooLargeError(Exception):
    """The body of a request exceeds a limit. The message names the limit."""

    def __init__(self, fault: str) -> None:
        # The connection stays open, and the rest of the body is read and dropped. Closing the
        # connection would reset it, and the client would never see this error.
        super().__init__(f"the request's body {fault}; send less")


class JSONCount:
    """A counter for JSON that arrives in pieces: ``values`` counts all values, and ``objects`` the
    objects and lists.
    """

    def __init__(self) -> None:
        self.values = self.objects = 0
        self._in_text = 0
        self._left = b""

    def feed(self, piece: bytes) -> None:
        """Add the values and objects in the next piece of JSON to the counts. This takes a few
        nanoseconds per byte.
        """
        if self._left or b"\\" in piece:  # an escaped quote does not end a string
            piece = (self._left + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
            self._left = b"\\" if piece.endswith(b"\\") else b""
        marks = piece.translate(None, _NO_MARKS).replace(b'""', b"")
        outside = b"".join(marks.split(b'"')[self._in_text :: 2])
        self._in_text ^= marks.count(b'"') & 1
        self.objects += outside.count(b"{") + outside.count(b"[")
        self.values += len(outside)


def is_long(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the body of a request is long, or of unknown length, according to its
    headers.
    """
    size = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not size.isdigit() or int(size[:20]) > LONG


class ReadBody:
    """The receive function of a request whose body was read already.

    It returns ``first``, which is the whole ``body`` or the client's disconnect, and then the
    messages of ``rest``. ``objects`` is the number of objects and lists in the body's JSON. It is 0
    for a small body and for a form, in which they are not counted.
    """

    __slots__ = ("_first", "body", "objects", "rest")

    def __init__(self, first: Message, rest: Receive, objects: int = 0) -> None:
        self._first: Message | None = first
        self.rest, self.objects = rest, objects
        self.body: bytes | None = first.get("body")

    def __call__(self) -> Awaitable[Message]:
        return self.rest() if self._first is None else self._read()

    async def _read(self) -> Message:
        first, self._first = self._first, None
        assert first is not None
        return first


async def read_body(
    receive: Receive, path: str, headers: dict[bytes, bytes], most_bytes: int
) -> ReadBody:
    """Read the body of a request at ``path``, decompress it, and convert JSON in UTF-16 or UTF-32,
    which vLLM's server reads, too, to UTF-8.

    If the body was changed, ``headers`` are changed to the headers of the new body.

    Raises `TooLargeError` for a body that exceeds a limit, before or after decompression, and
    `EncodingError` for a body that cannot be decompressed.
    """
    coding = coding_of(headers.get(b"content-encoding"))
    body = _IncomingBody(path, headers, most_bytes)
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
        raw = b"".join(body.pieces)
        if (converted := body.in_utf8(raw)) is not None:
            # Count again, because bytes of other characters look like quotes and commas in UTF-16.
            body, raw = _IncomingBody(path, headers, most_bytes), converted
            body.add(raw)
            headers.pop(b"transfer-encoding", None)
            headers[b"content-length"] = b"%d" % body.size
        message = whole(raw)
    return ReadBody(message, receive, body.objects)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body. A byte order mark at its beginning, which editors on Windows
    write, is skipped.

    Raises `ValueError` for other text, and for NaN, lone surrogates or very deep nesting. Python's
    own parser accepts these values, but the code that uses them fails later.
    """
    return from_json(body.removeprefix(_BOM), allow_inf_nan=False)


async def body_of(request: Request, receive: Receive) -> ReadBody:
    """Return the body of a request. If the middleware has read the body, as usual, ``receive`` has
    it; otherwise read it now.

    Raises `ClientDisconnect` if the client disconnected before the end of its body.
    """
    read = receive
    if not isinstance(read, ReadBody):
        return ReadBody(whole(await request.body()), receive)
    if read.body is None:
        raise ClientDisconnect
    return read


def whole(body: bytes) -> Message:
    """Return a body as a single ASGI message."""
    return {"type": "http.request", "body": body, "more_body": False}


def with_length(start: Message, body: bytes) -> Message:
    """Return the head of an answer with the length of ``body``, in place of the length of the body
    that it was made for.
    """
    headers = [header for header in start["headers"] if header[0] != b"content-length"]
    return {**start, "headers": [*headers, (b"content-length", b"%d" % len(body))]}


class _IncomingBody:
    """A body while it arrives, with the limits of its path."""

    def __init__(self, path: str, headers: Mapping[bytes, bytes], most_bytes: int) -> None:
        is_search = path.endswith(_SEARCHES)
        self._most_bytes = min(most_bytes, _SEARCH_BYTES) if is_search else most_bytes
        self._most_values = MOST_VALUES_OF_AGENTS if path.startswith(_AGENTS) else MOST_VALUES
        kind = headers.get(b"content-type", b"").lower()
        # Routes of other paths read JSON whatever the content type says.
        self._is_form = path.startswith(_FORMS) and kind.startswith(b"multipart/")
        self._count, self._counted = JSONCount(), 0
        self._compressed = bytearray()
        self._is_compressed = False
        self.size = 0
        self.pieces: list[bytes] = []

    @property
    def objects(self) -> int:
        return self._count.objects

    def in_utf8(self, raw: bytes) -> bytes | None:
        """Convert JSON from UTF-16 or UTF-32 to UTF-8. Return None for any other body."""
        if raw.startswith(b'{"'):  # usual, and not the beginning of any other encoding
            return None
        encoding = json.detect_encoding(raw[:4])
        if self._is_form or encoding.startswith("utf-8"):
            return None
        try:
            return raw.decode(encoding).encode()
        except UnicodeError:  # the route refuses the body
            return None

    def check_size(self, size: int) -> None:
        if size > self._most_bytes:
            when = " once it is decompressed" if self._is_compressed else ""
            raise TooLargeError(f"is larger than {self._most_bytes} bytes{when}")

    def add_compressed(self, piece: bytes) -> None:
        self._compressed += piece
        self.check_size(len(self._compressed))

    async def decompress(self, coding: str) -> None:
        """Decompress the body, and let other requests run between its pieces."""
        self._is_compressed = True
        for piece in decompressed(coding, bytes(self._compressed)):
            if piece:
                self.add(piece)
            await pause()

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.check_size(self.size)
        self.pieces.append(piece)
        if self._is_form or self.size <= MANY_OBJECTS:
            return  # a form is not JSON, and a small body cannot exceed a limit
        for uncounted in self.pieces[self._counted :]:
            self._count.feed(uncounted)
        self._counted = len(self.pieces)
        if self._count.values > self._most_values:
            raise TooLargeError(f"has more than {self._most_values} values")
        if self._count.objects > MOST_OBJECTS:
            raise TooLargeError(f"has more than {MOST_OBJECTS} objects and lists")
