"""The connection to an MCP server: a task opens it, keeps it open, and reopens it when it ends.

The SDK's scopes must be left by the task that entered them. So a single task owns the connection,
and calls, which run in tasks of programs, only use it.

A server that is a command writes one message per line to stdout. Many such servers write other
lines to stdout, too: a banner, a log, text in another encoding. Such lines are skipped, and the
first of them is reported.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
from mcp.client import Client
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    PARSE_ERROR,
    ErrorData,
    Implementation,
    JSONRPCError,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from agentrt import __version__
from agentrt.errors import ToolUnavailableError
from agentrt.integrations.mcp.config import HttpServer, Server, StdioServer
from agentrt.integrations.mcp.http import HttpClient
from agentrt.interrupts.schema import for_python

if TYPE_CHECKING:
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


class _Stderr:
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
async def _opened_stdio(
    server: StdioServer, stderr: _Stderr, strayed: Callable[[str], None], *, largest: int
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


class _WrappedStream:
    """A read stream whose items a subclass changes."""

    def __init__(self, stream: ReadStream[Any]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.aclose()


class _Messages(_WrappedStream):
    """A read stream that skips lines that are not messages."""

    def __init__(
        self, stream: ReadStream[SessionMessage | Exception], strayed: Callable[[str], None]
    ) -> None:
        super().__init__(stream)
        self._strayed = strayed

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await super().__anext__()
            if not isinstance(item, Exception):
                return item
            line = _line_of(item)
            if line.strip(_BEFORE):  # empty lines are not reported
                message = _message_in(line)
                if message is None or line.lstrip(_BEFORE)[0] != "{":
                    self._strayed(line)
                if message is not None:
                    return message


def _shown(line: str) -> str:
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
    dropped, because `_opened_stdio` reports these lines.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (_is_ours.get() and isinstance(error, ValueError))


logging.getLogger("mcp.client.stdio").addFilter(_is_news)


Mode = Literal["auto", "legacy", "2026-07-28"]
_OPENED_WITHIN_S = 60.0
"""Time limit of opening a connection, in seconds. A first start may install the server."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_SHORT_PAUSE_S = 1.0
"""Longest pause before a reconnection, in seconds, during which calls wait for the connection."""
_STEADY_S = 30.0
"""Seconds after which a connection counts as stable. If a stable connection breaks, the pauses
begin with the shortest again.
"""
_INFO = Implementation(name="agentrt", version=__version__)


class McpConnection:
    """The connection to ``server``.

    ``tell`` gets a line when the connection cannot be opened, is lost or is restored, and when the
    server writes the first line to stdout that is not a message. ``elicited`` answers the server's
    questions. ``largest`` limits the size of a message in bytes.
    """

    def __init__(
        self,
        server: Server,
        elicited: ElicitationFnT,
        tell: Callable[[str], None],
        *,
        largest: int,
        mode: Mode = "auto",
    ) -> None:
        self.server = server
        self._label = f"MCP server {server.name!r}"
        self._elicited = elicited
        self._tell = tell
        self._largest = largest
        self._mode: Mode = mode
        self._client: asyncio.Future[Client | str] | None = (
            None  # or the reason why there is no client
        )
        self._task: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended = asyncio.Event()
        self._open_since: float | None = None
        self._is_away = False
        self._has_strayed = False
        self._is_draining = False
        self._not_open = f"{self._label} is not connected, and the command is shutting down"
        self._pauses = 0
        self._reason = ""

    def open(self) -> None:
        """Start connecting, without waiting for the connection."""
        self._scope = anyio.CancelScope()
        self._client = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(self._scope), name=f"mcp/{self.server.name}")

    def drain(self) -> None:
        """Let calls fail at once, instead of waiting, while there is no connection."""
        self._is_draining = True
        if self._client is not None and not self._client.done():
            self._settle(self._not_open)

    async def close(self) -> None:
        """Disconnect, and stop a server that is a command. Idempotent."""
        if self._scope is not None and self._task is not None:
            self._scope.cancel()
            await asyncio.wait([self._task])

    async def client(self) -> Client:
        """Return the client of the open connection. Waits for a connection that is being opened.

        Raises `ToolUnavailableError` if there is no connection.
        """
        if self._client is None:
            raise ToolUnavailableError(f"{self._label} was not opened")
        if self._is_draining and not self._client.done():
            raise ToolUnavailableError(self._not_open)
        client = await asyncio.shield(self._client)
        if isinstance(client, str):
            raise ToolUnavailableError(client)
        return client

    def is_over(self, client: Client) -> bool:
        """Return whether the connection of ``client`` has ended."""
        future = self._client
        return future is None or not future.done() or future.result() is not client

    def reset(self, client: Client | None = None, reason: str = "") -> None:
        """End the connection of ``client``, by default the open connection, for ``reason``, and
        open a new one.
        """
        future = self._client
        assert future is not None
        if not future.done() or isinstance(future.result(), str):
            return
        if client is None or future.result() is client:
            self._renew()
            self._reason = reason
            self._ended.set()

    async def _keep(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    reason = await self._stay_connected()
                    await anyio.sleep(self._went(reason))
                    self._renew()
        finally:
            self._settle(f"{self._label} was closed")

    async def _stay_connected(self) -> str:
        """Connect, wait until the connection ends, and return the reason. Raises only when
        cancelled.
        """
        stderr, self._ended, self._open_since = _Stderr(), asyncio.Event(), None
        self._reason = ""
        error: BaseException | None = None
        with anyio.CancelScope(deadline=anyio.current_time() + _OPENED_WITHIN_S) as attempt:
            try:
                async with self._connected(stderr) as client:
                    attempt.deadline = math.inf
                    self._came(client)
                    await self._ended.wait()
            except Exception as raised:  # exception groups of the SDK, a missing command, …
                error = raised
        if attempt.cancelled_caught:
            return f"no answer within {_OPENED_WITHIN_S:g} s"
        return self._reason or _why(error, stderr.last_line)

    def _connected(self, stderr: _Stderr) -> Client:
        return Client(
            self._streams(stderr),
            mode=self._mode,
            elicitation_callback=self._elicited,
            client_info=_INFO,
        )

    @asynccontextmanager
    async def _streams(self, stderr: _Stderr) -> AsyncIterator[TransportStreams]:
        async with self._opened(stderr) as (read, write):
            yield _Watched(read, self.reset), write

    def _opened(self, stderr: _Stderr) -> AbstractAsyncContextManager[TransportStreams]:
        if isinstance(self.server, HttpServer):
            return self._opened_http(self.server)
        return _opened_stdio(self.server, stderr, self._strayed, largest=self._largest)

    @asynccontextmanager
    async def _opened_http(self, server: HttpServer) -> AsyncIterator[TransportStreams]:
        async with (
            HttpClient(server.url, dict(server.headers), largest=self._largest) as http,
            streamable_http_client(
                server.url, http_client=http, max_sse_event_size=self._largest
            ) as streams,
        ):
            yield streams

    def _strayed(self, line: str) -> None:
        """Report the first line on the server's stdout that is not a message."""
        if not self._has_strayed:
            self._has_strayed = True
            self._tell(
                f"{self._label} wrote a line to stdout that is not an MCP message, which is "
                f"skipped: {_shown(line)}; make the server log to stderr (further such lines are "
                "not shown)"
            )

    def _came(self, client: Client) -> None:
        self._renew()
        assert self._client is not None
        self._open_since = anyio.current_time()
        self._client.set_result(client)
        if self._is_away:
            self._tell(f"{self._label} is connected again")
        self._is_away = False

    def _went(self, reason: str) -> float:
        """Handle a connection that has ended or could not be opened. Return the pause before the
        next attempt, in seconds.
        """
        since = self._open_since
        if since is not None and anyio.current_time() - since > _STEADY_S:
            self._pauses = 0
        pause = min(_FIRST_PAUSE_S * 2.0**self._pauses, _LONGEST_PAUSE_S)
        self._pauses += 1
        away = f"{self._label} cannot be reached: {reason}; trying again"
        if since is None or pause > _SHORT_PAUSE_S:
            self._settle(away)
        else:
            self.reset()
        if not self._is_away:
            self._tell(away)
        self._is_away = True
        return pause

    def _renew(self) -> None:
        """Let calls wait for a connection from now on."""
        if self._client is None or self._client.done():
            self._client = asyncio.get_running_loop().create_future()

    def _settle(self, reason: str) -> None:
        """Let calls fail for this reason from now on."""
        self._renew()
        assert self._client is not None
        self._client.set_result(reason)


class _Watched(_WrappedStream):
    """A read stream that calls ``ended`` when its reader closes it. The patterns of the schemas of
    results in a list of tools become patterns of Python, because the SDK checks the results.
    """

    def __init__(self, stream: ReadStream[Any], ended: Callable[[], None]) -> None:
        super().__init__(stream)
        self._ended = ended

    async def __anext__(self) -> Any:
        item = await super().__anext__()
        answer = item.message if isinstance(item, SessionMessage) else None
        if isinstance(answer, JSONRPCResponse):
            tools = answer.result.get("tools")
            for tool in tools if isinstance(tools, list) else ():
                if isinstance(tool, dict) and isinstance(schema := tool.get("outputSchema"), dict):
                    with suppress(RecursionError):  # the SDK refuses such a schema
                        tool["outputSchema"] = for_python(schema)
        return item

    async def __aexit__(self, *error: object) -> None:
        self._ended()
        await super().__aexit__(*error)


def _why(error: BaseException | None, last_line: str) -> str:
    """Return the reason why a connection ended, as one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    reason = "the server ended" if error is None else str(error) or type(error).__name__
    return f"{reason} (last line on its stderr: {last_line})" if last_line else reason
