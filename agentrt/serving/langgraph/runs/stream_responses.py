"""How clients follow a run over HTTP: its events as they come, or its result at the end."""

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
"""How long a client may not read before it counts as gone."""
OnLeave = Callable[[], None]
"""Called when a client has gone before the end."""


def headers_of(row: sa.Row[Any], retry: str | None = None) -> dict[str, str]:
    """Where a run is, and where a client whose connection breaks asks again: ``retry``."""
    path = f"/threads/{row._mapping['thread_id']}/runs/{row._mapping['run_id']}"
    headers = {"Content-Location": path}
    return headers if retry is None else {**headers, "Location": f"{path}/{retry}"}


def _ignore() -> None:
    """A client that leaves does not affect its run."""


def event_stream(
    source: AsyncIterator[StreamEvent],
    headers: dict[str, str],
    *,
    numbered: bool,
    modes: Collection[str] | None = None,
    on_leave: OnLeave = _ignore,
) -> EventSourceResponse:
    """Events as they come; with ``modes``, those of some stream modes only."""

    async def parts() -> AsyncIterator[ServerSentEvent]:
        over = False
        try:
            async for one in source:
                if one.event == PROTOCOL:
                    continue
                if modes is None or mode_of(one.event) in {*modes, "error"}:
                    yield as_sse(one, numbered=numbered)
            over = True
        except FellBehindError as error:
            data = {"error": "FellBehindError", "message": f"{error}; read faster, or join again"}
            yield ServerSentEvent(encode(data).decode(), event="error")
        finally:
            if not over:
                on_leave()

    return EventSourceResponse(parts(), headers=headers, ping=NEVER_S, send_timeout=SEND_S)


def as_sse(one: StreamEvent, *, numbered: bool) -> ServerSentEvent:
    """An event on the wire; its number is its id if it can be replayed."""
    event_id = str(one.number) if numbered else None
    return ServerSentEvent(one.data.decode(), event=one.event, id=event_id)


def mode_of(event: str) -> str:
    """The stream mode of an event, by its name."""
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
    """The run's result at its end. The headers are sent at once, so that a client whose
    connection breaks knows where to ask again; until the end, a newline every ``keep_alive_s``
    seconds keeps it open (0: none).
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
        finally:  # when the client has gone, too: the response cancels its body
            if not live.done.is_set():
                on_leave()

    return StreamingResponse(body(), media_type="application/json", headers=headers)


def _result_of(live: LiveRun) -> bytes:
    """The run's result. Raises if it has not ended: a connection that breaks sends the client to
    the next server, which resumes the run.
    """
    if live.result is None:
        raise ConnectionAbortedError(f"the server ends before run {live.record.run_id} does")
    return live.result
