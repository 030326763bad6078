"""The interface of routers: a call, the replicas that can run it, and the choice between them. Pure
and synchronous.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from agentrt.request import NO_LIMIT
from agentrt.router.speed import Speed

LEVELS = 8
"""Number of queue levels by which a replica's load is counted. The last includes all worse levels.
"""


@dataclass(slots=True)
class RouterCall:
    """A call that needs a replica.

    ``prompt_tokens`` is an estimate if the tokens were not counted. ``blocks`` returns the hashes
    of the prompt's full blocks of ``block_size`` tokens, as the engine computes them; it is called
    only if the router needs them. ``kind`` is the key under which the sizes of similar calls are
    learned, such as the program's type and the node. ``output_limit`` is the maximum number of
    output tokens. ``attained_s`` is the service by which the scheduler will rank the call, in
    seconds.

    The dispatcher sets ``level``, ``output_tokens`` (the expected number), ``home`` (the replica of
    the program's last call, None for its first call), and ``match``, which computes `cached`.
    """

    program_id: str
    prompt_tokens: int
    attained_s: float = 0.0
    kind: str = ""
    output_limit: int = NO_LIMIT
    block_size: int = 0
    blocks: Callable[[], Sequence[int]] = tuple
    level: int = 0
    output_tokens: float = 0.0
    home: ReplicaView | None = None
    match: Callable[[], Sequence[int]] | None = None
    _cached: Sequence[int] | None = None

    @property
    def cached(self) -> Sequence[int]:
        """The number of leading prompt tokens in each replica's cache, by `ReplicaView.index`.

        Looked up once for all replicas; empty if nothing is known.
        """
        if self._cached is None:
            self._cached = () if self.match is None else self.match()
        return self._cached

    def cached_on(self, replica: ReplicaView) -> int:
        """Return the number of leading prompt tokens that a replica need not compute."""
        return self.cached[replica.index] if self.cached else 0

    def cached_on_each(self, replicas: Sequence[ReplicaView]) -> Sequence[int]:
        """Return `cached_on` for each of several replicas."""
        if len(self.cached) == len(replicas):  # all replicas, in the order of their indices
            return self.cached
        return [self.cached_on(replica) for replica in replicas]


@dataclass(slots=True, eq=False)
class ReplicaView:
    """A replica as routers see it.

    ``calls`` is the number of its calls in flight, and ``in_flight`` their tokens: the tokens of
    their prompts and of their expected outputs. ``slots`` is the number of calls that it runs at
    the same time (0: unknown). ``transfer_s`` is the time, in seconds, to send a call there and its
    output back. ``waits_s`` is the time that a call of each level would wait before its first step,
    including the transfer. ``speed`` has the costs of calls on all replicas, and ``pace`` is the
    ratio of this replica's time to the average.
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
    remember programs.

    If a router ``reads_blocks``, prompts are hashed and the engines send their KV events, so that
    the router knows which replica has which blocks cached.
    """

    name: ClassVar[str]
    reads_blocks: ClassVar[bool] = False

    @abstractmethod
    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Return one of ``replicas``. There is at least one, and their order is always the same."""

    def program_ended(self, program_id: str) -> None:  # noqa: B027  # most routers have no state
        """Handle the end of a program, which makes no more calls."""

    def replica_lost(self, name: str) -> None:  # noqa: B027  # most routers have no state
        """Handle the loss of a replica: its cache is empty, and no program's home is there."""


def least_used(replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the replica with the fewest tokens in flight; among equals, the first."""
    return min(replicas, key=lambda replica: replica.in_flight)
