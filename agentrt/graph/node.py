"""A node of an execution DAG: a call to a model, or an interrupt (a tool, a question, an event).

All times are seconds on the clock of the code that builds the DAG.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from agentrt.graph.interrupt import Interrupt
from agentrt.request import CallReport


class NodeKind(StrEnum):
    """The kind of a node. All kinds except ``CALL`` are interrupts, which spend time outside the
    engine.
    """

    CALL = "call"
    TOOL = "tool"
    HUMAN = "human"
    EVENT = "event"


class NodeState(StrEnum):
    """The state of a node or of a program's DAG: waiting, running, or one of the end states.

    ``EXPIRED`` is the state of an interrupt whose deadline has passed. ``INTERRUPTED`` is the state
    of a program that was parked, or that returned while a question to a human was open. The open
    questions of such a program have this state, too.
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
        """Whether this is an end state."""
        return self not in (NodeState.WAITING, NodeState.RUNNING)


@dataclass(slots=True)
class Node:
    """A call or an interrupt of a program.

    ``id`` is the number of the node in its program, from 0; a parent's id is smaller than its
    child's id. ``name`` is the kind of the call, such as ``llm``, the name of the tool, the text of
    the question, the topic of the event, or ``sleep``. ``scope`` is the path of the node functions
    that emitted the node, such as ``main/expand``. ``parents`` are the ids of the nodes that had to
    end before this node was emitted, in rising order.

    ``path_s`` is p(c) of ATLAS, Eq. 2: the seconds of service on the longest path to this node,
    without the node's own service. ``service_s`` is the node's own service (0 for interrupts), and
    ``via`` is the parent through which the longest path leads. ``depth`` is the largest number of
    edges from a root to this node. ``wait`` is a text for people that says what the node waits for.
    ``interrupt`` has the details of a tool, a question or an event.
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
        """Return a copy of the node's current state."""
        interrupt = None if self.interrupt is None else replace(self.interrupt)
        return replace(self, interrupt=interrupt)

    @property
    def path_end_s(self) -> float:
        """The seconds of service on the longest path that ends with this node, including the
        service of this node.
        """
        return self.path_s + self.service_s
