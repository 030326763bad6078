"""Responses for clients that follow a run: a stream of its events, or its result at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph.database.tables import PROTOCOL
from agentrt.serving.langgraph.responses import encode
from agentrt.serving.langgraph.runs.streams import FellBehindError, LiveRun, StreamEvent

SEND_S = 60
"""Seconds after which a client that does not read counts as disconnected."""
OnLeave = Callable[[], None]
"""A callback for a client that disconnects before the run's end."""


def headers_of(row: sa.Row[Any], retry: str | None = None) -> dict[str, str]:
    """Return the headers with a run's address. ``retry`` is ``join`` or ``stream``: it adds the
    address at which a client can continue if its connection breaks.
    """
    path = f"/threads/{row._mapping['thread_id']}/runs/{row._mapping['run_id']}"
    headers = {"Content-Location": path}
    return headers if retry is None else {**headers, "Location": f"{path}/{retry}"}


def _ignore() -> None:
    """Do nothing when a client disconnects."""


def event_stream(
    source: AsyncIterator[StreamEvent],
    headers: dict[str, str],
    *,
    numbered: bool,
    modes: Collection[str] | None = None,
    on_leave: OnLeave = _ignore,
) -> EventSourceResponse:
    """Return a response that streams events as they come, except events of the streaming protocol.
    With ``modes``, only events of these stream modes and errors are sent. ``numbered`` says whether
    the events are sent with their numbers as ids. ``on_leave`` is called if the client disconnects
    or ``source`` raises another error than `FellBehindError`.
    """

    async def parts() -> AsyncIterator[ServerSentEvent]:
        over = False
        try:
            async for event in source:
                if event.event == PROTOCOL:
                    continue
                if modes is None or mode_of(event.event) in {*modes, "error"}:
                    yield as_sse(event, numbered=numbered)
            over = True
        except FellBehindError as error:
            yield fell_behind(error)
            over = True  # the client has not left: it may join the run again
        finally:
            if not over:
                on_leave()

    return EventSourceResponse(parts(), headers=headers, ping=NEVER_S, send_timeout=SEND_S)


def fell_behind(error: FellBehindError) -> ServerSentEvent:
    """Return the event that tells a reader which events it misses."""
    data = {"error": "FellBehindError", "message": str(error)}
    return ServerSentEvent(encode(data).decode(), event="error")


def as_sse(event: StreamEvent, *, numbered: bool) -> ServerSentEvent:
    """Convert an event to a server-sent event. ``numbered`` sets the event's number as its id."""
    event_id = str(event.number) if numbered else None
    return ServerSentEvent(event.data.decode(), event=event.event, id=event_id)


def mode_of(event: str) -> str:
    """Return the stream mode to which an event with the name ``event`` belongs."""
    name, _, _ = event.partition("|")
    mode, slash, _ = name.partition("/")
    return "messages-tuple" if mode == "messages" and not slash else mode


def result_response(
    live: LiveRun,
    headers: dict[str, str],
    on_leave: OnLeave = _ignore,
    *,
    keep_alive_s: float,
) -> StreamingResponse:
    """Return a response whose body is the run's result, sent when the run ends.

    The headers are sent at once, so that a client whose connection breaks knows where to continue.
    Until the run's end, a newline every ``keep_alive_s`` seconds keeps the connection open; 0 sends
    no newlines.
    """

    async def body() -> AsyncIterator[bytes]:
        try:
            while not live.done.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(keep_alive_s or None):
                        await live.done.wait()
                        break
                yield b"\n"
            yield _result_of(live)
        finally:  # the response cancels its body when the client disconnects
            if not live.done.is_set():
                on_leave()

    return StreamingResponse(body(), media_type="application/json", headers=headers)


def _result_of(live: LiveRun) -> bytes:
    """Return the run's result. Raises `ConnectionAbortedError` if the run has not ended. The error
    breaks the connection, so that the client continues at the next server, which resumes the run.
    """
    if live.result is None:
        raise ConnectionAbortedError(
            f"the server stopped before the end of run {live.record.run_id}"
        )
    return live.result
