"""What a router decides, and what it knows. Pure and synchronous."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from agentrt.request import NO_LIMIT
from agentrt.router.speed import Speed

LEVELS = 8
"""How many queue levels a replica's load is counted by; the last holds all that are worse."""


@dataclass(slots=True)
class RouterCall:
    """A call that needs a replica.

    ``prompt_tokens`` is an estimate where nobody counted. ``blocks`` gives the hashes of the
    prompt's full blocks of ``block_size`` tokens, as the engine computes them; it is asked only
    if a router wants them. ``kind`` names what the call's size can be learned from, such as its
    program's type and its node; ``output_limit`` are the most tokens that it may put out.
    ``attained_s`` is what the scheduler will rank it by (seconds of service).

    The dispatcher fills in ``level``, ``output_tokens`` (expected), ``home`` (the replica that
    the program's last call went to, None for its first), and ``match``, which finds `cached`.
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
        """Leading tokens of the prompt in each replica's cache, by `ReplicaView.index`.

        Looked up once, for all replicas together; empty where nothing is known.
        """
        if self._cached is None:
            self._cached = () if self.match is None else self.match()
        return self._cached

    def cached_on(self, replica: ReplicaView) -> int:
        """Leading tokens of the prompt that a replica need not compute."""
        return self.cached[replica.index] if self.cached else 0

    def cached_on_each(self, replicas: Sequence[ReplicaView]) -> Sequence[int]:
        """What `cached_on` says of each of several."""
        if len(self.cached) == len(replicas):  # all there are, and in their order
            return self.cached
        return [self.cached_on(replica) for replica in replicas]


@dataclass(slots=True, eq=False)
class ReplicaView:
    """A replica that can take the call.

    ``in_flight`` are the tokens of the calls that it has now: those of their prompts, and those
    that they are expected to put out. ``calls`` counts them, and ``slots`` is how many it runs
    at a time (0: not known). ``transfer_s`` is the time that a call needs to get there and back;
    ``waits_s`` is how long a call of each level would wait before its own first step, the way
    included. ``speed`` is what calls take on replicas like it, and ``pace`` how many times as
    long this one takes.
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
    """Chooses a replica for each call. One for all replicas; it may remember programs.

    One that ``reads_blocks`` asks what is cached where: for it prompts are hashed, and the
    engines send their KV events.
    """

    name: ClassVar[str]
    reads_blocks: ClassVar[bool] = False

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
