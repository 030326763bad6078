"""What every request passes before it comes to a room, as plain ASGI: its id, the server's state,
its key and its size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.serving.error_responses import refusal
from agentrt.serving.server import Server
from agentrt.serving.tenant import DEFAULT_TENANT

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ok", "/dashboard", "/favicon.ico"})
"""What needs no key: whether the server is well, and a page that shows nothing by itself."""

_OPEN_FOLDER = "/dashboard/"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DRAIN_RETRY_S = "5"
_SCHEMES = ("bearer ",)


class Middleware:
    """The application behind its doors.

    ``scope["state"]`` gets the ``tenant``, whether it is an ``operator``, and the ``request_id``.
    """

    def __init__(self, app: ASGIApp, server: Server, open_paths: Sequence[str] = ()) -> None:
        self._app = app
        self._server = server
        self._open = OPEN_PATHS | set(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        send = _Signed(send, request_id)
        refused = self._refuse(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, _Body(receive, self._server.bounds.body_bytes), send)

    def _refuse(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        path, server = scope["path"], self._server
        if server.draining and scope["method"] not in _SAFE_METHODS:
            return refusal(
                path,
                503,
                "the server is stopping: it finishes what runs and takes nothing new",
                code="stopping",
                headers={"retry-after": _DRAIN_RETRY_S, "connection": "close"},
            )
        tenant = self._tenant(path, headers)
        if tenant is None:
            return refusal(
                path,
                401,
                "this server needs a key: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        scope["state"]["tenant"] = tenant
        # Without keys everybody runs the server.
        scope["state"]["operator"] = server.keys is None or server.keys.is_operator(tenant)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > server.bounds.body_bytes:
            error = TooLargeError(server.bounds.body_bytes)
            return refusal(path, 413, error.detail, code="body_too_large")
        return None

    def _tenant(self, path: str, headers: dict[bytes, bytes]) -> str | None:
        """Whose request it is: its key says so; on a server without keys, its header."""
        if self._server.keys is None:
            named = unquote(headers.get(b"x-agentrt-tenant", b"").decode("latin-1"))
            return named if _NAME.fullmatch(named) else DEFAULT_TENANT
        tenant = self._server.keys.tenant_of(_key(headers))
        is_open = path in self._open or path.startswith(_OPEN_FOLDER)
        return DEFAULT_TENANT if tenant is None and is_open else tenant


class TooLargeError(HTTPException):
    """More of a body comes than may."""

    def __init__(self, most: int) -> None:
        message = f"the request's body is larger than {most} bytes; send less"
        # The connection stays, and the rest is read and dropped, for a request's time at most:
        # to close it would reset it, and the client would never see why.
        super().__init__(413, message)


class _Body:
    """`receive` that counts."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = self._left = most

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise TooLargeError(self._most)
        return message


class _Signed:
    """`send` that puts the request's id into the answer."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (b"x-request-id", request_id.encode("ascii"))

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), self._header]
        await self._send(message)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _ID.fullmatch(given) else uuid4().hex


def _key(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"authorization", b"").decode("latin-1").strip()
    if given[:7].lower() in _SCHEMES:
        return given[7:].strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()
