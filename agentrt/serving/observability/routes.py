"""The HTTP routes of health, metrics, program lists, the stream of events, and the dashboard.

The first event of the stream is a ``snapshot``. Each later ``change`` event has the programs and
nodes that differ from the last event, each of them complete, so that a reader replaces its copies.
A ``questions`` event says that a question to a human opened or closed, and the reader may request
the list of questions. A reader that is too slow gets the event ``cut``, and may connect again for a
new snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from agentrt.graph import Node
from agentrt.runtime.run import Run
from agentrt.serving.error_responses import OpenAIRoute
from agentrt.serving.former import FormerPath
from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph import responses
from agentrt.serving.middleware import VisibleTenant
from agentrt.serving.observability.engines import EnginesView, SnapshotPoller
from agentrt.serving.observability.journal_routes import JournalRoutes
from agentrt.serving.observability.metrics import Collected, gauges, of_tenant
from agentrt.serving.observability.program_log import JSON, ProgramLog, Renderer
from agentrt.serving.observability.readers import ChangeReader, ReaderTooSlowError
from agentrt.serving.observability.status import Activity
from agentrt.serving.pages import WebPage
from agentrt.serving.server import Server

K = TypeVar("K")
_VIEW_S = 0.5
"""Seconds between two views of the engines while nothing happens."""
_BUSY_VIEW_S = 0.25
"""Seconds between two views of the engines while programs change, so that a new call is soon shown
in its queue.
"""
_ALL_S = 5.0
"""Seconds between comparisons of all live programs, which find programs that became stale without
an event.
"""
_BATCH_S = 0.1
"""Seconds for which changes are collected before they are sent together."""
_MOST_ROWS = 1000
MOST_READERS = 64
"""Maximum number of readers of the stream of events. Each change is rendered for each reader."""
_SEND_S = 10.0
"""Seconds after which a reader whose connection accepts no data is disconnected."""
_NO_ENGINE = "no engine is up"


class Observability:
    """The request handlers of the observability routes."""

    def __init__(self, server: Server, log: ProgramLog, poller: SnapshotPoller) -> None:
        self._server = server
        self._log = log
        self._poller = poller
        self._recorded = JournalRoutes(server, log)
        self._page = WebPage("agentrt.serving.observability")
        self._runs = FormerPath("/programs", "/v1/runs")

    def router(self) -> APIRouter:
        """Return the router. The page and the health routes contain no data of tenants."""
        router = APIRouter(tags=["observability"])
        router.get("/health", responses={503: {"description": "No engine is up"}})(self.health)
        router.get("/ready", responses={503: {"description": "Not ready"}})(self.ready)
        router.get("/metrics", response_class=Response)(self.metrics)
        for path, now in (self._runs.now, True), (self._runs.former, False):
            route = OpenAIRoute if now else None
            options: dict[str, Any] = {"deprecated": not now, "route_class_override": route}
            router.add_api_route(path, self.runs, response_class=responses.JSON, **options)
            options["responses"] = {404: {"description": "Unknown run"}}
            router.add_api_route(f"{path}/{{run_id:path}}", self.run, **options)
        self._recorded.add_to(router)
        # Generated clients could use neither an endless stream nor a web page.
        router.get("/events", response_class=Response, include_in_schema=False)(self.events)
        router.get("/dashboard", response_class=Response, include_in_schema=False)(self.dashboard)
        router.get("/dashboard/{name}", response_class=Response, include_in_schema=False)(self.file)
        return router

    # -- health ------------------------------------------------------------------------

    async def health(self) -> JSONResponse:
        """Return status 200 if an engine is up, and 503 while no engine is up.

        An engine that died restarts by itself, unless it has died too often.
        """
        if self._poller.up():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": _NO_ENGINE}, 503)

    async def ready(self) -> JSONResponse:
        """Return status 200 if the server accepts calls, else 503 with the reason.

        The server accepts calls if an engine is up, generation is not paused, the server does not
        drain, its background tasks do not fail repeatedly, and none of `Server.checks` reports a
        problem, such as a database disk that is nearly full.
        """
        why = self._why_not_ready()
        failing = self._server.background.failing()
        waiting = self._server.runtime.executor.waits_for()
        version = self._server.runtime.weights_version
        body = {
            "ready": why is None,
            "why": why,
            **({"failing": failing} if failing else {}),
            **({"waiting": list(waiting)} if waiting else {}),
            **({"weights_version": version} if version else {}),
        }
        return JSONResponse(body, 200 if why is None else 503)

    def _why_not_ready(self) -> str | None:
        if self._server.draining:
            return "draining"
        if not self._poller.up():
            waiting = "; ".join(self._server.runtime.executor.waits_for())
            return f"{_NO_ENGINE}: {waiting}" if waiting else _NO_ENGINE
        if self._server.runtime.executor.paused:
            return "generation is paused"
        for check in self._server.checks.values():
            if (why := check()) is not None:
                return why
        stubborn = self._server.background.stubborn()
        return f"background tasks fail repeatedly: {', '.join(stubborn)}" if stubborn else None

    # -- runs -----------------------------------------------------------------------

    async def metrics(self, tenant: VisibleTenant) -> Response:
        """Return the metrics in the text format of Prometheus."""
        view = await self._poller.fresh(_VIEW_S)
        log, counted = self._log, self._log.metrics.registry.collect()
        with log.registry.lock:
            render = self._renderer(view, tenant)
            now = gauges(log.of(tenant), view, render.now, render.sees, log.metrics.labels)
            metrics = [*now, *(counted if tenant is None else of_tenant(counted, tenant))]
        if tenant is None:
            metrics += await self._server.runtime.executor.metrics()
            # Metrics of this process, of vLLM's parsers, and of the programs' own code.
            metrics += [metric for metric in REGISTRY.collect() if metric.samples]
        text = generate_latest(Collected(metrics))
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def runs(
        self,
        request: Request,
        tenant: VisibleTenant,
        state: Activity | None = None,
        type: Annotated[str | None, Query(max_length=200)] = None,
        session: Annotated[str | None, Query(max_length=300)] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 100,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> responses.JSON:
        """List live runs, oldest first, and recently ended runs, newest first.

        ``limit`` and ``offset`` select a page of both lists. ``live`` and ``ended`` in the answer
        count all runs that match the filters.
        """

        def wanted(run: Run) -> bool:
            filters = (tenant, run.row.tenant), (type, run.type), (session, run.row.session)
            return all(value in (None, there) for value, there in filters)

        view = await self._poller.fresh(_VIEW_S)
        with self._log.registry.lock:
            render = self._renderer(view, tenant)
            live = render.programs(filter(wanted, self._log.live.values()), state)
            ended = render.programs(filter(wanted, reversed(self._log.ended.values())), state)
        page = slice(offset, offset + limit)
        return responses.JSON(
            {
                "at": render.now,
                "live": len(live),
                "ended": len(ended),
                "limit": limit,
                "offset": offset,
                "programs" if self._runs.is_used(request) else "runs": live[page],
                "recent": ended[page],
            },
            headers=self._runs.headers(request),
        )

    async def run(self, request: Request, tenant: VisibleTenant, run_id: str) -> responses.JSON:
        """Return a run and its execution graph."""
        run = self._find(tenant, run_id)
        view = await self._poller.fresh(_VIEW_S)
        with self._log.registry.lock:
            graph = self._renderer(view, tenant).graph(run)
        if not self._runs.is_used(request):
            graph["run"] = graph.pop("program")
        return responses.JSON(graph, headers=self._runs.headers(request))

    async def events(
        self, tenant: VisibleTenant, program: Annotated[str | None, Query(max_length=300)] = None
    ) -> Response:
        """Stream the changes of all programs that the client may see, or of ``program`` and all its
        nodes, as server-sent events.
        """
        if program is not None:
            self._find(tenant, program)
        if len(self._log.readers) >= MOST_READERS:
            why = (
                f"the stream of events already has {MOST_READERS} readers; close a reader or try "
                "again later"
            )
            raise HTTPException(503, why, {"Retry-After": "5"})
        feed = EventStream(self._server, self._log, self._poller, tenant, program)
        return _StreamResponse(feed)

    def _renderer(self, view: EnginesView, tenant: str | None) -> Renderer:
        return Renderer(self._log, view, tenant, texts=self._server.shows_texts(tenant))

    def _find(self, tenant: str | None, run_id: str) -> Run:
        with self._log.registry.lock:
            run = self._log.find(run_id)
        if run is None or (tenant is not None and run.row.tenant != tenant):
            raise HTTPException(
                404,
                f"unknown run {run_id[:80]!r}; see GET {self._runs.now} for live and recent runs",
            )
        return run

    # -- the page ----------------------------------------------------------------------

    async def dashboard(self, request: Request) -> Response:
        """Return the dashboard's page. The page loads its files from below its own path."""
        page = self._page.file("index.html")
        if any(getattr(route, "name", "") == "chat" for route in request.app.routes):
            link = b'<a href="./">Chat</a>'
            page = self._page.file("index.html", (b"<!-- chat -->", link))
        return page

    async def file(self, name: str) -> Response:
        """Return a file of the dashboard's page."""
        return self._page.file(name)


class _StreamResponse(EventSourceResponse):
    """The answer with the events of ``feed``.

    Its reader is opened before anything is sent, so that the next request counts it, too.
    """

    def __init__(self, feed: EventStream) -> None:
        super().__init__(iter(()), ping=NEVER_S, send_timeout=_SEND_S)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.log.readers.opened(self._feed.wants) as reader:
            self.body_iterator = self._feed.events(reader)
            await super().__call__(scope, receive, send)


# -- the stream of events --------------------------------------------------------------


@dataclass(slots=True)
class EventStream:
    """The stream of one reader, with the state that was sent to it.

    ``tenant`` is the reader's tenant (None: an operator, who sees all). With the id ``program``,
    the stream has this program only, with all its nodes, also after it was parked and resumed.
    """

    server: Server
    log: ProgramLog
    poller: SnapshotPoller
    tenant: str | None
    program: str | None = None
    sent: dict[str, JSON] = field(default_factory=dict)
    sent_nodes: dict[tuple[str, int], JSON] = field(default_factory=dict)
    sent_engines: JSON = field(default_factory=dict)
    sent_view: EnginesView = field(default_factory=EnginesView)
    sent_all_at: float = 0.0

    def wants(self, run: Run) -> bool:
        """Return whether a program belongs to the reader's stream."""
        if self.program is not None:
            return run.id == self.program
        return self.tenant is None or run.row.tenant == self.tenant

    async def events(self, reader: ChangeReader) -> AsyncIterator[ServerSentEvent]:
        """Yield the events for ``reader``."""
        view = await self.poller.fresh(_VIEW_S)
        try:
            with self.log.registry.lock:
                reader.take()
                first = self.snapshot(view)
            question_changes = self.server.questions.changes
            yield _event("snapshot", first)
            over = False
            while not over:
                await reader.wait(_VIEW_S)
                # Check this before reading the change, so that the last program's end is sent.
                over = self._over()
                view = await self.poller.fresh(_BUSY_VIEW_S)
                with self.log.registry.lock:
                    change = self.change(reader, view)
                if change is not None:
                    yield _event("change", change)
                if question_changes != self.server.questions.changes and self.program is None:
                    question_changes = self.server.questions.changes
                    yield _event("questions", {"changes": question_changes})
                await asyncio.sleep(_BATCH_S)
        except ReaderTooSlowError as error:
            yield _event("cut", {"why": str(error)})

    def _over(self) -> bool:
        """Return whether the stream ends: the server drains, and no program is live any more."""
        return self.server.draining and not self.log.live

    # -- messages ----------------------------------------------------------------------

    def snapshot(self, view: EnginesView) -> JSON:
        """Return the current state. Call this method and `change` under the registry's lock."""
        render = self._renderer(view)
        programs = [run for run in self._known() if self.wants(run)]
        self.sent = {run.id: render.program(run) for run in programs}
        nodes = [(node, render.node(run, node)) for run, node in self._nodes(programs)]
        self.sent_nodes = {
            (sent["program"], node.id): sent for node, sent in nodes if not node.state.ended
        }
        self.sent_engines, self.sent_view = render.engines(), view
        self.sent_all_at = render.now
        return {
            "at": render.now,
            "programs": list(self.sent.values()),
            "nodes": [sent for _, sent in nodes],
            "engines": self.sent_engines,
        }

    def _renderer(self, view: EnginesView) -> Renderer:
        texts = self.server.shows_texts(self.tenant)
        return Renderer(self.log, view, self.tenant, texts=texts)

    def _known(self) -> Iterable[Run]:
        if self.program is not None:
            run = self.log.find(self.program)
            return () if run is None else (run,)
        return (*self.log.ended.values(), *self.log.live.values())

    def _nodes(self, programs: list[Run]) -> Iterable[tuple[Run, Node]]:
        """Yield all nodes of the stream's program. For several programs, yield their open nodes and
        their recently ended calls.
        """
        if self.program is not None:
            yield from ((run, node) for run in programs for node in run.dag.nodes())
            return
        for track in self.log.tracks.ended():
            if track.run is not None and track.node is not None and self.wants(track.run):
                yield track.run, track.node
        for run in programs:
            yield from ((run, node) for node in (*run.dag.running(), *run.dag.waiting()))

    def change(self, reader: ChangeReader, view: EnginesView) -> JSON | None:
        """Return the changes since the last event, or None if nothing changed. Raises
        `ReaderTooSlowError` if there were more changes than fit into the reader's buffer.
        """
        render = self._renderer(view)
        changes = reader.take()
        runs = {run.id: run for run, _ in changes}
        nodes = {(run.id, node.id): (run, node) for run, node in changes if node is not None}
        engines = None
        if view.at != self.sent_view.at:
            engines = self._changed_engines(render)
            for run in self._moved(view, render.now):
                runs[run.id] = run
                nodes.update(((run.id, node.id), (run, node)) for node in run.dag.waiting())
        programs = _changed(
            self.sent,
            ((run.id, render.program(run), run.ended_at is not None) for run in runs.values()),
        )
        new_nodes = _changed(
            self.sent_nodes,
            (
                (key, render.node(*run_and_node), run_and_node[1].state.ended)
                for key, run_and_node in nodes.items()
            ),
        )
        if not (programs or new_nodes or engines):
            return None
        return {"at": render.now, "programs": programs, "nodes": new_nodes, "engines": engines}

    def _moved(self, view: EnginesView, now: float) -> list[Run]:
        """Return the live programs whose calls have another state than in the last view.

        Return all live programs of the stream if all programs were last compared `_ALL_S` seconds
        or longer ago, or if the engines' readiness or the tenants that wait for their turn have
        changed.
        """
        before, self.sent_view = self.sent_view, view
        live = [run for run in self.log.live.values() if self.wants(run)]
        as_before = (view.ready(), view.outside) == (before.ready(), before.outside)
        if now - self.sent_all_at >= _ALL_S or not as_before:
            self.sent_all_at = now
            return live
        moved = before.moved(view)
        return [run for run in live if run.id in moved]

    def _changed_engines(self, render: Renderer) -> JSON | None:
        engines = render.engines()
        if engines == self.sent_engines:
            return None
        self.sent_engines = engines
        return engines


def _changed(sent: dict[K, JSON], rendered: Iterable[tuple[K, JSON, bool]]) -> list[JSON]:
    """Return the ``rendered`` values that differ from the ``sent`` values, and update ``sent``.

    An ended program or node is removed from ``sent`` after its last change was returned.
    """
    new: list[JSON] = []
    for key, value, ended in rendered:
        if sent.get(key) != value:
            new.append(value)
        sent[key] = value
        if ended:
            del sent[key]
    return new


def _event(name: str, body: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(responses.encode(body).decode(), event=name)
