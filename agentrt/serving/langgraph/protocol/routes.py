"""The routes of LangGraph's streaming protocol: commands to a thread, and the events of
its runs, over HTTP or over a WebSocket.

On a WebSocket, a command is a request to ``/threads/{id}/commands``, and a subscription is a
request to ``/threads/{id}/stream/events``. Both go through the whole server, so that API keys,
authentication hooks, limits and checks are the same as for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import orjson
import sqlalchemy as sa
from fastapi import HTTPException, WebSocket, WebSocketDisconnect
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import ASGIApp, Message, Scope

from agentrt.serving.bodies import LONG
from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import Object
from agentrt.serving.langgraph.database.interrupts import interrupts_in
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.database.tables import PROTOCOL
from agentrt.serving.langgraph.protocol.commands import ProtocolCommands
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.graph_events import (
    EventsBody,
    ends_run,
    place_of,
    question_in,
    questions_of,
    seq_of,
)
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.stream_responses import SEND_S
from agentrt.serving.langgraph.runs.streams import LiveRun, ThreadEvent, replay, stored_questions
from agentrt.serving.langgraph.tenant_state import REPLAY_S, TenantState
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


EVENTS = "/threads/{thread_id}/stream/events"
_MOST_RUNS = 1000
"""Maximum number of a thread's newest runs whose events are replayed."""
_OUTDATED = (b'{"method":"input.requested"', b'{"method":"lifecycle"')
"""The beginnings of the JSON of events that would mislead a client when they are outdated."""
_WATCHED = {"lifecycle", "input"}
"""The channels of the stream on which LangGraph's Python client watches for questions, separately
from the stream of values.
"""
QUESTION_S = 0.2
"""Seconds by which questions, and the end of a run that has ended already, are delayed on a stream
with only the channels `_WATCHED`.

LangGraph's Python client ends its iterators of values when a question comes, even if values are
still on their way. Because of the delay, these values arrive first. After a question, the client
does not notice the next question before a run has completed. The client also mistakes the first end
of a run that it receives for the end of the run that it starts. So if the client starts a run while
it connects, the end of the earlier run, and questions that have been answered by then, are not
sent.
"""


_QuestionEvents = Sequence[tuple[ThreadEvent, str | None]]
"""Stored events, each with the id of the question that the event asks, or None if it asks no
question.
"""


class ProtocolRoutes(Routes):
    """The routes for commands to threads and for the events of threads."""

    def __init__(self, state: TenantState, queue: RunQueue, commands: ProtocolCommands) -> None:
        self._state = state
        self._queue = queue
        self._commands = commands
        self._sockets: set[ProtocolSocket] = set()

    async def drain(self) -> None:
        """End the streams of threads without a running run, because the server stops."""
        sockets = tuple(self._sockets)
        for socket in sockets:
            socket.ending = True
        self._queue.end_listening()
        await asyncio.gather(*(socket.drain() for socket in sockets))

    async def socket(self, socket: WebSocket, thread_id: UUID) -> None:
        """Serve commands and events over a WebSocket."""
        connection = ProtocolSocket(socket, socket.state.answer)
        self._sockets.add(connection)
        try:
            await connection.serve()
        finally:
            self._sockets.remove(connection)

    @route("POST", "/threads/{thread_id}/commands", writes=False)
    async def command(self, thread_id: UUID, body: Object, caller: CallerDep) -> JSON:
        """Carry out a command to a thread."""
        return await self._commands.answer(caller, thread_id, body)

    @route("POST", EVENTS, writes=False)
    async def events(
        self, thread_id: UUID, body: EventsBody, caller: CallerDep
    ) -> EventSourceResponse:
        """Stream the events of a thread's runs: first the past events, then the new events. The
        thread may be created later, by a command.
        """
        await caller.authorize("threads", "read", {"thread_id": thread_id})

        async def parts() -> AsyncIterator[ServerSentEvent]:
            replaying = True
            watches = _WATCHED.issuperset(body.channels)
            async for stored in self._of_thread(caller, thread_id, body.since, watches=watches):
                if stored is None:
                    if replaying:
                        replaying = False
                        yield ServerSentEvent(comment=REPLAYED)
                    continue
                event = orjson.loads(stored.data)
                if body.has(event) and await self._is_due(caller, thread_id, body, stored, event):
                    seq = seq_of(stored.run, stored.number)
                    about = {"type": "event", "event_id": f"{stored.run_id}:{stored.number}"}
                    text = orjson.dumps({**about, "seq": seq, **event}).decode()
                    yield ServerSentEvent(text, event=event["method"], id=str(seq))

        return EventSourceResponse(parts(), ping=NEVER_S, send_timeout=SEND_S)

    async def _is_due(
        self,
        caller: Requester,
        thread: UUID,
        body: EventsBody,
        stored: ThreadEvent,
        event: Mapping[str, Any],
    ) -> bool:
        """Return whether to send an event. On a stream that only watches for questions, delay a
        question (`QUESTION_S`), and drop it if it has been answered meanwhile.
        """
        question = question_in(event)
        if question is None or not _WATCHED.issuperset(body.channels):
            return True
        await asyncio.sleep(QUESTION_S)
        row = await self._seen(caller, thread)
        return row is not None and question in self._open(row, stored.run_id)

    async def _of_thread(
        self, caller: Requester, thread: UUID, since: int, *, watches: bool
    ) -> AsyncIterator[ThreadEvent | None]:
        """Yield the events of a thread after number ``since``. Yield None after the thread's past
        events, and also after the past events of each live run (`_of_run`).
        """
        done: set[str] = set()
        with self._queue.listening(str(thread)) as beginning:
            if (row := await self._seen(caller, thread)) is not None:
                async for event in self._past(row, since, done, watches=watches):
                    yield event
            yield None
            while (live := await beginning.get()) is not None:
                if live.record.run_id not in done and await self._seen(caller, thread):
                    async for event in self._of_run(live.record, live, 0):
                        yield event

    async def _past(
        self, row: sa.Row[Any], since: int, done: set[str], *, watches: bool
    ) -> AsyncIterator[ThreadEvent | None]:
        """Yield the events of the runs that have begun, and add the runs' ids to ``done``.

        If a run's stream has been deleted, yield only the run's events in `_waiting`. A client that
        ``watches`` for questions gets no answered questions. If it also reads from the beginning
        (``since`` is 0), it does not get the ends of runs before the last run.
        """
        number, after = place_of(since)
        oldest = time.time() - REPLAY_S  # the events of runs that ended earlier are deleted
        past = await self._state.runs.since(row.thread_id, number, _MOST_RUNS, oldest)
        events = await self._question_events(row)
        waiting = await self._waiting(row, since, {record.run_id for record in past}, events)
        last = {question: event for event, question in events if question is not None}
        for record in past:
            live = self._queue.get(record.run_id)
            if self._begins_later(record, live):
                continue  # the queue yields the run if it begins
            while waiting and waiting[0].run < record.number:
                yield waiting.pop(0)
            done.add(record.run_id)
            async for event in self._of_run(record, live, after if record.number == number else 0):
                past_event = event if watches and live is None else None
                if past_event is None or await self._still_counts(
                    past_event, row, since, past[-1], last
                ):
                    yield event
        for event in waiting:
            yield event

    async def _still_counts(
        self,
        event: ThreadEvent,
        row: sa.Row[Any],
        since: int,
        last: RunRecord,
        last_events: Mapping[str, ThreadEvent],
    ) -> bool:
        """Return whether an event of a run that has ended still describes its thread.

        A question counts if it is open, and this is the last event that asks it (``last_events``,
        by the questions' ids). If ``since`` is 0, the end of a run counts only if the run is the
        ``last`` run, and no other run of the thread waits or runs. All other events count.
        """
        if not event.data.startswith(_OUTDATED):
            return True
        content = orjson.loads(event.data)
        if (question := question_in(content)) is not None:
            return question in self._open(row, event.run_id) and event == last_events[question]
        if since or not ends_run(content):
            return True
        if event.run_id == last.run_id:
            await asyncio.sleep(QUESTION_S)
        return event.run_id == last.run_id and not self._queue.live_in(row.thread_id)

    async def _question_events(self, row: sa.Row[Any]) -> _QuestionEvents:
        """Return the stored events of a thread that ask questions, and the lifecycle events. The
        result is empty if the thread has no open questions.
        """
        if not any(interrupts_in(row.interrupts)):
            return []
        stored = await stored_questions(self._state.storage.database, row.thread_id)
        return [(event, question_in(orjson.loads(event.data))) for event in stored]

    async def _waiting(
        self, row: sa.Row[Any], since: int, replayed: Collection[str], events: _QuestionEvents
    ) -> list[ThreadEvent]:
        """Return the events after ``since`` that ask the thread's open questions, and the lifecycle
        events of the same runs, in the order of their numbers.

        Leaves out the runs ``replayed``, whose streams have these events. ``events`` is the result
        of `_question_events`.
        """
        interrupts = self._open(row)
        if not interrupts:
            return []
        of_runs = {event.run for event, question in events if question in interrupts}
        waiting = [
            event
            for event, question in events
            if event.run in of_runs
            and event.run_id not in replayed
            and (question is None or question in interrupts)
        ]
        # The questions of runs that older clients have started are only in the thread's row. So are
        # those of a copied thread, and of a run that was deleted.
        known = {question for _, question in events}
        unknown = [interrupts[key] for key in interrupts if key not in known]
        if unknown and row.status != "busy":
            last = await self._state.runs.last_of(row.thread_id)
            graph_id = str(row.metadata.get("graph_id", "")) if last is None else last.graph_id
            number, run_id = (0, row.thread_id) if last is None else (last.number, last.run_id)
            waiting += questions_of(unknown, graph_id, number, run_id, row.state_updated_at)
        return [event for event in waiting if seq_of(event.run, event.number) > since]

    def _open(self, row: sa.Row[Any], asker: str | None = None) -> dict[str, Mapping[str, Any]]:
        """Return the open questions in a thread's row by their ids.

        While a live run other than the run ``asker`` has a stream of protocol events, the result is
        empty, because the events of that run ask the questions that stay open.
        """
        ids = [key for key in self._queue.live_in(row.thread_id) if key != asker]
        runs = [self._queue.get(key) for key in ids]
        if any(live is not None and live.record.kwargs.get("protocol") for live in runs):
            return {}
        return {each["id"]: each for each in interrupts_in(row.interrupts)}

    def _begins_later(self, record: RunRecord, live: LiveRun | None) -> bool:
        """Return whether a run has not begun: it waits in the queue, is stored but not queued yet,
        or was stopped before it began.
        """
        if live is not None:
            return live.task is None
        return not record.attempt

    async def _seen(self, caller: Requester, thread: UUID) -> sa.Row[Any] | None:
        """Return a thread's row, or None if it does not exist or the caller may not see it."""
        try:
            return await self._state.thread(caller, thread, "read")
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return None

    async def _of_run(
        self, record: RunRecord, live: LiveRun | None, after: int
    ) -> AsyncIterator[ThreadEvent | None]:
        """Yield the protocol events of a run after number ``after``, if the run has such events.
        For a live run, yield None after the past events. Events that were deleted, because the run
        has too many events, are skipped.
        """
        if not record.kwargs.get("protocol"):
            return
        through = -1
        if live is None:
            source = replay(self._state.storage.database, record.run_id, after, may_skip=True)
        else:
            through, source = live.log.last, live.log.follow(after, may_skip=True)
            if through <= after:
                yield None
        async for event in source:
            if event.event == PROTOCOL:
                yield ThreadEvent(record.number, record.run_id, event.number, event.data)
            if event.number == through:
                yield None
