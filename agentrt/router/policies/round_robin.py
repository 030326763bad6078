"""Round-robin: each call goes to the next replica in turn. What most load balancers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall


class RoundRobin(Router):
    """In turn, whatever a replica has to do."""

    name: ClassVar[str] = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        chosen = replicas[self._next % len(replicas)]
        self._next += 1
        return chosen
