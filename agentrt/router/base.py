"""The interface of routers: a call, the replicas that can run it, and the choice between them. The
code is synchronous, and does no input or output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from agentrt.former import former_names
from agentrt.request import NO_LIMIT
from agentrt.router.speed import Speed

LEVELS = 8
"""Number of queue levels by which a replica's load is counted. The last level includes the calls of
all worse levels.
"""


@former_names(attained_s="level_service_s")
@dataclass(slots=True)
class RouterCall:
    """A call that needs a replica.

    ``prompt_tokens`` is an estimate if the tokens were not counted. ``blocks`` is a function that
    returns the hashes of the prompt's full blocks of ``block_size`` tokens, as the engine computes
    them; it is called only if the router needs the hashes. ``kind`` groups similar calls, such as
    the calls of one node of a program type; the output lengths of calls are learned by kind.
    ``output_limit`` is the maximum number of output tokens. ``level_service_s`` is the service, in
    seconds, by which the scheduler chooses the call's first queue level. ``model`` is the model of
    the replicas that can run the call, "" if it is not known.

    The dispatcher sets ``level``, ``output_tokens`` (the expected number), ``home`` (the replica of
    the program's last call; None for the program's first call, and after this replica was lost),
    and ``match``, a function that computes `cached` (None if the router does not read blocks).
    """

    program_id: str
    prompt_tokens: int
    level_service_s: float = 0.0
    kind: str = ""
    output_limit: int = NO_LIMIT
    block_size: int = 0
    blocks: Callable[[], Sequence[int]] = tuple
    level: int = 0
    output_tokens: float = 0.0
    home: ReplicaView | None = None
    match: Callable[[], Sequence[int]] | None = None
    model: str = ""
    _cached: Sequence[int] | None = None

    @property
    def cached(self) -> Sequence[int]:
        """For each replica, by `ReplicaView.index`: the number of leading prompt tokens in its
        cache.

        The numbers are computed once for all replicas. There are no numbers if nothing is known
        about the caches.
        """
        if self._cached is None:
            self._cached = () if self.match is None else self.match()
        return self._cached

    def cached_on(self, replica: ReplicaView) -> int:
        """Return the number of leading prompt tokens that a replica need not compute; 0 if nothing
        is known about the caches.
        """
        return self.cached[replica.index] if self.cached else 0

    def cached_on_each(self, replicas: Sequence[ReplicaView]) -> Sequence[int]:
        """Return `cached_on` for each of several replicas."""
        if len(self.cached) == len(replicas):  # all replicas, in the order of their indices
            return self.cached
        return [self.cached_on(replica) for replica in replicas]


@dataclass(slots=True, eq=False)
class ReplicaView:
    """A replica as routers see it.

    ``calls`` is the number of the replica's calls in flight. ``in_flight`` is the number of tokens
    of these calls: the tokens of their prompts and of their expected outputs. ``slots`` is the
    number of calls that the replica runs at the same time (0 if unknown). ``transfer_s`` is the
    time, in seconds, to send a call to the replica and its output back. ``waits_s`` has, for each
    level, the seconds that a call would wait before its first step, including the transfer.
    ``speed`` has the costs of calls on an average replica, and ``pace`` is the ratio of this
    replica's time for a call to the time of an average replica.
    """

    name: str
    in_flight: int = 0
    index: int = 0
    slots: int = 0
    calls: int = 0
    transfer_s: float = 0.0
    waits_s: list[float] = field(default_factory=lambda: [0.0] * LEVELS)
    speed: Speed = field(default_factory=Speed)
    pace: float = 1.0


class Router(ABC):
    """A router, which chooses a replica for each call. One instance serves all replicas, and may
    keep state about programs.

    If ``reads_blocks`` is True, and the engines can report their blocks, prompts are hashed and the
    engines send KV events, so that the router knows which replica has which blocks cached.
    """

    name: ClassVar[str]
    reads_blocks: ClassVar[bool] = False

    @abstractmethod
    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Return one of ``replicas``. The list is never empty, and its order is always the same."""

    def program_ended(self, program_id: str) -> None:  # noqa: B027  # most routers have no state
        """Handle the end of a program, which makes no more calls."""

    def replica_lost(self, name: str) -> None:  # noqa: B027  # most routers have no state
        """Handle the loss of a replica: its cache is empty, and it is no longer the home of any
        program.
        """


def least_used(replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the replica with the fewest tokens in flight. If several are equal, return the first
    of them.
    """
    return min(replicas, key=lambda replica: replica.in_flight)
