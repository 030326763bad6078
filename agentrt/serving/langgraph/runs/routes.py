"""The routes that read, follow and stop existing runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Header, HTTPException, Query, Response
from langgraph_sdk.schema import CancelAction, RunSelectField, RunStatus
from pydantic import BeforeValidator
from sqlalchemy import Row
from sse_starlette import EventSourceResponse, ServerSentEvent

from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import RunCancel, StreamMode
from agentrt.serving.langgraph.database.runs import run_json
from agentrt.serving.langgraph.database.tables import ACTIVE, PROTOCOL
from agentrt.serving.langgraph.responses import JSON, encode, invalid, later
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.stream_responses import (
    as_sse,
    event_stream,
    fell_behind,
    headers_of,
    result_response,
)
from agentrt.serving.langgraph.runs.streams import (
    FellBehindError,
    LiveRun,
    StreamEvent,
    replay,
)
from agentrt.serving.langgraph.tenant_state import TenantState

_RUNS = "/threads/{thread_id}/runs"
_RUN = f"{_RUNS}/{{run_id}}"


def _listed(modes: Any) -> Any:
    """Return the modes of a query as a list, or None for all modes. The Python client sends an
    empty text for no mode, and JavaScript's client sends a JSON list.
    """
    if not isinstance(modes, list):
        return modes
    if len(modes) == 1 and modes[0].startswith("["):
        try:
            modes = json.loads(modes[0])
        except (ValueError, RecursionError):
            return modes
    return [mode for mode in modes if mode] or None


_Modes = Annotated[list[StreamMode] | None, BeforeValidator(_listed), Query()]
_ThreadModes = Annotated[
    list[Literal["run_modes", "lifecycle"]] | None, BeforeValidator(_listed), Query()
]


class RunRoutes(Routes):
    """The routes that read, follow and stop runs."""

    def __init__(self, state: TenantState, queue: RunQueue) -> None:
        self._state = state
        self._queue = queue
        self._all = state.runs

    @route("GET", _RUNS)
    async def of_thread(
        self,
        thread_id: UUID,
        caller: CallerDep,
        limit: bodies.Limit = 10,
        offset: bodies.Offset = 0,
        status: RunStatus | None = None,
        select: Annotated[list[RunSelectField] | None, Query()] = None,
    ) -> JSON:
        """Return a page of a thread's runs, the newest first."""
        row = await self._state.thread(caller, thread_id, "read")
        about = {"thread_id": thread_id, "metadata": {}}
        only = await caller.authorize("threads", "search", about)
        if only is not None and not only.allows(row._mapping["metadata"]):
            return JSON([])
        page = (status, limit, offset, select or None)
        return JSON(await self._all.of_thread(caller.tenant, thread_id, *page))

    @route("GET", _RUN)
    async def get(self, thread_id: UUID, run_id: UUID, caller: CallerDep) -> JSON:
        """Return a run."""
        return JSON(run_json(await self._row(caller, thread_id, run_id, "read")))

    @route("DELETE", _RUN, 204)
    async def delete(self, thread_id: UUID, run_id: UUID, caller: CallerDep) -> Response:
        """Stop a run if it has not ended, and delete it. The run's changes to the thread stay."""
        await self._row(caller, thread_id, run_id, "delete", {"run_id": run_id})
        await self._queue.stop_all([str(run_id)], "interrupt")
        await self._all.remove(str(run_id))
        return Response(status_code=204)

    @route("GET", f"{_RUN}/join")
    async def join(self, thread_id: UUID, run_id: UUID, caller: CallerDep) -> Response:
        """Wait for a run's end, and return its result."""
        row = await self._row(caller, thread_id, run_id, "read")
        live = self._queue.get(str(run_id))
        if live is not None:
            keep_alive_s = self._state.server.keep_alive_s
            return result_response(live, headers_of(row, "join"), keep_alive_s=keep_alive_s)
        row = await self._row(caller, thread_id, run_id, "read")  # the run may have ended meanwhile
        _check_ended(row)
        result = row._mapping["result"]
        return JSON(None if result is None else json.loads(result), headers=headers_of(row, "join"))

    @route("GET", f"{_RUN}/stream")
    async def join_stream(
        self,
        thread_id: UUID,
        run_id: UUID,
        caller: CallerDep,
        stream_mode: _Modes = None,
        cancel_on_disconnect: bool = False,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> EventSourceResponse:
        """Stream the events of a run from now on. For a resumable run, the header Last-Event-ID
        selects the event after which the stream begins; -1 is the beginning.

        ``stream_mode`` selects some of the modes with which the run was started.
        """
        row = await self._row(caller, thread_id, run_id, "read")
        live = self._queue.get(str(run_id))
        if live is None:
            _check_ended(await self._row(caller, thread_id, run_id, "read"))
        kwargs = json.loads(row._mapping["kwargs"])
        resumable = bool(kwargs.get("stream_resumable"))
        after = _after(last_event_id)
        if after is not None and not resumable:
            raise invalid(
                "Last-Event-ID: the run's events are not stored, because it was started without "
                "stream_resumable; leave the header out"
            )
        return event_stream(
            self._events(live, str(run_id), after),
            headers_of(row, "stream"),
            numbered=resumable,
            modes=stream_mode,
            on_leave=self._queue.canceller(live, cancel_on_disconnect),
        )

    @route("POST", f"{_RUN}/cancel", writes=False)
    async def cancel(
        self,
        thread_id: UUID,
        run_id: UUID,
        caller: CallerDep,
        wait: bool = False,
        action: CancelAction = "interrupt",
    ) -> Response:
        """Stop a run. The action ``rollback`` also undoes the run's changes to its thread's state,
        and deletes the run.

        If the run has not begun, it has ended when the response is sent. If the run has begun,
        ``wait`` says whether the response waits for the run's end.
        """
        row = await self._row(caller, thread_id, run_id, "update", _cancelled(action, [run_id]))
        live = self._queue.get(str(run_id))
        if live is None:
            raise HTTPException(404, f"run {run_id} has ended; there is nothing to cancel")
        if await self._queue.cancel_for_client([live], action) or wait:
            await live.ended()
        if not wait:
            return Response(status_code=202)
        return JSON({}, headers=headers_of(row, "join"))

    @route("POST", "/runs/cancel", 204, writes=False)
    async def cancel_many(
        self, body: RunCancel, caller: CallerDep, action: CancelAction = "interrupt"
    ) -> Response:
        """Stop runs of a thread, or all runs with a status. Ended runs are ignored."""
        if body.thread_id is not None:
            about = _cancelled(action, body.run_ids)
            await self._state.thread(caller, body.thread_id, "update", about)
            wanted = {str(run_id) for run_id in body.run_ids or ()}
            wanted &= set(self._queue.live_in(str(body.thread_id)))
        else:
            about = {"thread_id": None, **_cancelled(action, None, body.status)}
            only = await caller.authorize("threads", "update", about)
            statuses = ACTIVE if body.status == "all" else (str(body.status),)
            wanted = set(await self._all.ids(caller.tenant, statuses, only))
        live_runs = [live for key in wanted if (live := self._queue.get(key)) is not None]
        for live in await self._queue.cancel_for_client(live_runs, action):
            await live.ended()
        return Response(status_code=204)

    @route("GET", "/threads/{thread_id}/stream")
    async def thread_stream(
        self,
        thread_id: UUID,
        caller: CallerDep,
        stream_mode: _ThreadModes = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> EventSourceResponse:
        """Stream the events of the thread's runs that begin from now on. Runs that have already
        begun are left out.
        """
        await self._state.thread(caller, thread_id, "read")
        if last_event_id:
            raise invalid(
                "Last-Event-ID: the stream of a thread has only new events; leave the header out, "
                "or join the stream of a run to get past events of the run"
            )
        whole = "run_modes" in (stream_mode or ["run_modes"])
        headers = {"Location": f"/threads/{thread_id}/stream"}
        runs = self._thread_events(str(thread_id), whole)
        return EventSourceResponse(runs, headers=headers, ping=NEVER_S)

    async def _row(
        self,
        caller: Requester,
        thread_id: UUID,
        run_id: UUID,
        action: str,
        about: dict[str, Any] | None = None,
    ) -> Row[Any]:
        await self._state.thread(caller, thread_id, action, about)
        return await self._all.get(caller.tenant, thread_id, run_id)

    async def _events(
        self, live: LiveRun | None, run_id: str, after: int | None
    ) -> AsyncIterator[StreamEvent]:
        if live is not None:
            async for event in live.log.follow(live.log.last if after is None else after):
                yield event
        elif after is not None:
            async for event in replay(self._state.storage.database, run_id, after):
                yield event

    async def _thread_events(self, thread: str, whole: bool) -> AsyncIterator[ServerSentEvent]:
        with self._queue.listening(thread) as beginning:
            while (live := await beginning.get()) is not None:
                yield _lifecycle(live, "run_started")
                if whole:
                    try:
                        async for event in live.log.follow(0):
                            if event.event != PROTOCOL:
                                yield as_sse(event, numbered=False)
                    except FellBehindError as error:
                        yield fell_behind(error)
                await live.done.wait()
                yield _lifecycle(live, "run_done")


def _cancelled(
    action: CancelAction, run_ids: Sequence[UUID] | None, status: str | None = None
) -> dict[str, Any]:
    """Return the fields that hooks get about a request that stops runs, without the thread's id."""
    run_ids = None if run_ids is None else list(run_ids)
    return {"action": action, "metadata": {"run_ids": run_ids, "status": status}}


def _check_ended(row: Row[Any]) -> None:
    """Raise 503 for a run that has not ended, but is not live in this server."""
    if row.status in ACTIVE:
        raise later(503, f"run {row.run_id} has not ended, but is not running now; try again later")


def _lifecycle(live: LiveRun, status: str) -> ServerSentEvent:
    about = {"run_id": live.record.run_id, "status": status}
    return ServerSentEvent(encode(about).decode(), event="metadata")


def _after(last_event_id: str | None) -> int | None:
    """Return the number of the event after which a stream begins; None means from now on."""
    if not last_event_id:
        return None
    if last_event_id != "-1" and not (last_event_id.isdecimal() and len(last_event_id) < 16):
        raise invalid(f"invalid Last-Event-ID {last_event_id!r}; use the number of an event, or -1")
    return max(0, int(last_event_id))
