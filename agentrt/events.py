"""What happens to programs, as values for whoever watches: a live view, a log, a test."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.graph import Node


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
class NodeEnded:
    """A call or an interrupt is over; the node's state says how."""

    program_id: str
    node: Node
    at: float


Event = ProgramStarted | ProgramEnded | NodeStarted | NodeEnded
