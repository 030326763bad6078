"""The programs that there are to see: the live ones, and those that ended a while ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from agentrt.events import Event, NodeEnded, NodeStarted, ProgramEnded, ProgramStarted
from agentrt.graph import NodeKind
from agentrt.runtime.registry import RunRegistry, call_id
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Placed
from agentrt.serving.observability.metrics import Account, Metrics
from agentrt.serving.observability.readers import Readers
from agentrt.serving.observability.spans import Tracks


class ProgramLog:
    """Follows a registry: its runs by id, the last ``kept`` ended ones among them.

    All that is here changes under the registry's lock; who reads it holds that, too.
    """

    def __init__(self, registry: RunRegistry, *, kept: int = 500, kept_calls: int = 2000) -> None:
        self.registry = registry
        self.metrics = Metrics()
        self.readers = Readers()
        self.tracks = Tracks(kept_calls)
        self.live: dict[str, Run] = {}
        self.ended: OrderedDict[str, Run] = OrderedDict()
        self._kept = kept
        self._accounts: dict[str, Account] = {}
        self._trailing: dict[str, Run] = {}

    def open(self) -> None:
        """Follow the registry from now on, the programs that already live among the rest."""
        with self.registry.lock:
            for run in self.registry.runs.values():
                self._begin(run)
            self.registry.listen(self._saw)

    def close(self) -> None:
        """Follow it no more."""
        self.registry.unlisten(self._saw)

    def find(self, program_id: str) -> Run | None:
        """A live program, or one that is still known."""
        return self.live.get(program_id) or self.ended.get(program_id)

    def of(self, tenant: str | None) -> Iterator[Run]:
        """The live programs of a tenant, or with None of all, the oldest first."""
        return (r for r in self.live.values() if tenant is None or r.row.tenant == tenant)

    def saw_engines(self, view: EngineView) -> None:
        """Take in how the calls stand."""
        with self.registry.lock:
            self.tracks.saw(view, self._is_open)

    def _is_open(self, placed: Placed) -> bool:
        run = self.live.get(placed.program_id) or self._trailing.get(placed.program_id)
        return run is not None and placed.call_id in run.row.calls

    # -- events ------------------------------------------------------------------------

    def _saw(self, event: Event) -> None:
        match event:
            case ProgramStarted():
                self._begin(self.registry.runs[event.program_id])
            case ProgramEnded():
                self._end(event.program_id)
            case NodeStarted():
                self.readers.note(self.live[event.program_id], event.node)
            case NodeEnded():
                self._node_ended(event)

    def _begin(self, run: Run) -> None:
        self.live[run.id] = run
        self._accounts[run.id] = Account()
        self.readers.note(run, None)

    def _end(self, program_id: str) -> None:
        run = self.live.pop(program_id)
        self.metrics.program_ended(run, self._accounts[program_id])
        if _is_busy(run):  # a foreign framework's program may end before its calls do
            self._trailing[program_id] = run
            self._bound_trailing()
        else:
            del self._accounts[program_id]
        self.ended[program_id] = run
        while len(self.ended) > self._kept:
            self.ended.popitem(last=False)
        self.readers.note(run, None)
        if len(self.readers):
            for node in run.dag.nodes():
                if node.ended_at == run.ended_at:  # its end called it off
                    self.readers.note(run, node)

    def _bound_trailing(self) -> None:
        """Programs whose calls nobody ever ends are not waited for without end."""
        while len(self._trailing) > self._kept:
            oldest = next(iter(self._trailing))
            del self._trailing[oldest], self._accounts[oldest]

    def _node_ended(self, event: NodeEnded) -> None:
        run = self.live.get(event.program_id) or self._trailing.get(event.program_id)
        if run is None:  # it outlived its program by far
            return
        node = event.node
        self.metrics.node_ended(run, self._accounts[run.id], node)
        if node.kind is NodeKind.CALL:
            self.tracks.end(call_id(run, node), run, node)
        if run.id in self._trailing and not _is_busy(run):
            del self._trailing[run.id], self._accounts[run.id]
        self.readers.note(run, node)


def _is_busy(run: Run) -> bool:
    return bool(run.row.calls or run.row.tools or run.row.humans)
