"""Agentix: a short call goes to the least used replica, a long one to its program's home.

Algorithm 2 of the paper. The home is the replica that got the program's first long call; a
prompt of more than ``threshold`` tokens (2,048 in the paper) is long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall, least_used

PAPERS_THRESHOLD = 2048


class Agentix(Router):
    """Locality for what is worth it, balance for the rest."""

    name: ClassVar[str] = "agentix"

    def __init__(self, threshold: float = PAPERS_THRESHOLD) -> None:
        self._threshold = threshold
        self._homes: dict[str, str] = {}

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if call.prompt_tokens <= self._threshold:
            return least_used(replicas)
        home = self._homes.get(call.program_id)
        for replica in replicas:
            if replica.name == home:
                return replica
        chosen = least_used(replicas)
        self._homes[call.program_id] = chosen.name
        return chosen

    def program_ended(self, program_id: str) -> None:
        self._homes.pop(program_id, None)

    def replica_lost(self, name: str) -> None:
        self._homes = {program: home for program, home in self._homes.items() if home != name}
