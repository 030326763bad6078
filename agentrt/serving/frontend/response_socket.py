"""The Responses API over a WebSocket, which OpenAI's clients such as Codex use.

A ``response.create`` message becomes a request to the whole server, so that keys, limits and checks
are the same as over HTTP. Only a message with ``generate`` false makes no request, because it asks
for no answer. The events of the answer are sent as messages. A connection remembers its last
responses in memory: the client sends only new items, and names the response that it continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentrt.serving.frontend.conversations import RESPONSES
from agentrt.serving.frontend.response_items import input_items
from agentrt.serving.sockets import SUBPROTOCOL

Json = dict[str, Any]

MOST_REMEMBERED = 4
"""Number of responses that a connection remembers. Clients usually continue the last response."""
MOST_WAITING = 1024
"""Maximum number of messages that wait until the response in progress has ended."""
MOST_DROPPED = 1024
"""Number of further messages that get an error in their turn. After these, the connection is
closed.
"""
MOST_WAITING_BYTES = 32 * 1024 * 1024
"""Maximum size of all waiting messages together, in bytes."""
_OWN_HEADERS = frozenset(
    [
        *(b"connection", b"upgrade", b"content-length", b"content-type", b"content-encoding"),
        *(b"x-request-id", b"idempotency-key", b"accept"),
    ]
)
"""Headers of the handshake that are not passed on to the requests of the connection."""
_CREATE = "response.create"
_OWN_FIELDS = ("type", "generate", "stream_id", "background")
_LAST = ("response.completed", "response.incomplete", "response.failed")
_GOING_AWAY, _GONE, _FAILED, _TOO_BUSY = 1001, 1006, 1011, 1013
_ABORT_S = 5.0
"""Seconds that an answer may take to end after its client has disconnected."""
_TOO_MANY = (
    f"this message was dropped, because {MOST_WAITING} messages or {MOST_WAITING_BYTES >> 20} MiB "
    "were waiting for their turn here; send the next message after an answer"
)
_LOG = logging.getLogger(__name__)


class ResponseSocket:
    """One WebSocket connection of the Responses API."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._socket = WebSocket(scope, receive, send)
        self._app: ASGIApp = scope["state"]["answer"]
        self._chats: OrderedDict[str, Sequence[Any]] = OrderedDict()
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._left = asyncio.Event()
        self._is_answering = self._is_ending = False

    async def serve(self) -> None:
        """Answer messages until the client disconnects."""
        offered = self._socket.scope.get("subprotocols", ())
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        answering = asyncio.create_task(self._answer_all())
        reading = asyncio.create_task(self._read_all())
        try:
            await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._left.set()
            reading.cancel()
            if self._is_answering:  # the call is aborted, as for any client that disconnects
                await asyncio.wait({answering}, timeout=_ABORT_S)
            answering.cancel()
            for outcome in await asyncio.gather(answering, reading, return_exceptions=True):
                if isinstance(outcome, Exception):  # a bug
                    _LOG.error("a WebSocket at %s failed", RESPONSES, exc_info=outcome)
                    await self._close(_FAILED, "the server failed")

    async def drain(self) -> None:
        """Close the connection, at once or after the answer in progress, because the server
        stops.
        """
        self._is_ending = True
        if not self._is_answering:
            await self._close()

    # -- messages ----------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Queue messages until the client disconnects, or until too many messages were dropped.

        None stands for a message that was dropped because too many messages are waiting.
        """
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text") or message.get("bytes") or b""
            # Waiting for room would hide that the client disconnects.
            data = text.encode() if isinstance(text, str) else text
            waiting_bytes, waiting = self._waiting_bytes + len(data), self._messages.qsize()
            if waiting < MOST_WAITING and waiting_bytes <= MOST_WAITING_BYTES:
                self._waiting_bytes = waiting_bytes
                self._messages.put_nowait(data)
            elif waiting < MOST_WAITING + MOST_DROPPED:
                self._messages.put_nowait(None)
            else:
                await self._close(_TOO_BUSY, "too many messages were sent before their answers")
                return

    async def _answer_all(self) -> None:
        """Answer messages, one after another."""
        with contextlib.suppress(WebSocketDisconnect, TimeoutError):
            while True:
                message = await self._messages.get()
                self._is_answering = True
                if message is None:
                    await self._refuse(429, "too_many_messages", _TOO_MANY)
                else:
                    self._waiting_bytes -= len(message)
                    await self._answer(message)
                self._is_answering = False
                if self._is_ending:
                    await self._close()

    async def _answer(self, data: bytes) -> None:
        try:
            event = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            await self._refuse(400, "invalid_json", f"the message is not JSON: {error}")
            return
        kind = event.get("type") if isinstance(event, dict) else None
        if kind != _CREATE:
            await self._refuse(
                400,
                "unknown_event",
                f"unknown message type {kind!r}; send {_CREATE!r}",
            )
            return
        stream_id = event.get("stream_id")
        about = {} if stream_id is None else {"stream_id": stream_id}
        body = {name: value for name, value in event.items() if name not in _OWN_FIELDS}
        before = self._chats.get(str(body.get("previous_response_id")))
        chat = [*(before or ()), *(input_items(body.get("input")) or ())]
        shown = {"previous_response_id": body.get("previous_response_id")}
        if before is not None:  # after a warm-up without input, the chat is empty
            body = {**body, "input": chat, "previous_response_id": None}
        if event.get("generate") is False:
            await self._warm_up(body, chat, about)
            return
        await self._respond(
            {**body, "stream": True}, chat, shown if before is not None else {}, about
        )

    async def _warm_up(self, body: Json, chat: Sequence[Any], about: Json) -> None:
        """Remember a chat that the client will continue, without generating an answer."""
        response: Json = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.get("model"),
            "status": "in_progress",
            "output": [],
            "previous_response_id": body.get("previous_response_id"),
        }
        await self._send({"type": "response.created", "response": response, **about})
        self._remember(response["id"], chat)
        usage = {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        }
        response = {**response, "status": "completed", "usage": usage}
        await self._send({"type": "response.completed", "response": response, **about})

    async def _respond(self, body: Json, chat: Sequence[Any], shown: Json, about: Json) -> None:
        """Answer a request with the events of its response."""
        events = _EventParser()

        async def put(piece: bytes) -> None:
            for event in events.feed(piece):
                response = event.get("response")
                if isinstance(response, dict):
                    event["response"] = response = {**response, **shown}
                    if event.get("type") in _LAST:
                        self._remember(
                            str(response.get("id")), [*chat, *(response.get("output") or ())]
                        )
                is_error = event.get("type") == "error"
                error = {"status": 500, "error": _error_of(event)} if is_error else {}
                await self._send({**error, **event, **about})

        status, answer = await self._ask(body, put)
        if status == 200 or self._left.is_set():
            return
        error: Json = {"message": "the server failed", "code": "internal_error"}
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = dict(from_json(answer)["error"])
        if status == 404 and body.get("previous_response_id"):
            error["code"] = "previous_response_not_found"
        await self._send({"type": "error", "status": status, "error": error, **about})

    def _remember(self, response_id: str, chat: Sequence[Any]) -> None:
        self._chats[response_id] = chat
        while len(self._chats) > MOST_REMEMBERED:
            self._chats.popitem(last=False)

    # -- requests to the server, and messages to the client ----------------------------

    async def _ask(self, body: Json, put: Any) -> tuple[int, bytes]:
        """Send a request to the server, and return the status and the body of an error.

        If the request succeeds, ``put`` is called with each piece of the body, and the returned
        body is empty.
        """
        text = json.dumps(body).encode()
        whole: Message | None = {"type": "http.request", "body": text, "more_body": False}
        status, parts = 0, []

        async def receive() -> Message:
            nonlocal whole
            message, whole = whole, None
            if message is None:
                await self._left.wait()
                return {"type": "http.disconnect"}
            return message

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            piece: bytes = message.get("body", b"")
            if status != 200:
                parts.append(piece)
            elif piece and not self._left.is_set():
                await put(piece)

        try:
            await self._app(_scope(self._socket.scope, len(text)), receive, send)
        except (WebSocketDisconnect, TimeoutError):
            raise
        except Exception:  # a bug; the client gets status 500 or an error event
            _LOG.exception("%s over a WebSocket failed", RESPONSES)
        return status, b"".join(parts)

    async def _refuse(self, status: int, code: str, message: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        await self._send({"type": "error", "status": status, "error": error})

    async def _send(self, event: Mapping[str, Any]) -> None:
        """Send an event. Raises `WebSocketDisconnect` if either side has closed the connection."""
        try:
            await self._socket.send_text(json.dumps(event, ensure_ascii=False))
        except RuntimeError as error:
            raise WebSocketDisconnect(_GONE) from error

    async def _close(self, code: int = _GOING_AWAY, why: str = "the server is stopping") -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await self._socket.close(code, why)


class _EventParser:
    """A parser of the events of a stream, whose pieces may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Json]:
        """Return the events that ``piece`` completes."""
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        return [
            dict(from_json(line.removeprefix(b"data: ")))
            for text in whole
            for line in text.splitlines()
            if line.startswith(b"data: {")
        ]


def _error_of(event: Mapping[str, Any]) -> Json:
    return {name: event.get(name) for name in ("code", "message", "param")}


def _scope(handshake: Scope, size: int) -> Scope:
    """Return the ASGI scope of a request with the connection's headers. ``size`` is in bytes."""
    headers = [
        (name, value)
        for name, value in handshake["headers"]
        if name not in _OWN_HEADERS and not name.startswith(b"sec-websocket-")
    ]
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]
    return {
        **{key: handshake[key] for key in ("asgi", "http_version", "server", "client")},
        "root_path": handshake.get("root_path", ""),
        "type": "http",
        "method": "POST",
        "scheme": "https" if handshake["scheme"] == "wss" else "http",
        "path": RESPONSES,
        "raw_path": RESPONSES.encode(),
        "query_string": b"",
        "headers": [*headers, *own],
    }
