"""What a router is asked, what it sees, and what it is told. Pure and synchronous."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RouterCall:
    """A call that needs a replica. ``prompt_tokens`` is an estimate where nobody counted."""

    program_id: str
    prompt_tokens: int


@dataclass(slots=True)
class ReplicaView:
    """A replica that can take the call. ``in_flight`` are the tokens of the calls that it has
    now: those of their prompts, and the most that they may put out.
    """

    name: str
    in_flight: int = 0


class Router(ABC):
    """Chooses a replica for each call. One for all replicas; it may remember programs."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """One of ``replicas``, of which there is at least one, always in the same order."""

    def program_ended(self, program_id: str) -> None:  # noqa: B027  # most remember nothing
        """The program makes no more calls."""

    def replica_lost(self, name: str) -> None:  # noqa: B027  # most remember nothing
        """The replica's memory is gone, and nobody's home is there any more."""


def least_used(replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replica with the fewest tokens in flight; of equals, the first."""
    return min(replicas, key=lambda replica: replica.in_flight)
