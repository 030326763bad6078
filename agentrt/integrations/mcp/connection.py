"""The connection to an MCP server: a task opens it, keeps it open, and reopens it when it ends.

The SDK's scopes must be left by the task that entered them. So a single task owns the connection,
and calls, which run in tasks of programs, only use it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
from mcp.client import Client
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation

from agentrt import __version__
from agentrt.errors import ToolUnavailableError
from agentrt.integrations.mcp.config import HttpServer, Server
from agentrt.integrations.mcp.http import HttpClient
from agentrt.integrations.mcp.stdio import Stderr, opened_stdio, shown

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams

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
        stderr, self._ended, self._open_since = Stderr(), asyncio.Event(), None
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

    def _connected(self, stderr: Stderr) -> Client:
        return Client(
            self._streams(stderr),
            mode=self._mode,
            elicitation_callback=self._elicited,
            client_info=_INFO,
        )

    @asynccontextmanager
    async def _streams(self, stderr: Stderr) -> AsyncIterator[TransportStreams]:
        async with self._opened(stderr) as (read, write):
            yield _Watched(read, self.reset), write

    def _opened(self, stderr: Stderr) -> AbstractAsyncContextManager[TransportStreams]:
        if isinstance(self.server, HttpServer):
            return self._opened_http(self.server)
        return opened_stdio(self.server, stderr, self._strayed, largest=self._largest)

    @asynccontextmanager
    async def _opened_http(self, server: HttpServer) -> AsyncIterator[TransportStreams]:
        async with (
            HttpClient(server.url, dict(server.headers)) as http,
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
                f"skipped: {shown(line)}; make the server log to stderr (further such lines are "
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


class _Watched:
    """A read stream that calls ``ended`` when its reader closes it."""

    def __init__(self, stream: ReadStream[Any], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended()
        await self._stream.aclose()


def _why(error: BaseException | None, last_line: str) -> str:
    """Return the reason why a connection ended, as one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    reason = "the server ended" if error is None else str(error) or type(error).__name__
    return f"{reason} (last line on its stderr: {last_line})" if last_line else reason
