"""Tells an executor when programs go to tools and humans, and when they come back.

An engine that knows can keep what a program will need again. It is told in passing: no
program waits for it, and an executor that does not listen is not asked.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from agentrt.events import Event, NodeEnded, NodeStarted
from agentrt.graph import NodeKind

_WHAT = {
    NodeKind.TOOL: ("tool", "returned"),
    NodeKind.HUMAN: ("human", "answered"),
}


class Boundary(NamedTuple):
    """A program goes to a ``tool`` (by ``name``) or a ``human``, or is ``returned`` or
    ``answered``: that is ``what``.
    """

    program_id: str
    what: str
    name: str


@runtime_checkable
class HearsBoundaries(Protocol):
    """An executor that wants to be told."""

    def boundary(self, note: Boundary) -> None:
        """Take a note, on the executor's loop. It must be quick, and does not raise."""


def boundary_of(event: Event) -> Boundary | None:
    """What an event says of a boundary; None where it says nothing."""
    if not isinstance(event, NodeStarted | NodeEnded) or event.node.kind not in _WHAT:
        return None
    node = event.node
    what = _WHAT[node.kind][isinstance(event, NodeEnded)]
    return Boundary(event.program_id, what, node.name if node.kind is NodeKind.TOOL else "")
