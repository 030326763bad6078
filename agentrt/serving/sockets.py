"""The checks of WebSockets, and HTTP requests over them.

A browser lets any page open a WebSocket with the user's cookies, but does not let the page send
headers. So the origin of a WebSocket is always checked, and a page sends its key as a subprotocol.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving.error_responses import error_response

SUBPROTOCOL = "agentrt"
"""The subprotocol that the server selects from a page's offers, so that the server never sends the
key back.
"""
_KEY = b"agentrt.bearer."

Check = Callable[[Scope, dict[bytes, bytes]], Response | None]


class Sockets:
    """An ASGI application that passes a WebSocket to ``app`` if ``check`` allows it, and else
    refuses it.

    ``answer`` is the application that answers HTTP requests. Messages on a WebSocket become
    requests to this application.
    """

    def __init__(self, app: ASGIApp, check: Check, answer: ASGIApp) -> None:
        self._app, self._check, self._answer = app, check, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _take_key(scope)
        state = scope.setdefault("state", {})
        headers = dict(reversed(scope["headers"]))
        refusal = self._check(scope, headers)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send, is_page=b"origin" in headers)
            return
        state["answer"] = self._answer
        await self._app(scope, receive, send)


def no_socket(path: str) -> Response:
    """Return the answer to a WebSocket handshake at a path that has no WebSocket.

    After status 403, clients try again; status 426 tells them to use HTTP.
    """
    text = f"{path} does not accept WebSockets; use HTTP"
    headers = {"upgrade": "HTTP/1.1"}
    return error_response(path, 426, text, code="upgrade_required", headers=headers)


def close_code(status: int) -> int:
    """Return the WebSocket close code that LangGraph's clients read as this HTTP status."""
    return 4000 + status


def _take_key(scope: Scope) -> None:
    """Add an ``Authorization`` header with the key, if a page has sent a key as a subprotocol."""
    offered = [protocol.encode("latin-1") for protocol in scope["subprotocols"]]
    keys = [protocol.removeprefix(_KEY) for protocol in offered if protocol.startswith(_KEY)]
    if keys:
        scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + keys[0])]


async def _refuse(
    refusal: Response, scope: Scope, receive: Receive, send: Send, *, is_page: bool
) -> None:
    """Refuse a handshake.

    A page cannot read an HTTP response to a handshake. So a page of an allowed origin gets a
    WebSocket that is closed at once, with a code for the status of ``refusal``.
    """
    if not is_page or refusal.status_code == HTTPStatus.FORBIDDEN:
        await refusal(scope, receive, send)
        return
    chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": chosen})
    reason = HTTPStatus(refusal.status_code).phrase
    await send(
        {"type": "websocket.close", "code": close_code(refusal.status_code), "reason": reason}
    )
