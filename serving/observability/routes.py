"""The routes: health, metrics, lists, the stream of events, the dashboard."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from agentrt.runtime.run import Run
from agentrt.serving.observability.gauges import Gauges
from agentrt.serving.observability.lists import programs_page
from agentrt.serving.observability.metrics import OfTenant
from agentrt.serving.observability.page_files import HEADERS, page_files
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.serving.observability.readers import TooManyReadersError
from agentrt.serving.observability.render import Renderer
from agentrt.serving.observability.snapshot_poller import SnapshotPoller
from agentrt.serving.observability.status import Doing
from agentrt.serving.observability.stream import Watching
from agentrt.serving.server import Server
from agentrt.serving.tenant import tenant_of

_VIEW_S = 0.5
_RETRY_S = "5"
_MOST_ROWS = 1000


def seen_by(request: Request) -> str | None:
    """Whose programs the request may see; None: all.

    Whoever checks keys sets ``request.state.tenant``, and ``request.state.operator`` where it
    is one of those who run the server, as everybody is on a server without keys.
    """
    state = request.state
    keyed = getattr(state, "tenant", None) is not None
    return tenant_of(request) if keyed and not getattr(state, "operator", False) else None


class Observability:
    """The answers, from ``books`` and ``poller``."""

    def __init__(self, server: Server, books: ProgramLog, poller: SnapshotPoller) -> None:
        self._server = server
        self._books = books
        self._poller = poller
        self._files = page_files()

    def router(self) -> APIRouter:
        """All routes. Those of the page and of health hold nothing of any tenant."""
        router = APIRouter(tags=["observability"])
        router.get("/health")(self.health)
        router.get("/ready", responses={503: {"description": "Not ready"}})(self.ready)
        router.get("/metrics", response_class=Response)(self.metrics)
        router.get("/programs", response_class=JSONResponse)(self.programs)
        router.get("/programs/{program_id:path}", responses=_NO_PROGRAM)(self.program)
        # A stream without end, and the page, are nothing that a generated client could call.
        router.get("/events", response_class=Response, include_in_schema=False)(self.events)
        router.get("/dashboard", response_class=Response, include_in_schema=False)(self.dashboard)
        router.get("/dashboard/{name}", response_class=Response, include_in_schema=False)(self.file)
        return router

    # -- is it there -------------------------------------------------------------------

    async def health(self) -> dict[str, str]:
        """The process is up."""
        return {"status": "ok"}

    async def ready(self) -> JSONResponse:
        """Whether calls are taken: an engine is up, and the server does not drain."""
        why = "draining" if self._server.draining else None
        if why is None and not self._poller.up():
            why = "no engine is up"
        body = {"ready": why is None, "why": why}
        return JSONResponse(body, 200 if why is None else 503)

    # -- what goes on ------------------------------------------------------------------

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus, in its text format."""
        tenant = seen_by(request)
        view = await self._poller.fresh(_VIEW_S)
        registry = CollectorRegistry()
        counted = self._books.metrics
        with self._books.registry.lock:
            render = Renderer(self._books, view, tenant)
            registry.register(Gauges(self._books.of(tenant), render, counted.labels))
            text = generate_latest(registry)
        text += generate_latest(
            counted.registry if tenant is None else _one(OfTenant(counted.registry, tenant))
        )
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def programs(
        self,
        request: Request,
        state: Doing | None = None,
        type: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 100,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> JSONResponse:
        """Live programs, the oldest first, and those that ended lately, the latest first."""
        tenant = seen_by(request)
        view = await self._poller.fresh(_VIEW_S)
        with self._books.registry.lock:
            ended = reversed(self._books.ended.values())
            page = programs_page(
                self._books.of(tenant),
                (run for run in ended if tenant is None or run.row.tenant == tenant),
                Renderer(self._books, view, tenant),
                state=state,
                type=type,
                limit=limit,
                offset=offset,
            )
        return JSONResponse(page)

    async def program(self, request: Request, program_id: str) -> JSONResponse:
        """A program and its execution DAG."""
        tenant = seen_by(request)
        run = self._find(tenant, program_id)
        view = await self._poller.fresh(_VIEW_S)
        with self._books.registry.lock:
            return JSONResponse(Renderer(self._books, view, tenant).graph(run))

    async def events(
        self, request: Request, program: Annotated[str | None, Query(max_length=300)] = None
    ) -> Response:
        """What happens, as server-sent events; with ``program`` all of that one alone."""
        tenant = seen_by(request)
        run = None if program is None else self._find(tenant, program)
        watching = Watching(self._server, self._books, self._poller, tenant, run)
        try:
            return watching.response()
        except TooManyReadersError as error:
            raise HTTPException(503, str(error), {"Retry-After": _RETRY_S}) from None

    def _find(self, tenant: str | None, program_id: str) -> Run:
        with self._books.registry.lock:
            run = self._books.find(program_id)
        if run is None or (tenant is not None and run.row.tenant != tenant):
            raise HTTPException(
                404, f"no program {program_id[:80]!r} is live or ended lately; see /programs"
            )
        return run

    # -- the page ----------------------------------------------------------------------

    async def dashboard(self) -> Response:
        """The page. It loads its parts from beneath its own address."""
        return await self.file("index.html")

    async def file(self, name: str) -> Response:
        """A part of the page."""
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404, "the dashboard has no such file")
        return Response(file.content, media_type=file.media_type, headers=HEADERS)


def _one(collector: OfTenant) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


_NO_PROGRAM: dict[int | str, dict[str, Any]] = {404: {"description": "No such program"}}
