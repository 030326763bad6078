"""The live and the recently ended programs, with the times at which their calls ran in an engine,
and programs, nodes and engines as JSON (`Renderer`).

The times of calls are the bars of the dashboard's timeline. In JSON, times are seconds of the
server's clock. The zero of this clock is arbitrary, so every answer has the clock's current value,
``at``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from agentrt.errors import text_of
from agentrt.graph import Node, NodeKind
from agentrt.runtime.events import (
    Event,
    NodeChanged,
    NodeEnded,
    NodeStarted,
    ProgramStarted,
    RunEnded,
)
from agentrt.runtime.run import Run, RunRegistry, call_id
from agentrt.serving.observability.engines import EngineCall, EnginesView, queue_levels
from agentrt.serving.observability.metrics import Metrics
from agentrt.serving.observability.readers import ChangeReaders
from agentrt.serving.observability.status import clipped, node_state, status_of

Span = list[float | None]
"""Start and end of a call's time in a batch (seconds). The end is None while the call runs."""

_MOST_SPANS = 64


@dataclass(slots=True)
class Track:
    """The times at which a call ran, and the call's replica. ``run`` and ``node`` are set when the
    call has ended.
    """

    replica: str = ""
    spans: list[Span] = field(default_factory=list)
    run: Run | None = None
    node: Node | None = None

    def update(self, call: EngineCall, at: float) -> None:
        """Update the track from the call's state in an engine at the time ``at``."""
        self.replica = call.replica
        if call.running:
            self._runs(at if call.since is None else call.since, known=call.since is not None)
        else:
            self._waits(call, at if call.since is None else call.since)

    def _runs(self, since: float, *, known: bool) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            if not known or last[0] == since:
                return
            last[1] = since  # the call was preempted and resumed between two views
        self._add([since, None])

    def _waits(self, call: EngineCall, since: float) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[1] is None:
            last[1] = since
        elif last is None and call.preemptions:
            self._add([since - call.served_s, since])

    def _add(self, span: Span) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append(span)

    def gone(self, at: float) -> None:
        """End the last span: the call has left the engines, because the call is ending or its
        engine died.
        """
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = at

    def end(self, run: Run, node: Node) -> None:
        """End the track: the call has ended."""
        self.run, self.node = run, node
        assert node.ended_at is not None
        report = node.report
        self.replica = (report.replica if report else "") or self.replica
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = node.ended_at
        elif not self.spans and report is not None and report.steps:
            began = max(node.created_at, node.ended_at - report.service_s)
            self.spans.append([began, node.ended_at])


class Tracks:
    """The tracks (timelines) of calls, by call id: of the calls that are in an engine, and of the
    calls that ended last. At most ``kept`` ended calls are kept.
    """

    def __init__(self, kept: int = 2000) -> None:
        self._open: dict[str, Track] = {}
        self._ended: OrderedDict[str, Track] = OrderedDict()
        self._kept = kept

    def get(self, call_id: str) -> Track | None:
        """Return the track of a call; None for an unknown call."""
        return self._open.get(call_id) or self._ended.get(call_id)

    def ended(self) -> Iterator[Track]:
        """Return the tracks of ended calls, oldest first."""
        return iter(self._ended.values())

    def update(self, view: EnginesView, is_open: Callable[[EngineCall], bool]) -> None:
        """Update the tracks of open calls from a view of the engines."""
        for key, call in view.calls.items():
            if is_open(call):
                self._open.setdefault(key, Track()).update(call, view.at)
        for key in self._open.keys() - view.calls.keys():
            self._open[key].gone(view.at)

    def end(self, call_id: str, run: Run, node: Node) -> None:
        """Move a call to the ended calls. ``node`` has its final state."""
        track = self._open.pop(call_id, None) or Track()
        track.end(run, node)
        self._ended[call_id] = track
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)


# -- the programs --------------------------------------------------------------------------


class ProgramLog:
    """A log of a registry's live runs and of the last ``kept`` ended runs, by id.

    Its data changes under the registry's lock, so readers have to take the lock, too.
    """

    def __init__(self, registry: RunRegistry, *, kept: int = 500, kept_calls: int = 2000) -> None:
        self.registry = registry
        self.metrics = Metrics()
        self.readers = ChangeReaders()
        self.tracks = Tracks(kept_calls)
        self.live: dict[str, Run] = {}
        self.ended: OrderedDict[str, Run] = OrderedDict()
        self._kept = kept

    def open(self) -> None:
        """Follow the registry from now on, including the programs that are live already."""
        with self.registry.lock:
            for run in self.registry.runs.values():
                self._begin(run)
            self.registry.listen(self._on_event)

    def close(self) -> None:
        """Stop following the registry."""
        self.registry.unlisten(self._on_event)

    def find(self, program_id: str) -> Run | None:
        """Return a live or recently ended program; None for another id."""
        return self.live.get(program_id) or self.ended.get(program_id)

    def of(self, tenant: str | None) -> Iterator[Run]:
        """Return the live programs of a tenant (None: of all tenants), oldest first."""
        return (r for r in self.live.values() if tenant is None or r.row.tenant == tenant)

    def ids_of(self, tenant: str) -> set[str]:
        """Return the ids of a tenant's live and recently ended programs."""
        with self.registry.lock:
            ended = (run.id for run in self.ended.values() if run.row.tenant == tenant)
            return {*(run.id for run in self.of(tenant)), *ended}

    def update_engines(self, view: EnginesView) -> None:
        """Update the calls' timelines from a view of the engines."""
        with self.registry.lock:
            self.tracks.update(view, self._is_open)

    def _is_open(self, call: EngineCall) -> bool:
        run = self.find(call.program_id)
        return run is not None and call.call_id in run.row.calls

    # -- events ------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case ProgramStarted():
                self._begin(self.registry.runs[event.program_id])
            case RunEnded():
                self._end(event.program_id)
            case NodeStarted() | NodeChanged():
                if (run := self.live.get(event.program_id)) is not None:
                    self.readers.note(run, event.node)
            case NodeEnded():
                self._node_ended(event)

    def _begin(self, run: Run) -> None:
        self.live[run.id] = run
        self.ended.pop(run.id, None)  # a parked run with the same id was resumed
        self.readers.note(run, None)

    def _end(self, program_id: str) -> None:
        run = self.live.pop(program_id)
        self.metrics.program_ended(run)
        self.ended[program_id] = run
        while len(self.ended) > self._kept:
            _, oldest = self.ended.popitem(last=False)
            self.metrics.forget(oldest)
        self.readers.note(run, None)
        if len(self.readers):
            for node in run.dag.nodes():
                if node.ended_at == run.ended_at:  # the end of the run cancelled the node
                    self.readers.note(run, node)

    def _node_ended(self, event: NodeEnded) -> None:
        """Record the end of a call or an interrupt.

        The calls of a program of another framework, such as LangGraph, may end after the program.
        Their ends are recorded as long as the program is among the recently ended programs.
        """
        run = self.find(event.program_id)
        if run is None:
            return
        node = event.node
        self.metrics.node_ended(run, node)
        if node.kind is NodeKind.CALL:
            self.tracks.end(call_id(run, node), run, node)
        self.readers.note(run, node)


# -- as JSON -----------------------------------------------------------------------------


JSON = dict[str, Any]

_OTHER_TENANTS = "another tenant's program"
_HIDDEN = "failed"
_NAMED = (NodeKind.CALL, NodeKind.TOOL)
"""Kinds of nodes that are named after a function. Other names may be the text of a question."""


class Renderer:
    """A renderer of JSON for a ``tenant``, or for operators (None), who see all tenants.

    Use it under the registry's lock. Without ``texts``, inputs, questions and error messages are
    left out.
    """

    def __init__(
        self, log: ProgramLog, view: EnginesView, tenant: str | None, *, texts: bool = True
    ) -> None:
        self.now = log.registry.clock()
        self.view = view
        self._log = log
        self._tenant = tenant
        self._texts = texts

    def program(self, run: Run) -> JSON:
        """Return a program's row of the list."""
        row = run.row
        status = status_of(run, self.view, self.now, self._name)
        return {
            "id": run.id,
            "type": clipped(run.type),
            "tenant": row.tenant,
            "session": row.session,
            "first_words": run.first_words if self._texts else "",
            "state": str(status.state),
            "wait": status.wait if self._texts or row.calls else "",
            "level": status.level,
            "replica": status.replica,
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "attained_s": status.attained_s,
            "service_s": row.service_s,
            "waiting_s": row.waiting_s,
            "waited_s": status.waited_s,
            "waiting_calls": status.waiting_calls,
            "waiting_since": status.waiting_since,
            "interrupt_s": row.interrupt_s,
            "critical_path_s": row.path_s,
            "calls": row.finished_calls,
            "open_calls": len(row.calls),
            "prompt_tokens": row.usage.prompt_tokens,
            "output_tokens": row.usage.output_tokens,
            "cached_tokens": row.usage.cached_tokens,
            "preemptions": row.usage.preemptions,
            "error": None if run.error is None else self._error(run.error),
        }

    def programs(self, runs: Iterable[Run], state: str | None = None) -> list[JSON]:
        """Return the rows of programs, or only of the programs in this ``state``."""
        return [row for row in map(self.program, runs) if state in (None, row["state"])]

    def node(self, run: Run, node: Node) -> JSON:
        """Return a node of a program. A call also has its replica and the times at which it was in
        a batch.
        """
        state, wait = node_state(run, node, self.view, self._name)
        named = self._texts or node.kind in _NAMED
        error = node.error if self._texts or node.error is None else _HIDDEN
        report = node.report
        fields: JSON = {
            "program": run.id,
            "id": node.id,
            "kind": str(node.kind),
            "name": clipped(node.name) if named else str(node.kind),
            "scope": clipped(node.scope),
            "parents": node.parents,
            "state": state,
            "wait": wait if self._texts or node.kind is NodeKind.CALL else "",
            "created_at": node.created_at,
            "ended_at": node.ended_at,
            "service_s": node.service_s,
            "path_s": node.path_s,
            "error": None if error is None else clipped(error),
        }
        if report is not None:
            for name in ("waiting_s", "prompt_tokens", "cached_tokens", "output_tokens"):
                fields[name] = getattr(report, name)
            fields["preemptions"] = report.preemptions
        if (interrupt := node.interrupt) is not None:
            fields["transport"] = interrupt.transport
            fields["attempt"] = interrupt.attempt
            fields["deadline"] = interrupt.deadline
            fields["progress"] = clipped(str(interrupt.progress or "")) if self._texts else ""
        if node.kind is NodeKind.CALL:
            track = self._log.tracks.get(call_id(run, node))
            fields["replica"] = track.replica if track else ""
            fields["spans"] = [list(span) for span in track.spans] if track else []
        return fields

    def graph(self, run: Run) -> JSON:
        """Return a program with its whole execution graph."""
        nodes = run.dag.nodes()
        return {
            "at": self.now,
            "program": self.program(run),
            "nodes": [self.node(run, node) for node in nodes],
            "edges": [[parent, node.id] for node in nodes for parent in node.parents],
            "critical_path": run.dag.critical_path().nodes,
        }

    def engines(self) -> JSON:
        """Return the engines and their queues. For a tenant, the calls by level (``levels``) are
        only the tenant's own calls.
        """
        levels = queue_levels(self.view, self.sees)
        return {
            "up": self.view.up,
            "replicas": [asdict(replica) for replica in self.view.replicas],
            "levels": [
                {"replica": replica, "level": level, "running": running, "waiting": waiting}
                for (replica, level), (running, waiting) in sorted(levels.items(), key=_by_place)
            ],
        }

    def sees(self, program_id: str) -> bool:
        """Return whether the tenant may see a program."""
        if self._tenant is None:
            return True
        run = self._log.find(program_id)
        return run is not None and run.row.tenant == self._tenant

    def _error(self, error: BaseException) -> str:
        kind = type(error).__name__
        return clipped(f"{kind}: {text_of(error)}") if self._texts else kind

    def _name(self, program_id: str) -> str:
        return program_id if self.sees(program_id) else _OTHER_TENANTS


def _by_place(item: tuple[tuple[str, int | None], tuple[int, int]]) -> tuple[str, int]:
    (replica, level), _ = item
    return replica, -1 if level is None else level
