"""The stream of events: how things stand, then what changes.

The first message is a ``snapshot``; each later one is a ``change`` with the programs and nodes
that differ from what was told before, each in whole, so that a reader just puts them in
place. A reader that is cut gets ``cut``, and may come again for a new snapshot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from agentrt.graph import Node
from agentrt.runtime.run import Run, RunState
from agentrt.serving.observability.engines import EngineView
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.serving.observability.readers import Reader, TooSlowError
from agentrt.serving.observability.render import JSON, Renderer
from agentrt.serving.observability.snapshot_poller import SnapshotPoller
from agentrt.serving.server import Server

_VIEW_S = 0.5
"""How often a reader is told of the engines when nothing happens."""

_BUSY_VIEW_S = 0.25
"""How often when something does: a call that just came has to be found in its queue."""

_ALL_S = 5.0
"""How often all live programs are looked at: one may have become stale meanwhile."""

_BATCH_S = 0.1
"""What changes within this time is told at once."""

_SEND_S = 10.0
"""A reader that takes nothing for so long is cut."""


class EventStream(EventSourceResponse):
    """An SSE response that ends quietly when its reader takes nothing any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            return


@dataclass(slots=True)
class Watching:
    """What one reader sees, and what it was told. With ``program`` that one, with all nodes."""

    server: Server
    books: ProgramLog
    poller: SnapshotPoller
    tenant: str | None
    program: Run | None = None
    told: dict[str, JSON] = field(default_factory=dict)
    told_nodes: dict[tuple[str, int], JSON] = field(default_factory=dict)
    told_engines: JSON = field(default_factory=dict)
    told_view: EngineView = field(default_factory=EngineView)
    told_all_at: float = 0.0

    def response(self) -> EventStream:
        """The stream. Raises `TooManyReadersError`."""
        self.books.readers.check(self.tenant)
        return EventStream(self._events(), send_timeout=_SEND_S)

    def wants(self, run: Run) -> bool:
        """Whether the reader is to see this program."""
        if self.program is not None:
            return run is self.program
        return self.tenant is None or run.row.tenant == self.tenant

    async def _events(self) -> AsyncIterator[ServerSentEvent]:
        view = await self.poller.fresh(_VIEW_S)
        with self.books.readers.opened(self.tenant, self.wants) as reader:
            with self.books.registry.lock:
                reader.take()
                first = self.snapshot(view)
            yield _event("snapshot", first)
            over = False
            while not over:
                await reader.wait(_VIEW_S)
                over = self._over()  # before what is told, so that the last end is told
                view = await self.poller.fresh(_BUSY_VIEW_S)
                try:
                    with self.books.registry.lock:
                        change = self.change(reader, view)
                except TooSlowError as error:
                    yield _event("cut", {"why": str(error)})
                    return
                if change is not None:
                    yield _event("change", change)
                await asyncio.sleep(_BATCH_S)

    def _over(self) -> bool:
        """A server that drains ends its streams once there is nothing more to see."""
        return self.server.draining and not self.books.live

    # -- what is told ------------------------------------------------------------------

    def renderer(self, view: EngineView) -> Renderer:
        """A renderer for this reader."""
        return Renderer(self.books, view, self.tenant)

    def snapshot(self, view: EngineView) -> JSON:
        """How things stand: under the registry's lock, as `change` is."""
        render = self.renderer(view)
        programs = [run for run in self._known() if self.wants(run)]
        self.told = {run.id: render.program(run) for run in programs}
        nodes = [(node, render.node(run, node)) for run, node in self._nodes(programs)]
        self.told_nodes = {
            (told["program"], node.id): told for node, told in nodes if not node.state.ended
        }
        self.told_engines, self.told_view = render.engines(), view
        self.told_all_at = render.now
        return {
            "at": render.now,
            "programs": list(self.told.values()),
            "nodes": [told for _, told in nodes],
            "engines": self.told_engines,
        }

    def _known(self) -> Iterable[Run]:
        if self.program is not None:
            return (self.program,)
        return (*self.books.ended.values(), *self.books.live.values())

    def _nodes(self, programs: list[Run]) -> Iterable[tuple[Run, Node]]:
        """All nodes of one program; of many, the open ones and the last calls that ended."""
        if self.program is not None:
            yield from ((self.program, node) for node in self.program.dag.nodes())
            return
        for track in self.books.tracks.ended():
            if track.run is not None and track.node is not None and self.wants(track.run):
                yield track.run, track.node
        for run in programs:
            yield from ((run, node) for node in (*run.dag.running(), *run.dag.waiting()))

    def change(self, reader: Reader, view: EngineView) -> JSON | None:
        """What is new for the reader, or None. Raises `TooSlowError`."""
        render = self.renderer(view)
        changes = reader.take()
        runs = {run.id: run for run, _ in changes}
        nodes = {(run.id, node.id): (run, node) for run, node in changes if node is not None}
        engines = None
        if view.at != self.told_view.at:
            engines = self._engines(render)
            for run in self._moved(view, render.now):
                runs[run.id] = run
                nodes.update(((run.id, node.id), (run, node)) for node in run.dag.waiting())
        told = self._programs(runs.values(), render), self._told_nodes(nodes.values(), render)
        if not (any(told) or engines):
            return None
        return {"at": render.now, "programs": told[0], "nodes": told[1], "engines": engines}

    def _moved(self, view: EngineView, now: float) -> list[Run]:
        """The live programs whose calls stand elsewhere than when they were last told."""
        before, self.told_view = self.told_view, view
        live = [run for run in self.books.live.values() if self.wants(run)]
        as_before = (view.ready(), view.outside) == (before.ready(), before.outside)
        if now - self.told_all_at >= _ALL_S or not as_before:
            self.told_all_at = now
            return live
        moved = before.moved(view)
        return [run for run in live if run.id in moved]

    def _programs(self, runs: Iterable[Run], render: Renderer) -> list[JSON]:
        """The programs that look different from what was told. The ended are told once more."""
        new: list[JSON] = []
        for run in runs:
            program = render.program(run)
            if self.told.get(run.id) != program:
                new.append(program)
            if run.state is RunState.RUNNING:
                self.told[run.id] = program
            else:
                self.told.pop(run.id, None)
        return new

    def _told_nodes(self, nodes: Iterable[tuple[Run, Node]], render: Renderer) -> list[JSON]:
        """The nodes that look different from what was told. The ended are told once more."""
        new: list[JSON] = []
        for run, node in nodes:
            key, rendered = (run.id, node.id), render.node(run, node)
            if self.told_nodes.get(key) != rendered:
                new.append(rendered)
            if node.state.ended:
                self.told_nodes.pop(key, None)
            else:
                self.told_nodes[key] = rendered
        return new

    def _engines(self, render: Renderer) -> JSON | None:
        engines = render.engines()
        if engines == self.told_engines:
            return None
        self.told_engines = engines
        return engines


def _event(name: str, body: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(body, separators=(",", ":")), event=name)
