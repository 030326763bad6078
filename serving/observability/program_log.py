"""The programs that people can look at: the live ones, and the last ones that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from agentrt.graph import NodeKind
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
from agentrt.serving.observability.spans import Tracks


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
            case NodeStarted():
                self.readers.note(self.live[event.program_id], event.node)
            case NodeChanged():
                if (run := self.live.get(event.program_id)) is not None:
                    self.readers.note(run, event.node)
            case NodeEnded():
                self._node_ended(event)

    def _begin(self, run: Run) -> None:
        self.live[run.id] = run
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
