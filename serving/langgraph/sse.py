"""How runs are followed over HTTP: as streams of events, or until their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.langgraph.encoding import encode
from agentrt.serving.langgraph.eventlog import FellBehindError, StreamEvent
from agentrt.serving.langgraph.execution import Live

PING_S = 15
"""How often a silent response gives a sign of life, in seconds."""
_SEND_S = 60
"""How long a client may not read before it counts as gone."""
_ALWAYS = {"metadata", "error"}

Left = Callable[[], None]
"""Called when a client has gone before the end."""


def _nothing() -> None:
    """A client that goes leaves its run alone."""


def event_stream(
    source: AsyncIterator[StreamEvent],
    headers: dict[str, str],
    *,
    numbered: bool,
    modes: Collection[str] | None = None,
    left: Left = _nothing,
) -> EventSourceResponse:
    """Events as they come; of some modes only, where they are named."""

    async def parts() -> AsyncIterator[ServerSentEvent]:
        over = False
        try:
            async for one in source:
                if modes is None or mode_of(one.event) in modes or mode_of(one.event) in _ALWAYS:
                    yield as_sse(one, numbered=numbered)
            over = True
        except FellBehindError as error:
            data = {"error": "FellBehindError", "message": f"{error}; read faster, or join again"}
            yield ServerSentEvent(encode(data).decode(), event="error")
        finally:
            if not over:
                left()

    return EventSourceResponse(parts(), headers=headers, ping=PING_S, send_timeout=_SEND_S)


def as_sse(one: StreamEvent, *, numbered: bool) -> ServerSentEvent:
    """An event on the wire; its number is its id where it can be asked for again."""
    return ServerSentEvent(
        one.data.decode(), event=one.event, id=str(one.number) if numbered else None
    )


def mode_of(event: str) -> str:
    """The stream mode that an event is of, by its name."""
    name, _, _ = event.partition("|")
    mode, slash, _ = name.partition("/")
    return "messages-tuple" if mode == "messages" and not slash else mode


def at_end(
    live: Live, request: Request, headers: dict[str, str], left: Left = _nothing
) -> StreamingResponse:
    """The run's result, when it is there. The headers come at once, so that a client whose
    connection breaks knows where to ask again; meanwhile blanks keep it open.
    """

    async def body() -> AsyncIterator[bytes]:
        gone = asyncio.create_task(_gone(request))
        done = asyncio.create_task(live.done.wait())
        try:
            while not live.done.is_set() and not gone.done():
                ready, _ = await asyncio.wait(
                    (gone, done), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not ready:
                    yield b"\n"
            if live.done.is_set():
                yield _result_of(live)
        finally:
            gone.cancel()
            done.cancel()
            if not live.done.is_set():
                left()

    return StreamingResponse(body(), media_type="application/json", headers=headers)


def _result_of(live: Live) -> bytes:
    """What the run gave. Raises if it has not ended: a connection that breaks sends the client
    to the next server, which goes on with the run.
    """
    if live.result is None:
        raise ConnectionAbortedError(f"the server ends before run {live.record.run_id} does")
    return live.result


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection."""
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()
