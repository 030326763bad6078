"""The routes that start runs: in the background, until their end, or as a stream."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Row
from sse_starlette import EventSourceResponse

from agentrt.serving.langgraph import sse
from agentrt.serving.langgraph.answers import JSON
from agentrt.serving.langgraph.auth import Asking
from agentrt.serving.langgraph.execution import Live
from agentrt.serving.langgraph.runbody import BatchRunBody, LoneRunBody, RunBody, ThreadRunBody
from agentrt.serving.langgraph.runs import as_json
from agentrt.serving.langgraph.starts import Starts
from agentrt.serving.langgraph.tenant_state import TenantState

_R = "/threads/{thread_id}/runs"
_MAX_BATCH = 100


class StartRoutes:
    """Runs in a thread, and runs without."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state
        self._starts = Starts(tenant_state)

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        add = router.add_api_route
        add(_R, self.create, methods=["POST"])
        add(f"{_R}/wait", self.wait, methods=["POST"], response_model=None)
        add(f"{_R}/stream", self.stream, methods=["POST"], response_model=None)
        add("/runs", self.create_lone, methods=["POST"])
        add("/runs/wait", self.wait_lone, methods=["POST"], response_model=None)
        add("/runs/stream", self.stream_lone, methods=["POST"], response_model=None)
        add("/runs/batch", self.batch, methods=["POST"])

    async def create(self, thread_id: UUID, body: ThreadRunBody, caller: Asking) -> JSON:
        """Start a run, and leave it to itself."""
        row, _ = await self._starts.start(caller, thread_id, body)
        return JSON(as_json(row), headers=headers_of(row))

    async def wait(
        self, thread_id: UUID, body: ThreadRunBody, caller: Asking, request: Request
    ) -> StreamingResponse:
        """Start a run, and wait for what it gives."""
        row, live = await self._starts.start(caller, thread_id, body)
        return self._waiting(row, live, body, request)

    async def stream(
        self, thread_id: UUID, body: ThreadRunBody, caller: Asking
    ) -> EventSourceResponse:
        """Start a run, and follow it."""
        row, live = await self._starts.start(caller, thread_id, body)
        return self._streaming(row, live, body)

    async def create_lone(self, body: LoneRunBody, caller: Asking) -> JSON:
        """Start a run without a thread, and leave it to itself."""
        row, _ = await self._starts.start(caller, None, body)
        return JSON(as_json(row), headers=headers_of(row))

    async def wait_lone(
        self, body: LoneRunBody, caller: Asking, request: Request
    ) -> StreamingResponse:
        """Start a run without a thread, and wait for what it gives."""
        row, live = await self._starts.start(caller, None, body)
        return self._waiting(row, live, body, request)

    async def stream_lone(self, body: LoneRunBody, caller: Asking) -> EventSourceResponse:
        """Start a run without a thread, and follow it."""
        row, live = await self._starts.start(caller, None, body)
        return self._streaming(row, live, body)

    async def batch(
        self,
        bodies: Annotated[list[BatchRunBody], Body(min_length=1, max_length=_MAX_BATCH)],
        caller: Asking,
    ) -> JSON:
        """Start several runs."""
        started = await self._starts.start_all(caller, bodies)
        return JSON([as_json(row) for row, _ in started])

    # -- inside ------------------------------------------------------------------------

    def _waiting(
        self, row: Row[Any], live: Live, body: RunBody, request: Request
    ) -> StreamingResponse:
        return sse.at_end(live, request, headers_of(row, "join"), self._left(live, body))

    def _streaming(self, row: Row[Any], live: Live, body: RunBody) -> EventSourceResponse:
        return sse.event_stream(
            live.log.follow(0),
            headers_of(row, "stream"),
            numbered=live.log.resumable,
            left=self._left(live, body),
        )

    def _left(self, live: Live, body: RunBody) -> sse.Left:
        """What a client that goes away does to its run."""

        def left() -> None:
            if body.on_disconnect == "cancel" and not live.done.is_set():
                self._tenant_state.queue.cancel(live, "interrupt")

        return left


def headers_of(row: Row[Any], again: str | None = None) -> dict[str, str]:
    """Where a run is, and where a client whose connection breaks asks ``again``."""
    place = f"/threads/{row._mapping['thread_id']}/runs/{row._mapping['run_id']}"
    headers = {"Content-Location": place}
    return headers if again is None else {**headers, "Location": f"{place}/{again}"}
