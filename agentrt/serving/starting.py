"""What the server answers while its engine starts, which may take minutes.

A health check gets status 503 at once, so that whoever starts the server can see that it is alive
and not ready yet. A request for metrics gets status 503, too. The chat page and the dashboard show
that the engine starts, and load themselves again. All other requests wait until the engine has
started. While too many connections are open, new requests are refused.
"""

from __future__ import annotations

import asyncio

from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving.error_responses import error_response

STARTING = "the engine is starting"
_STOPS = "the server stops before its engine has started"
_CROWDED = f"{STARTING}, and too many requests wait for it; try again later"
_RELOAD_S = 2
_RESTARTS = 1012
"""The code with which a server that restarts closes WebSockets."""
_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>agentrt: {STARTING}</title>
<main><h1>agentrt</h1><p role="status">Please wait: {STARTING}. This page reloads itself.</p></main>
"""


class StartingApp:
    """The server's application: it answers or holds requests until `open` is called, and then
    passes all requests on to the application that `open` was called with.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._is_over = asyncio.Event()

    def open(self, app: ASGIApp) -> None:
        """Pass the requests that wait, and all later requests, on to ``app``."""
        self._app = app
        self._is_over.set()

    def close(self) -> None:
        """Refuse the requests that wait, unless `open` was called: the engine does not start."""
        self._is_over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            if "is_over_limit" in scope.get("state", ()):
                await _unavailable(_CROWDED)(scope, receive, send)
                return
            if (answer := _answer(scope)) is not None:
                await answer(scope, receive, send)
                return
            await self._is_over.wait()
        await (self._app or _unavailable(_STOPS))(scope, receive, send)


def _unavailable(message: str) -> ASGIApp:
    """Return an application that refuses requests with status 503."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _RESTARTS})
            return
        headers = {"Retry-After": str(_RELOAD_S), "Connection": "close"}
        answer = error_response(scope["path"], 503, message, code="starting", headers=headers)
        await answer(scope, receive, send)

    return refuse


def _answer(scope: Scope) -> Response | None:
    """Return the answer to a request that does not wait; None for a request that waits."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    headers = {"Retry-After": str(_RELOAD_S), "Cache-Control": "no-store"}
    match scope["path"]:
        case "/health":
            return JSONResponse({"status": STARTING}, 503, headers)
        case "/ready":
            return JSONResponse({"ready": False, "why": STARTING}, 503, headers)
        case "/ok":
            return JSONResponse({"ok": False}, 503, headers)
        case "/metrics":
            return PlainTextResponse(f"{STARTING}\n", 503, headers)
        case "/" | "/dashboard":
            return HTMLResponse(_PAGE, 503, {**headers, "Refresh": str(_RELOAD_S)})
    return None
