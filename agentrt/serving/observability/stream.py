"""The stream of events: first a snapshot, then the changes.

The first event is a ``snapshot``. Each later ``change`` event has the programs and nodes that
differ from the last event, each of them complete, so that a reader replaces its copies. A
``questions`` event says that a question to a human opened or closed, and the reader may request the
list of questions. A reader that is too slow gets the event ``cut``, and may connect again for a new
snapshot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sse_starlette import ServerSentEvent

from agentrt.graph import Node
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EnginesView, SnapshotPoller
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.serving.observability.readers import ChangeReader, ReaderTooSlowError
from agentrt.serving.observability.render import JSON, Renderer
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
                # Checked before the change, so that the last program's end is sent.
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
        or longer ago, or if the engines' readiness or the tenants that wait for admission have
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
    return ServerSentEvent(json.dumps(body, separators=(",", ":")), event=name)
