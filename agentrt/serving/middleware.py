"""The middleware that every request passes before its route.

It sets the request id, refuses new work on a draining server, checks the origin of web pages and
the API key, and reads and limits the body.

`LongRequests` limits the time that large requests take on the event loop, so that short requests
stay fast. The work of a request between two waits is a step, and no other request runs during a
step. Reading and checking a body of a megabyte takes several steps of ten milliseconds. A short
call has about fifteen steps, and without a limit, a step of every large request could run between
two of these steps. So only one large request at a time takes steps, and tenants take turns. While
short requests are in flight, the steps of all large requests together take at most `LARGE_SHARE` of
the time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from os import urandom
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.executors.chat_api import GONE
from agentrt.executors.vllm.turns import Turns
from agentrt.serving._compat import is_unwrapped
from agentrt.serving.bodies import (
    LONG,
    MANY_OBJECTS,
    ReadBody,
    TooLargeError,
    is_long,
    read_body,
)
from agentrt.serving.encodings import EncodingError, accepted
from agentrt.serving.error_responses import error_response, log_fault
from agentrt.serving.keep_alive import STREAM, KeepAlive
from agentrt.serving.line_ends import escape_line_ends
from agentrt.serving.origins import OriginCheck
from agentrt.serving.server import Server
from agentrt.serving.sockets import Sockets
from agentrt.serving.tenants import BusyError
from agentrt.serving.tenants.keys import NAME_RULE, TENANT_NAME

LARGE_SHARE = 0.25
"""The share of the event loop's time for large requests while short requests are in flight."""
LARGE_BURST_S = 0.004
"""Seconds that large requests may use in advance of their share."""
_MOST_CHARGED_S = 0.1
"""Maximum debt of large requests, in seconds: the charged time that is not paid off yet. A second
pays off `LARGE_SHARE` seconds. Time beyond this maximum is not charged.
"""
_LEAST_WAIT_S = 0.0005
"""Waits that are shorter than this number of seconds are skipped."""


class LongRequests:
    """The scheduler of a server's large requests. ``short`` counts the short requests in flight."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.short = 0
        self._clock, self._sleep = clock, sleep
        self._turns = Turns(1)
        self._used = 0.0
        self._at = self._began = clock()

    def run(self, tenant: str, request: Awaitable[None]) -> Awaitable[None]:
        """Return an awaitable that runs a large request of ``tenant`` step by step."""
        return _Stepped(self, tenant, request)

    async def begin(self, tenant: str) -> None:
        """Wait for the turn of a request, and for its first step.

        `end` ends a step, and `over` ends the turn.
        """
        await self._turns.take(tenant)
        try:
            await self.rest()
        except BaseException:
            self.over()
            raise

    async def rest(self) -> None:
        """Wait until the share of large requests allows the next step of this turn."""
        while (wait_s := self._wait_s()) > _LEAST_WAIT_S:
            await self._sleep(wait_s)
        self._began = self._clock()

    def end(self) -> None:
        """End a step, and charge its duration.

        The duration counts, and not the processor time, because it is the time that other requests
        had to wait.
        """
        now = self._forget()
        self._used = min(self._used + now - self._began, _MOST_CHARGED_S)

    def over(self) -> None:
        """End the turn, so that another large request can begin its turn."""
        self._turns.over()

    def _wait_s(self) -> float:
        self._forget()
        return (self._used - LARGE_BURST_S) / LARGE_SHARE if self.short else 0.0

    def _forget(self) -> float:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * LARGE_SHARE)
        self._at = now
        return now


class _Stepped:
    """An awaitable that runs the steps of a request in its turns.

    A turn ends when the request waits for something. A ``sleep(0)`` ends a step, but not the turn,
    so that few large bodies are in memory as parsed objects at a time.
    """

    def __init__(self, requests: LongRequests, tenant: str, request: Awaitable[None]) -> None:
        self._requests, self._tenant, self._request = requests, tenant, request

    def __await__(self) -> Generator[Any, Any, None]:
        requests, steps = self._requests, self._request.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        has_turn = False
        try:
            while True:
                begun = requests.rest() if has_turn else requests.begin(self._tenant)
                try:
                    yield from begun.__await__()
                    has_turn = True
                except BaseException as error:  # cancelled while waiting: end without a turn
                    step, value = steps.throw, error
                try:
                    awaited = step(value)
                except StopIteration:
                    return
                finally:
                    if has_turn:
                        requests.end()
                if has_turn and awaited is not None:
                    has_turn = False
                    requests.over()
                step, value = steps.send, None
                try:
                    value = yield awaited
                except BaseException as error:
                    step, value = steps.throw, error
        finally:
            if has_turn:
                requests.over()


DEFAULT_TENANT = "default"
_FOR_PAGES = "agentrt.for_pages"
"""The key of the scope of a request whose answer gets the headers for pages of other origins. Only
the requests of web pages need them, and for each piece of an answer they cost three functions.
"""
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ok", "/dashboard", "/favicon.ico"})
"""Paths that need no key: health checks, and pages that contain no data."""

_OPEN_FOLDERS = ("/dashboard/", "/chat/")
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MCP_PATH = "/mcp"
_QUESTIONS, _CANCEL = "/v1/questions/", "/cancel"
_MESSAGES = "/v1/messages"
_RETRY_S = "5"
_BEARER = "bearer "


def tenant_of(request: Request) -> str:
    """Return the tenant of a request.

    On a server without keys, this is the tenant that the request names, or the default tenant.
    """
    tenant: str = getattr(request.state, "tenant", DEFAULT_TENANT)
    return tenant


async def _visible_tenant(request: Request) -> str | None:
    # Async, because FastAPI would run a plain function in another thread.
    return None if request.state.operator else tenant_of(request)


VisibleTenant = Annotated[str | None, Depends(_visible_tenant)]
"""The parameter of a request handler for the tenant whose programs the client may see, or None for
an operator, who may see the programs of all tenants."""


class Middleware:
    """An ASGI middleware that passes requests to ``app``, or answers them with an error.

    Requests at a path of ``direct`` go to that path's application, which is faster than the routing
    of ``app``. ``scope["state"]`` gets the ``tenant``, whether it is an ``operator``, and for HTTP
    the ``request_id`` and the ``headers`` by name.
    """

    def __init__(
        self, app: ASGIApp, server: Server, origins: OriginCheck, direct: Mapping[str, ASGIApp]
    ) -> None:
        self._app = app
        self._server = server
        self._origins = origins
        self._direct = direct
        self._long = LongRequests()
        self._sockets = Sockets(app, self._check, self)
        self._for_pages = origins.around(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))
        if b"origin" in headers and _FOR_PAGES not in scope:
            scope[_FOR_PAGES] = True
            await self._for_pages(scope, receive, send)
            return
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"], state["headers"] = request_id, headers
        path = scope["path"]
        if scope["method"] == "HEAD" and _is_open(path):
            # Monitors and load balancers use HEAD, too. uvicorn leaves out the body of the answer.
            scope = {**scope, "method": "GET"}
        # For the request of a page, `OriginCheck.around` adds this header and others.
        own = [(b"x-request-id", request_id.encode("ascii"))]
        if b"origin" not in headers:
            own.append((b"vary", b"Origin"))
        sending = _Sending(send, path, own, self._server.keep_alive_s)
        try:
            await self._answer(scope, receive, sending, headers)
        except asyncio.CancelledError:  # the server's shutdown cancelled the request
            if sending.is_begun or not self._server.draining:
                raise
            await _stopping(path, "this request took too long")(scope, receive, sending)
        except SendTimeoutError:  # the client has stopped reading a stream
            return
        except Exception as error:  # a bug: its traceback is logged, and not sent to the client
            if not sending.is_begun:
                await server_failed(path)(scope, receive, sending)
            # Raising the error makes uvicorn close the connection, and the next request on it would
            # be reset. This is needed only if the client waits for the rest of an answer.
            if not sending.is_over:
                raise
            log_fault(500, error)
        finally:
            if sending.alive is not None:
                sending.alive.stop()

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> None:
        if (refusal := self._check(scope, headers)) is not None:
            await refusal(scope, receive, send)
            return
        if GONE in scope and not is_unwrapped(receive):
            # A middleware of the user may have answered, or have ended the request in `receive`,
            # while the connection is still open.
            del scope[GONE]
        path = scope["path"]
        if path not in self._direct and _is_open(path):
            await self._app(scope, receive, send)
            return
        app = self._direct.get(path, self._app)
        # The paths in `_direct` are vLLM's, which accepts such a URL.
        if app is self._app and (refusal := _nul_refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        if is_long(headers):
            work = self._read_and_pass(app, scope, receive, send, headers)
            await self._long.run(scope["state"]["tenant"], work)
            return
        is_counted = scope["method"] != "GET"  # a GET has no body, and may be a long stream
        self._long.short += is_counted
        try:
            read = await self._read(scope, receive, send, headers)
            if read is None:
                return
            if not _is_large(read):
                await app(scope, read, send)
                return
        finally:
            self._long.short -= is_counted
        # A large request must not count as a short request, or it would wait for itself.
        await self._long.run(scope["state"]["tenant"], app(scope, read, send))

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        """Return the error for a request or a WebSocket that may not pass; None if it may pass."""
        path, server = scope["path"], self._server
        is_socket = scope["type"] == "websocket"
        if "is_over_limit" in scope["state"]:
            reason = "too many connections are open; close idle connections, or try again later"
            return _unavailable(path, reason, "too_many_connections")
        if server.draining and not _goes_on("" if is_socket else scope["method"], path):
            return _stopping(path, "it finishes running work and accepts no new work")
        is_open = path not in self._direct and _is_open(path)
        why = None if is_open else self._origins.refusal(headers, is_socket=is_socket)
        if why is not None:
            return error_response(path, 403, why, code="foreign_origin")
        tenant = self._tenant(headers, is_open=is_open)
        if tenant is None:
            return _invalid_tenant(path, headers) if server.keys is None else _no_key(path)
        scope["state"]["tenant"] = tenant
        # Without keys, everybody is an operator.
        scope["state"]["operator"] = server.keys is None or server.keys.is_operator(tenant)
        if not is_open:
            try:
                server.tenants.arrive(tenant)
            except BusyError as error:
                wait = {"retry-after": str(error.retry_after)}
                return error_response(path, 429, str(error), code="rate_limited", headers=wait)
        return None

    async def _read_and_pass(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
    ) -> None:
        """Read the body, and pass the request to ``app`` unless its body was refused."""
        if (read := await self._read(scope, receive, send, headers)) is not None:
            await app(scope, read, send)

    async def _read(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> ReadBody | None:
        """Return the body of a request; answer the request and return None if it is refused."""
        path, most_bytes = scope["path"], self._server.bounds.body_bytes
        was_compressed = b"content-encoding" in headers
        if was_compressed:  # several headers of this name have the same meaning as one list
            named = [value for name, value in scope["headers"] if name == b"content-encoding"]
            headers[b"content-encoding"] = b", ".join(named)
        try:
            read = await read_body(receive, path, headers, most_bytes)
        except TooLargeError as error:
            refusal = error_response(path, 413, str(error), code="body_too_large")
            await refusal(scope, receive, send)
            return None
        except EncodingError as error:
            readable = {"accept-encoding": accepted()}
            refusal = error_response(
                path, 415, str(error), code="unsupported_encoding", headers=readable
            )
            await refusal(scope, receive, send)
            return None
        if was_compressed and b"content-encoding" not in headers:
            scope["headers"] = _plain(scope["headers"], headers)
        return read

    def _tenant(self, headers: dict[bytes, bytes], *, is_open: bool) -> str | None:
        """Return the tenant of a request's key, or on a server without keys the tenant that the
        request names; if it names none, this is the default tenant.

        For an unknown key, or a name that no tenant can have, return the default tenant if the path
        ``is_open``, and None if it is not.
        """
        if self._server.keys is None:
            if b"x-agentrt-tenant" not in headers:
                return DEFAULT_TENANT
            named = _named_tenant(headers) or DEFAULT_TENANT
            tenant = named if TENANT_NAME.fullmatch(named) else None
        else:
            tenant = self._server.keys.tenant_of(_key(headers))
        return DEFAULT_TENANT if tenant is None and is_open else tenant


class _Sending:
    """A send function that adds the headers ``own``, with the request's id, to the answer, keeps
    streams alive, and escapes the characters in a stream's events at which some clients end a line.

    ``alive`` is the stream's keep-alive, if the answer is a stream. ``is_begun`` is True as
    soon as sending the head of the answer begins, and ``is_over`` after all of it was sent.
    """

    __slots__ = (
        *("_interval_s", "_is_stream", "_own", "_path", "_send"),
        *("alive", "is_begun", "is_over"),
    )

    def __init__(
        self, send: Send, path: str, own: Sequence[tuple[bytes, bytes]], interval_s: float
    ) -> None:
        self._send, self._path = send, path
        self._own, self._interval_s = own, interval_s
        self.alive: KeepAlive | None = None
        self._is_stream = self.is_begun = self.is_over = False

    def __call__(self, message: Message) -> Awaitable[None]:
        goes_on = "more_body" in message and message["more_body"]
        if self._is_stream:
            body = bytes(message["body"]) if "body" in message else b""
            if not body.isascii():
                message["body"] = escape_line_ends(body)
            if self.alive is not None and (body or not goes_on):
                self.alive.last, self.alive.idle = message, 0  # an empty piece keeps nothing alive
        elif message["type"] == "http.response.start":
            self._begin(message)
            return self._send(message)
        return self._send(message) if goes_on else self._last(message)

    def _begin(self, start: Message) -> None:
        """Complete the head of the answer."""
        self.is_begun = True
        start["headers"] = headers = [*start.get("headers", ()), *self._own]
        if self._path.startswith(_MESSAGES):
            headers.append((b"request-id", self._own[0][1]))  # its name in Anthropic's API
        for name, value in headers:
            if name == b"content-type" and value[: len(STREAM)] == STREAM:
                self._is_stream = True
                if self._interval_s:
                    self.alive = KeepAlive(self._send, self._path, self._interval_s)

    async def _last(self, message: Message) -> None:
        await self._send(message)
        self.is_over = True


def _nul_refusal(scope: Scope) -> Response | None:
    """Return the error for a request whose URL has a NUL character; None for all other requests.

    PostgreSQL refuses texts with this character, so a search for such a text would fail.
    """
    path = scope["path"]
    if "\0" in path:
        reason = f"{scope['method']} {path}: not found, because no path has a NUL character (%00)"
        return error_response(path, 404, reason, code="not_found")
    if b"%00" in scope["query_string"]:
        reason = "the query of the URL has a NUL character (%00); leave it out"
        return error_response(path, 400, reason, code="invalid_value")
    return None


def _is_large(read: ReadBody) -> bool:
    """Return whether a body that its headers do not call long turned out to be large."""
    return read.objects > MANY_OBJECTS or len(read.body or b"") > LONG


def _plain(
    sent: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request whose body has been decompressed."""
    about_body = (b"content-encoding", b"content-length", b"transfer-encoding")
    kept = [header for header in sent if header[0] not in about_body]
    return [*kept, (b"content-length", headers[b"content-length"])]


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _goes_on(method: str, path: str) -> bool:
    """Return whether a draining server accepts a request: reads, cancellations and deletions, which
    begin no work, answers to questions of live runs, and messages of MCP clients. The MCP API
    itself refuses new calls.
    """
    is_end = method == "DELETE" or path.endswith(_CANCEL)
    return method in _SAFE_METHODS or is_end or path.startswith(_QUESTIONS) or path == MCP_PATH


def _no_key(path: str) -> Response:
    return error_response(
        path,
        401,
        "missing or unknown API key; send the header 'Authorization: Bearer KEY' or "
        "'X-Api-Key: KEY'",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _invalid_tenant(path: str, headers: dict[bytes, bytes]) -> Response:
    text = f"header x-agentrt-tenant: invalid value {_named_tenant(headers)[:80]!r}; {NAME_RULE}"
    return error_response(path, 400, text, code="invalid_value")


def _stopping(path: str, why: str) -> Response:
    return _unavailable(path, f"the server is stopping: {why}", "stopping")


def _unavailable(path: str, message: str, code: str) -> Response:
    headers = {"retry-after": _RETRY_S, "connection": "close"}
    return error_response(path, 503, message, code=code, headers=headers)


def server_failed(path: str) -> Response:
    """Return the answer to a request that failed because of a bug in this server."""
    return error_response(path, 500, "the server failed", code="internal_error")


def _request_id(headers: dict[bytes, bytes]) -> str:
    if b"x-request-id" in headers:
        raw_id = headers[b"x-request-id"].decode("latin-1")
        if _ID.fullmatch(raw_id):
            return raw_id
    return urandom(16).hex()


def _named_tenant(headers: dict[bytes, bytes]) -> str:
    return unquote(headers.get(b"x-agentrt-tenant", b"").decode("latin-1"))


def _key(headers: dict[bytes, bytes]) -> str:
    authorization = headers.get(b"authorization", b"").decode("latin-1").strip()
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()
