"""The programs that people can look at, the live ones and the last ones that ended, with the times
at which their calls were in an engine's batch: the bars of the dashboard's timeline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentrt.graph import Node, NodeKind
from agentrt.runtime.events import (
    Event,
    NodeChanged,
    NodeEnded,
    NodeStarted,
    ProgramEnded,
    ProgramStarted,
)
from agentrt.runtime.registry import RunRegistry, call_id
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineCall, EngineView
from agentrt.serving.observability.metrics import Metrics
from agentrt.serving.observability.readers import Readers

Span = list[float | None]
"""Start and end in seconds; the end of a call that still runs is None."""

_MOST_SPANS = 64


@dataclass(slots=True)
class Track:
    """Where and when a call ran. ``run`` and ``node`` are set once it ended."""

    replica: str = ""
    spans: list[Span] = field(default_factory=list)
    run: Run | None = None
    node: Node | None = None

    def update(self, call: EngineCall, at: float) -> None:
        """The call was in an engine ``at`` this time."""
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
            last[1] = since  # it was preempted and came back between two views
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
        """The call left the engines: it is ending, or its engine died."""
        if self.spans and self.spans[-1][1] is None:
            self.spans[-1][1] = at

    def end(self, run: Run, node: Node) -> None:
        """The call ended."""
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
    """The tracks of calls by id: those in an engine, and the last ``kept`` that ended."""

    def __init__(self, kept: int = 2000) -> None:
        self._open: dict[str, Track] = {}
        self._ended: OrderedDict[str, Track] = OrderedDict()
        self._kept = kept

    def get(self, call_id: str) -> Track | None:
        """The track of a call, if it is known."""
        return self._open.get(call_id) or self._ended.get(call_id)

    def ended(self) -> Iterator[Track]:
        """Those that ended, the oldest first."""
        return iter(self._ended.values())

    def update(self, view: EngineView, is_open: Callable[[EngineCall], bool]) -> None:
        """Update the calls that are open from a view of the engines."""
        for key, call in view.calls.items():
            if is_open(call):
                self._open.setdefault(key, Track()).update(call, view.at)
        for key in self._open.keys() - view.calls.keys():
            self._open[key].gone(view.at)

    def end(self, call_id: str, run: Run, node: Node) -> None:
        """A call ended, as its node says."""
        track = self._open.pop(call_id, None) or Track()
        track.end(run, node)
        self._ended[call_id] = track
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)


# -- the programs --------------------------------------------------------------------------


class ProgramLog:
    """Follows a registry: its live runs by id, and the last ``kept`` that ended.

    All of this changes under the registry's lock; readers take it too.
    """

    def __init__(self, registry: RunRegistry, *, kept: int = 500, kept_calls: int = 2000) -> None:
        self.registry = registry
        self.metrics = Metrics()
        self.readers = Readers()
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
        """Stop following it."""
        self.registry.unlisten(self._on_event)

    def find(self, program_id: str) -> Run | None:
        """A live program, or one of the last that ended."""
        return self.live.get(program_id) or self.ended.get(program_id)

    def of(self, tenant: str | None) -> Iterator[Run]:
        """The live programs of a tenant, or with None of all, the oldest first."""
        return (r for r in self.live.values() if tenant is None or r.row.tenant == tenant)

    def ids_of(self, tenant: str) -> set[str]:
        """The programs of a tenant that are live, or ended lately."""
        with self.registry.lock:
            ended = (run.id for run in self.ended.values() if run.row.tenant == tenant)
            return {*(run.id for run in self.of(tenant)), *ended}

    def update_engines(self, view: EngineView) -> None:
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
            case ProgramEnded():
                self._end(event.program_id)
            case NodeStarted() | NodeChanged():
                if (run := self.live.get(event.program_id)) is not None:
                    self.readers.note(run, event.node)
            case NodeEnded():
                self._node_ended(event)

    def _begin(self, run: Run) -> None:
        self.live[run.id] = run
        self.ended.pop(run.id, None)  # it was parked
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
                if node.ended_at == run.ended_at:  # cancelled by its end
                    self.readers.note(run, node)

    def _node_ended(self, event: NodeEnded) -> None:
        """A call or an interrupt is over. Those of a foreign framework's program may end after it,
        and count while it is among the last that ended.
        """
        run = self.find(event.program_id)
        if run is None:
            return
        node = event.node
        self.metrics.node_ended(run, node)
        if node.kind is NodeKind.CALL:
            self.tracks.end(call_id(run, node), run, node)
        self.readers.note(run, node)
