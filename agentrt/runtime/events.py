"""Events in the life of programs, for listeners such as a live view, a log or a test.

``at`` is the time of the event on the runtime's clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.executors.base import Notification
from agentrt.graph import Node, NodeKind


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    """A program started."""

    program_id: str
    program_type: str
    at: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A program ended. ``state`` is the final state of its `Run`."""

    program_id: str
    state: str
    at: float


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A program started a call or an interrupt."""

    program_id: str
    node: Node
    at: float


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """An interrupt began to wait, started an attempt, or reported progress."""

    program_id: str
    node: Node
    at: float


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A call or an interrupt ended. The node's state says how it ended."""

    program_id: str
    node: Node
    at: float


Event = ProgramStarted | RunEnded | NodeStarted | NodeChanged | NodeEnded


_MESSAGES = {
    NodeKind.TOOL: ("tool", "returned"),
    NodeKind.HUMAN: ("human", "answered"),
    # For the engine, waiting for an event is like waiting for a tool.
    NodeKind.EVENT: ("tool", "returned"),
}
"""The kinds of notification for the start and the end of an interrupt."""


def notification_of(event: Event) -> Notification | None:
    """Return the notification with which an engine learns of the start or the end of an interrupt;
    None for all other events.
    """
    match event:
        case NodeStarted(node=node) if node.kind in _MESSAGES:
            message, _ = _MESSAGES[node.kind]
        case NodeEnded(node=node) if node.kind in _MESSAGES:
            _, message = _MESSAGES[node.kind]
        case _:
            return None
    return Notification(event.program_id, message, "" if node.kind is NodeKind.HUMAN else node.name)
