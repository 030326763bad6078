"""What every request passes first: request id, draining, whose page sent it, API key, body size.
Then its route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.serving.error_responses import error_response
from agentrt.serving.origins import OriginCheck
from agentrt.serving.server import Server
from agentrt.serving.tenants import BusyError

DEFAULT_TENANT = "default"
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ok", "/dashboard", "/favicon.ico"})
"""Paths that need no key: health checks, and pages without data of their own."""

_OPEN_FOLDERS = ("/dashboard/", "/chat/")
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MCP_PATH = "/mcp"
_QUESTIONS = "/v1/questions/"
_DRAIN_RETRY_S = "5"
MOST_VALUES = 512 * 1024
"""Values in the JSON of a body, counted before it is parsed by what stands between them, wherever
it stands. Parsing so many takes some 50 ms, in which the server does nothing else.
"""
_BETWEEN_VALUES = (b",", b"[", b"{")
_BEARER = "bearer "


def tenant_of(request: Request) -> str:
    """The tenant whose key came with the request; without keys there is one tenant."""
    tenant: str = getattr(request.state, "tenant", DEFAULT_TENANT)
    return tenant


class Middleware:
    """Admits requests to ``app``, or answers with an error. Those at a path that ``direct`` has go
    to its application, past the many routes and the middleware of ``app``.

    ``scope["state"]`` gets the ``tenant``, whether it is an ``operator``, and the ``request_id``.
    """

    def __init__(
        self, app: ASGIApp, server: Server, origins: OriginCheck, direct: Mapping[str, ASGIApp]
    ) -> None:
        self._app = app
        self._server = server
        self._origins = origins
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        bounded = _BoundedBody(receive, self._server.bounds.body_bytes, headers)
        is_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                own = (b"x-request-id", request_id.encode("ascii"))
                message["headers"] = [*message.get("headers", ()), own]
            await send(message)

        path = scope["path"]
        app = self._check(scope, headers) or self._direct.get(path, self._app)
        try:
            await app(scope, bounded.receive, send_with_id)
        except Exception:  # a bug of ours: the log gets its traceback, the client nothing of it
            if not is_begun:
                await server_failed(path)(scope, receive, send_with_id)
            raise

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """The error response for a request that may not pass."""
        path, server = scope["path"], self._server
        if server.draining and not _goes_on(scope["method"], path):
            return error_response(
                path,
                503,
                "the server is stopping: it finishes what runs and takes nothing new",
                code="stopping",
                headers={"retry-after": _DRAIN_RETRY_S, "connection": "close"},
            )
        is_open = path in OPEN_PATHS or path.startswith(_OPEN_FOLDERS)
        if not is_open and (why := self._origins.refusal(headers)) is not None:
            return error_response(path, 403, why, code="foreign_origin")
        tenant = self._tenant(headers, is_open=is_open)
        if tenant is None:
            return error_response(
                path,
                401,
                "this server needs a key: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        scope["state"]["tenant"] = tenant
        # Without keys, everybody is an operator.
        scope["state"]["operator"] = server.keys is None or server.keys.is_operator(tenant)
        if not is_open:
            try:
                server.tenants.arrive(tenant)
            except BusyError as error:
                wait = {"retry-after": str(error.retry_after)}
                return error_response(path, 429, str(error), code="rate_limited", headers=wait)
        return self._check_length(path, headers)

    def _check_length(self, path: str, headers: dict[bytes, bytes]) -> ASGIApp | None:
        most = self._server.bounds.body_bytes
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            error = TooLargeError(f"is larger than {most} bytes")
            return error_response(path, 413, error.detail, code="body_too_large")
        return None

    def _tenant(self, headers: dict[bytes, bytes], *, is_open: bool) -> str | None:
        """The tenant of the request's key; on a server without keys, the one that it names."""
        if self._server.keys is None:
            named = unquote(headers.get(b"x-agentrt-tenant", b"").decode("latin-1"))
            return named if _NAME.fullmatch(named) else DEFAULT_TENANT
        tenant = self._server.keys.tenant_of(_key(headers))
        return DEFAULT_TENANT if tenant is None and is_open else tenant


class _BoundedBody:
    """A request's body as it comes; `receive` raises `TooLargeError`."""

    def __init__(self, receive: Receive, most: int, headers: Mapping[bytes, bytes]) -> None:
        self._receive = receive
        self._most = most
        self._is_form = headers.get(b"content-type", b"").startswith(b"multipart/")
        self._bytes = self._values = 0

    async def receive(self) -> Message:
        message = await self._receive()
        piece = message.get("body", b"")
        self._bytes += len(piece)
        if self._bytes > self._most:
            raise TooLargeError(f"is larger than {self._most} bytes")
        if not self._is_form:
            self._values += sum(map(piece.count, _BETWEEN_VALUES))
        if self._values > MOST_VALUES:
            raise TooLargeError(f"has more than {MOST_VALUES} values")
        return message


def _goes_on(method: str, path: str) -> bool:
    """Whether a server that drains still takes the request: an answer ends what runs."""
    return method in _SAFE_METHODS or path.startswith(_QUESTIONS) or path == MCP_PATH


def server_failed(path: str) -> Response:
    """The answer to a request that a bug of ours ended."""
    return error_response(path, 500, "the server failed", code="internal_error")


class TooLargeError(HTTPException):
    """The body is larger than the server takes; ``fault`` says in what."""

    def __init__(self, fault: str) -> None:
        message = f"the request's body {fault}; send less"
        # The connection stays open, and the rest is read and dropped until the request times
        # out: closing it would reset it, and the client would never see this answer.
        super().__init__(413, message)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _ID.fullmatch(given) else uuid4().hex


def _key(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"authorization", b"").decode("latin-1").strip()
    if given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()
