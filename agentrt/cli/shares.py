"""Where a program's wall time went: the engine, its queue, tools and humans, its own code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from agentrt.graph import ExecutionDAG, Node, NodeKind


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds that add up to the wall time.

    Of things at one time the first counts: a call that is served, a call that waits, a
    tool or a human. ``other`` is when nothing was open.
    """

    service: float = 0.0
    waiting: float = 0.0
    tools: float = 0.0
    other: float = 0.0


class _Kind(IntEnum):
    SERVICE = 0
    WAITING = 1
    TOOLS = 2


def split_wall(dag: ExecutionDAG, begin: float, end: float) -> Shares:
    """Split the time from ``begin`` to ``end`` (seconds). O(n log n) in the nodes."""
    changes = sorted(change for node in dag.nodes() for change in _changes(node, begin, end))
    open_count = [0, 0, 0]
    seconds = [0.0, 0.0, 0.0, 0.0]
    last = begin
    for at, kind, step in [*changes, (end, _Kind.SERVICE, 0)]:
        first = next((k for k in _Kind if open_count[k]), None)
        seconds[3 if first is None else first] += at - last
        open_count[kind] += step
        last = at
    return Shares(*seconds)


def _changes(node: Node, begin: float, end: float) -> Iterator[tuple[float, _Kind, int]]:
    """When the node enters and leaves each kind of time, inside the span."""

    def clip(at: float | None) -> float:
        return end if at is None else min(max(at, begin), end)

    created, ended = clip(node.created_at), clip(node.ended_at)
    if node.kind is not NodeKind.CALL:
        spans = [(_Kind.TOOLS, created, ended)]
    else:
        # A call that was never served spent all of its time waiting.
        started = ended if node.started_at is None else clip(node.started_at)
        spans = [(_Kind.WAITING, created, started), (_Kind.SERVICE, started, ended)]
    for kind, since, until in spans:
        yield since, kind, 1
        yield until, kind, -1
