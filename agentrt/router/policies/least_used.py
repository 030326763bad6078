"""Least used: each call goes to the replica with the fewest tokens in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall, least_used


class LeastUsed(Router):
    """By load alone; knows nothing of programs."""

    name: ClassVar[str] = "least-used"

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return least_used(replicas)
