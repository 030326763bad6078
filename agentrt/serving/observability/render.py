"""Programs, nodes and engines as JSON. Times are seconds of the server's clock.

The zero of this clock is arbitrary, so every answer has the clock's current value, ``at``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from agentrt.graph import Node, NodeKind
from agentrt.runtime.registry import call_id
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EnginesView, queue_levels
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.serving.observability.status import clipped, node_state, status_of

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
        return clipped(f"{kind}: {error}") if self._texts else kind

    def _name(self, program_id: str) -> str:
        return program_id if self.sees(program_id) else _OTHER_TENANTS


def _by_place(item: tuple[tuple[str, int | None], tuple[int, int]]) -> tuple[str, int]:
    (replica, level), _ = item
    return replica, -1 if level is None else level
