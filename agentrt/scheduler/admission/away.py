"""What the working set keeps of a program, and who of its members waits for something else."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from agentrt.scheduler.admission.learned import Kind
from agentrt.scheduler.table import ProgramRow


class Own(NamedTuple):
    """What a call ``adds`` to its program's context, and ``holds`` beside others of it (tokens)."""

    adds: int
    holds: int


@dataclass(slots=True, eq=False)
class Program:
    """A program: the ``context`` it comes back for (tokens), and its ``own`` calls.

    ``claim`` are the blocks that it counts with, ``in_use`` those of a member that has calls. It
    ``returned`` when it was in the set before;
    ``fifo`` says that it came in for its age, and is not asked to give way; ``away`` counts the
    moments at which it went to wait for something else than a call.
    """

    row: ProgramRow
    kind: Kind
    shared: int
    context: int = 0
    own: dict[str, Own] = field(default_factory=dict)
    claim: int = 0
    in_use: int = 0
    member: bool = False
    returned: bool = False
    fifo: bool = False
    served_s: float = 0.0
    tools: int = 0
    away: int = 0

    @property
    def tokens(self) -> int:
        """What it takes of the cache, each token once, beside what its type shares.

        A chain goes on from its context. Branches have contexts of their own, and each that runs
        is counted; one that waits for a tool is not.
        """
        own = [*self.own.values()]
        if len(own) == 1:
            return max(self.context + own[0].adds - self.shared, 0)
        return max(self.context - self.shared, sum(one.holds for one in own), 0)

    @property
    def waits(self) -> bool:
        """Whether it is a member that has no call now."""
        return self.member and not self.own


class Away:
    """Members that wait for something else than a call, and until when their blocks are kept.

    Who has come back since, or has left, is dropped when it is met. Amortised O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Program]] = []
        self._serial = 0

    def add(self, program: Program, until: float) -> None:
        """A member went away; before ``until`` it need not leave."""
        program.away += 1
        self._serial += 1
        heapq.heappush(self._heap, (until, self._serial, program.away, program))

    def next_moment(self) -> float:
        """When the time of the first of them is up; inf where nobody is away."""
        heap = self._heap
        while heap and not (heap[0][2] == heap[0][3].away and heap[0][3].waits):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, now: float) -> Program | None:
        """Whose time is up, no longer counted as away; None where nobody's is."""
        return heapq.heappop(self._heap)[3] if self.next_moment() <= now else None
