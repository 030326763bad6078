"""The streaming protocol over a WebSocket.

A command is a request to ``/threads/{id}/commands``, and a subscription is a request to
``/threads/{id}/stream/events``. Both go through the whole server, so that API keys, authentication
hooks, limits and checks are the same as for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import orjson
from fastapi import WebSocket, WebSocketDisconnect
from starlette.types import ASGIApp, Message, Scope

from agentrt.serving.bodies import LONG
from agentrt.serving.sockets import SUBPROTOCOL, close_code

_log = logging.getLogger(__name__)

MOST_SUBSCRIPTIONS = 64
"""Maximum number of subscriptions of a connection."""
_GOING_AWAY, _GONE, _BROKEN = 1001, 1006, 1011
_CLOSING_STATUSES = (401, 403)
"""Statuses that close the connection, because they refuse the client and not only a command."""
REPLAYED = "replayed"
"""The comment in a stream of events between the past events and the new events."""
_REPLAYED_LINE = f": {REPLAYED}".encode()
_OWN_HEADERS = (b"connection", b"upgrade", b"content-length", b"content-type")

Put = Callable[[bytes], Awaitable[None]]


class ProtocolSocket:
    """A client's connection to a thread. ``app`` is the whole server, which answers the requests of
    the connection.
    """

    def __init__(self, socket: WebSocket, app: ASGIApp) -> None:
        self._socket = socket
        self._app = app
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self.ending = False
        """Whether the server stops, so that subscriptions end by themselves."""

    async def serve(self) -> None:
        """Answer messages until the client disconnects."""
        offered = self._socket.scope["subprotocols"]
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                await self._take(text.encode() if text else message.get("bytes") or b"")
        except WebSocketDisconnect:  # the client disconnected while a message was sent
            return
        finally:
            await self._end_subscriptions()

    async def drain(self) -> None:
        """Close the connection if it has no subscriptions, because the server stops. Otherwise, the
        connection is closed when its last subscription ends.
        """
        if not self._subscriptions:
            await self._close(_GOING_AWAY, "the server is stopping")

    # -- messages ----------------------------------------------------------------------

    async def _take(self, body: bytes) -> None:
        """Carry out a message. A large message can only be a command, so only the request that
        carries out the command parses it.
        """
        message: Any = None
        if len(body) <= LONG:
            with contextlib.suppress(orjson.JSONDecodeError):
                message = orjson.loads(body)
        message = message if isinstance(message, dict) else {}
        key, method = message.get("id"), message.get("method")
        if type(key) is int and method == "subscription.subscribe":
            await self._subscribe(key, message.get("params"))
        elif type(key) is int and method == "subscription.unsubscribe":
            await self._unsubscribe(key, message.get("params"))
        else:
            await self._command(key if type(key) is int else None, body)

    async def _command(self, key: int | None, body: bytes) -> None:
        status, answer = await self._request("commands", body)
        if status in (200, 400):  # the answer has the protocol's form, also for an error
            await self._send(answer)
        elif status == 422:
            await self._error(key, "invalid_argument", _detail(answer))
        elif key is None or status in _CLOSING_STATUSES:
            await self._close(close_code(status), _detail(answer))
        else:
            await self._error(key, "unknown_error", _detail(answer))

    async def _subscribe(self, key: int, params: Any) -> None:
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            why = f"the connection has {MOST_SUBSCRIPTIONS} subscriptions already; end one of them"
            await self._error(key, "invalid_argument", why)
            return
        name = str(uuid4())
        listening = self._listen(key, name, orjson.dumps(params))
        self._subscriptions[name] = asyncio.create_task(listening)

    async def _unsubscribe(self, key: int, params: Any) -> None:
        name = params.get("subscription_id") if isinstance(params, dict) else None
        task = self._subscriptions.pop(name, None) if isinstance(name, str) else None
        if task is None:
            await self._error(key, "no_such_subscription", f"unknown subscription {name}")
            return
        await _cancelled([task])
        await self._success(key, {})

    # -- subscriptions -----------------------------------------------------------------

    async def _listen(self, key: int, name: str, body: bytes) -> None:
        replayed: int | None = 0

        async def put(piece: bytes) -> None:
            nonlocal replayed
            for line in piece.splitlines():
                if line.startswith(b"data: "):
                    await self._send(line[6:])
                    replayed = None if replayed is None else replayed + 1
                elif replayed is not None and line == _REPLAYED_LINE:
                    about = {"subscription_id": name, "replayed_events": replayed}
                    replayed = None
                    await self._success(key, about)

        try:
            status, answer = await self._request("stream/events", body, put)
            self._subscriptions.pop(name, None)
            if status == 422:
                await self._error(key, "invalid_argument", _detail(answer))
            elif status != 200:
                # A client may ignore the answer to its subscription, but notices a closed
                # connection.
                await self._close(close_code(status), _detail(answer))
            elif not self.ending:  # otherwise the client would wait without end
                await self._close(
                    _BROKEN,
                    "a subscription was interrupted; connect again, and subscribe with since",
                )
            elif not self._subscriptions:
                await self._close(_GOING_AWAY, "the server is stopping")
        except WebSocketDisconnect:  # the client has disconnected
            return
        except TimeoutError:
            self._subscriptions.pop(name, None)
            await self._close(
                _BROKEN, "the client reads too slowly; connect again, and subscribe with since"
            )

    async def _end_subscriptions(self) -> None:
        tasks = list(self._subscriptions.values())
        self._subscriptions.clear()
        await _cancelled(tasks)

    # -- requests to the server, and what the client is sent ---------------------------

    async def _request(self, path: str, body: bytes, put: Put | None = None) -> tuple[int, bytes]:
        """Make a request to ``path`` of the thread, and return the status and the body of the
        response.

        If ``put`` is set, the callback gets each piece of a successful response's body, as the
        pieces arrive. The first piece is empty, and shows that the request was accepted.
        """
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}
        status, parts = 0, []

        async def receive() -> Message:
            nonlocal whole
            message, whole = whole, None
            if message is None:  # wait until the task is cancelled
                await asyncio.Event().wait()
            assert message is not None
            return message

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            piece: bytes = message.get("body", b"")
            if put is not None and status == 200:
                await put(piece)
            else:
                parts.append(piece)

        try:
            await self._app(_scope(self._socket.scope, path, len(body)), receive, send)
        except (WebSocketDisconnect, TimeoutError):
            raise
        except Exception:  # a bug; the client gets status 500
            _log.exception("a request to %s over a WebSocket failed", path)
        return status, b"".join(parts)

    async def _success(self, key: int, result: dict[str, Any]) -> None:
        await self._send(orjson.dumps({"type": "success", "id": key, "result": result}))

    async def _error(self, key: int | None, code: str, message: str) -> None:
        answer = {"type": "error", "id": key, "error": code, "message": message}
        await self._send(orjson.dumps(answer))

    async def _send(self, message: bytes) -> None:
        """Send a message. Raises `WebSocketDisconnect` if either side has closed the connection."""
        try:
            await self._socket.send_text(message.decode())
        except RuntimeError as error:
            raise WebSocketDisconnect(_GONE) from error

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(
            RuntimeError, WebSocketDisconnect
        ):  # the connection is closed already
            await self._socket.close(code, reason.encode()[:120].decode(errors="ignore"))


def _scope(handshake: Scope, path: str, size: int) -> Scope:
    """Return the ASGI scope of a POST request to ``path``, with the headers of the connection."""
    headers = [
        (name, value)
        for name, value in handshake["headers"]
        if name not in _OWN_HEADERS and not name.startswith(b"sec-websocket-")
    ]
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]
    whole = handshake["path"].removesuffix("stream/events") + path
    return {
        **{
            key: handshake[key] for key in ("asgi", "http_version", "server", "client", "root_path")
        },
        "type": "http",
        "method": "POST",
        "scheme": "https" if handshake["scheme"] == "wss" else "http",
        "path": whole,
        "raw_path": whole.encode(),
        "query_string": b"",
        "headers": [*headers, *own],
    }


def _detail(answer: bytes) -> str:
    """Return the ``detail`` of an error response."""
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        return str(orjson.loads(answer).get("detail", ""))
    return ""


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
