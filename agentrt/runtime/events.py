"""What happens to programs, as values for whoever watches: a live view, a log, a test."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.executors.base import Notification
from agentrt.graph import Node, NodeKind


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    """A program began at ``at`` (seconds, the runtime's clock)."""

    program_id: str
    program_type: str
    at: float


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """A program ended: ``state`` is that of its `Run`."""

    program_id: str
    state: str
    at: float


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A program emitted a call or an interrupt."""

    program_id: str
    node: Node
    at: float


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """An interrupt waits, starts again, or says how far it is."""

    program_id: str
    node: Node
    at: float


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A call or an interrupt is over; the node's state says how."""

    program_id: str
    node: Node
    at: float


Event = ProgramStarted | ProgramEnded | NodeStarted | NodeChanged | NodeEnded


_WHAT = {
    NodeKind.TOOL: ("tool", "returned"),
    NodeKind.HUMAN: ("human", "answered"),
    NodeKind.EVENT: ("tool", "returned"),  # to an engine, whatever comes back by itself is one
}


def notification_of(event: Event) -> Notification | None:
    """The notification for an engine: a program went to a tool or a human, or is back."""
    match event:
        case NodeStarted(node=node) if node.kind in _WHAT:
            what, _ = _WHAT[node.kind]
        case NodeEnded(node=node) if node.kind in _WHAT:
            _, what = _WHAT[node.kind]
        case _:
            return None
    return Notification(event.program_id, what, "" if node.kind is NodeKind.HUMAN else node.name)
