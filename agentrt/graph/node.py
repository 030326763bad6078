"""One node of an execution DAG: a call to a model, or an interrupt (a tool, a human).

All times are seconds on the clock of whoever feeds the DAG.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from agentrt.graph.interrupt import Interrupt
from agentrt.request import CallReport


class NodeKind(StrEnum):
    """What a node stands for. All but ``CALL`` are interrupts: time outside the engine."""

    CALL = "call"
    TOOL = "tool"
    HUMAN = "human"
    EVENT = "event"


class NodeState(StrEnum):
    """Where a node is in its life: waiting, running, then one of its ends.

    ``EXPIRED`` is an interrupt that was not over by its deadline. ``INTERRUPTED`` is a question to
    a human that nobody had answered when its program ended.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """True when nothing more will happen."""
        return self not in (NodeState.WAITING, NodeState.RUNNING)


@dataclass(slots=True)
class Node:
    """One call or interrupt of one program.

    ``id`` counts the program's nodes from 0; a parent's id is always smaller than its
    child's. ``name`` is the model, the tool, or a short label; ``scope`` is the name path
    of the node function that emitted it, such as ``main/expand``. ``parents`` are the ids
    of the nodes that had to end before this one could be emitted, in rising order.

    ``path_s`` is p(c) of ATLAS, Eq. 2: seconds of service on the longest path that leads
    here, without this node's own. ``service_s`` is this node's own (0 for interrupts), and
    ``via`` is the parent that ``path_s`` comes from. ``depth`` is the number of edges on
    the longest way here from a root. ``wait`` says, for people, what the node waits on.
    ``interrupt`` has what is known of a tool, a question or an event.
    """

    id: int
    kind: NodeKind
    name: str
    scope: str
    parents: tuple[int, ...]
    created_at: float
    path_s: float = 0.0
    depth: int = 0
    via: int | None = None
    state: NodeState = NodeState.WAITING
    started_at: float | None = None
    ended_at: float | None = None
    service_s: float = 0.0
    report: CallReport | None = None
    wait: str = ""
    error: str | None = None
    interrupt: Interrupt | None = None

    def copy(self) -> Node:
        """It as it is now."""
        interrupt = None if self.interrupt is None else replace(self.interrupt)
        return replace(self, interrupt=interrupt)

    @property
    def path_end_s(self) -> float:
        """Seconds of service on the longest path up to and with this node."""
        return self.path_s + self.service_s
