"""Which WebSockets are let in. A browser lets any page open one, with its user's cookies, and lets
it send no header: the origin is always checked, and a page's key comes as a subprotocol.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving.error_responses import error_response

SUBPROTOCOL = "agentrt"
"""What is chosen of the subprotocols that a page offers: a key is never sent back."""
_KEY = b"agentrt.bearer."

Check = Callable[[Scope, dict[bytes, bytes]], Response | None]


class Sockets:
    """Lets connections to ``app`` through ``check``. ``answer`` takes HTTP requests, for what is
    asked inside of them.
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
    """The answer to a WebSocket's handshake where none is served. A 403 would say that the client
    may not have it, and clients try again; by a 426 they know that HTTP is spoken here.
    """
    text = f"no WebSocket is served at {path}: call it by HTTP"
    headers = {"upgrade": "HTTP/1.1"}
    return error_response(path, 426, text, code="upgrade_required", headers=headers)


def close_code(status: int) -> int:
    """The close code that means this HTTP status to LangGraph's clients."""
    return 4000 + status


def _take_key(scope: Scope) -> None:
    """Have the key that a page gave as a subprotocol where all others send theirs."""
    offered = [one.encode("latin-1") for one in scope["subprotocols"]]
    keys = [one.removeprefix(_KEY) for one in offered if one.startswith(_KEY)]
    if keys:
        scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + keys[0])]


async def _refuse(
    refusal: Response, scope: Scope, receive: Receive, send: Send, *, is_page: bool
) -> None:
    """Refuse a handshake. A page cannot read the response; one of a known origin gets a code."""
    if not is_page or refusal.status_code == HTTPStatus.FORBIDDEN:
        await refusal(scope, receive, send)
        return
    chosen = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": chosen})
    reason = HTTPStatus(refusal.status_code).phrase
    await send(
        {"type": "websocket.close", "code": close_code(refusal.status_code), "reason": reason}
    )
