"""MCP servers that are commands, which write one message per line to stdout.

Many servers write other lines to stdout, too: a banner, a log, text in another encoding. Such lines
are skipped, and the first of them is reported.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from agentrt.integrations.mcp.config import StdioServer

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client._transport import ReadStream, TransportStreams

_LAST_WORDS = 300
_AT_ONCE = 1 << 16
_SHOWN = 80
"""Number of characters that are shown of a line that is not a message."""
_BEFORE = "\ufeff\0 \t\r"
"""Characters that some servers write before a message, mostly a byte order mark."""
_ENCODING = "agentrt_mcp_lines_"
"""Beginning of the name of `_Lines` as an encoding. The rest of the name is the limit of a line, in
bytes.
"""
_KEPT = 512
"""Number of bytes that are kept of the beginning and of the end of a line that is too long."""
_ID = rb'"id"\s*:\s*(\d+|"[^"\\]*")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ANSWER_STARTS = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?\"(?:result|error)\""
    % (_VERSION, _ID, _VERSION)
)
_ANSWER_ENDS = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?\"(?:result|error)\".*,\s*%b(?:\s*,\s*%b)?\s*\}\s*"
    % (_VERSION, _ID, _VERSION),
    re.DOTALL,
)
"""Patterns of a line with an answer. In the first pattern, the id stands before the result; in the
second, after the result, as TypeScript's SDK writes it.
"""


class Stderr:
    """The last `_LAST_WORDS` bytes of a server's output on stderr."""

    def __init__(self) -> None:
        self._tail = b""

    @property
    def last_line(self) -> str:
        """The last line that is not empty; "" if there is none."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def read_from(self, descriptor: int) -> None:
        """Read the data that is available; at the end of the output, stop reading."""
        try:
            data = os.read(descriptor, _AT_ONCE)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._tail = (self._tail + data)[-_LAST_WORDS:]


@asynccontextmanager
async def opened_stdio(
    server: StdioServer, stderr: Stderr, strayed: Callable[[str], None], *, largest: int
) -> AsyncIterator[TransportStreams]:
    """Run the server during the ``with`` block. At the end, close its stdin, and kill the server if
    it does not end soon.

    ``strayed`` is called with each line on stdout that is not a message. A line may have at most
    ``largest`` bytes.
    """
    # Replace invalid bytes: the SDK's strict decoding would end the reader at a byte that is not
    # UTF-8, and then all calls would wait for ever.
    parameters = StdioServerParameters(
        command=server.command,
        args=list(server.args),
        env=dict(server.env),
        cwd=server.cwd or None,
        encoding=f"{_ENCODING}{largest}",
        encoding_error_handler="replace",
    )
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    loop.add_reader(ours, stderr.read_from, ours)
    _is_ours.set(True)
    try:
        with os.fdopen(theirs, "w") as errlog:
            async with stdio_client(parameters, errlog) as (read, write):
                yield _Messages(read, strayed), write
    finally:
        loop.remove_reader(ours)
        stderr.read_from(ours)
        os.close(ours)


class _Lines(codecs.IncrementalDecoder):
    """A decoder of UTF-8 that returns whole lines, of at most ``largest`` bytes.

    The SDK does not limit the length of a line. With each piece that the SDK reads, it searches the
    whole line so far again, which takes minutes for a line of 100 MB. If the SDK gets whole lines,
    it searches nothing again. An answer that is too long becomes an error for its call. Of any
    other line that is too long, only the beginning is kept.
    """

    largest: int

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._pieces: list[bytes] = []
        self._size = 0

    def decode(self, data: Any, final: bool = False) -> str:
        """Return the lines that end in ``data``."""
        *ends, rest = bytes(data).split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(self._line())
            self._pieces, self._size = [], 0
        self._add(rest)
        return "".join(lines)

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self.largest:
            text = b"".join(self._pieces)
            self._pieces = [text[:_KEPT], text[_KEPT:][-_KEPT:]]

    def _line(self) -> str:
        text = b"".join(self._pieces)
        if not text.strip():
            return ""
        if self._size > self.largest:
            limits = f"{self._size} bytes; at most {self.largest} are allowed"
            answer = _refused_answer(text, f"result too large: the answer has {limits}")
            start = text[: _SHOWN // 2] + b"... (%d bytes)" % self._size
            text = start if answer is None else answer.message.model_dump_json().encode()
        return text.decode(errors=self.errors) + "\n"


def _refused_answer(line: bytes, why: str) -> SessionMessage | None:
    """Return an error for the call whose answer is ``line``, which cannot be read. Perhaps only the
    beginning and the end of the line are known. Return None if the line is not an answer.
    """
    match = _ANSWER_STARTS.match(line) or _ANSWER_ENDS.fullmatch(line)
    return None if match is None else _refusal(json.loads(match[1]), why)


def _refusal(number: int | str, why: str) -> SessionMessage:
    """Return an error as the answer to the request ``number``."""
    error = ErrorData(code=PARSE_ERROR, message=why)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _codec(name: str) -> codecs.CodecInfo | None:
    """Return the codec that reads lines by `_Lines`; None for another encoding."""
    limit = name.removeprefix(_ENCODING)
    if limit == name or not limit.isdecimal():
        return None

    class Limited(_Lines):
        largest = int(limit)

    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=Limited, name=name)


codecs.register(_codec)


class _Messages:
    """A read stream that skips lines that are not messages."""

    def __init__(
        self, stream: ReadStream[SessionMessage | Exception], strayed: Callable[[str], None]
    ) -> None:
        self._stream = stream
        self._strayed = strayed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item = await self._stream.__anext__()
            if not isinstance(item, Exception):
                return item
            line = _line_of(item)
            if line.strip(_BEFORE):  # empty lines are not reported
                message = _message_in(line)
                if message is None or line.lstrip(_BEFORE)[0] != "{":
                    self._strayed(line)
                if message is not None:
                    return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stream.aclose()


def shown(line: str) -> str:
    """Return the beginning of a line that is not a message, in quotes."""
    text = line.strip(_BEFORE)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _line_of(error: Exception) -> str:
    """Return the line that the SDK could not read as a message."""
    if not isinstance(error, ValidationError):
        return str(error)
    mistakes = error.errors(include_url=False)
    if not mistakes[0]["loc"]:  # not even JSON
        return str(mistakes[0]["input"])
    # The input of an error is a part of the line, except for a missing field: there it is the
    # whole message.
    whole = (
        each["input"] for each in mistakes if each["type"] == "missing" or len(each["loc"]) < 2
    )
    return json.dumps(next(whole, mistakes[0]["input"]))


def _message_in(line: str) -> SessionMessage | None:
    """Return the message at the end of a line, after a byte order mark or other text; None if there
    is no message.

    An invalid answer becomes an error for its call, which would otherwise wait for ever.
    """
    text = line.lstrip(_BEFORE)
    start = text.find("{")
    if start < 0:
        return None
    try:
        value = json.loads(text[start:])
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        return _refused_answer(line.encode(errors="replace"), f"the answer is not JSON: {why}")
    is_answer = isinstance(value, dict) and "method" not in value
    number = value.get("id") if is_answer else None
    if isinstance(number, float) and number.is_integer():
        value["id"] = number = int(number)
    if start and not is_answer:  # a log that quotes a request is not a request
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(value, by_name=False))
    except ValidationError as error:
        if not is_answer or not isinstance(number, int | str) or not value.keys() & _OUTCOMES:
            return None
        wrong = error.errors(include_url=False)[0]["msg"]
        return _refusal(number, f"the answer is not an MCP message: {wrong}")


_OUTCOMES = {"result", "error"}
_is_ours = ContextVar("_is_ours", default=False)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether the SDK's logger may write a record.

    The SDK logs a traceback for each line on stdout that is not a message. Such records are
    dropped, because `opened_stdio` reports these lines.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (_is_ours.get() and isinstance(error, ValueError))


logging.getLogger("mcp.client.stdio").addFilter(_is_news)
