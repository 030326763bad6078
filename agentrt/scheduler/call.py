"""A call as the queues see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentrt.scheduler.table import ProgramRow

Key = tuple[int, float, int]


@dataclass(slots=True, eq=False)
class QueuedCall:
    """One call in the queues, waiting or running.

    ``node`` is its name in its program's graph, ``prompt_tokens`` what of its prompt is
    to be computed, as far as its engine knows when it arrives, ``item`` the engine's own request.
    ``since`` is when its present wait began (None while it runs), ``began_at`` when it last
    began to run; ``gave_way_to`` is the program that it was preempted for last, as far as
    it was for one. A ``held`` one waits until its program may come in (`Admission`).
    ``waited_s`` and ``served_s`` cover its whole life;
    ``debt_waited_s`` and ``debt_served_s`` count from its last promotion, for the
    starvation ratio: the paper resets the call's times on promotion, and would then
    lose that service from the program's total. A step adds to ``served_s`` and ``steps`` alone:
    what counts from a moment on is the difference to what they were then.
    """

    call_id: str
    program: ProgramRow
    item: Any
    path_s: float | None
    arrived_at: float
    node: str = ""
    prompt_tokens: int = 0
    level: int = 0
    key: Key = (0, 0.0, 0)
    """Its level, its order there, and a number for its turn: a smaller key runs first."""
    quantum_ends_s: float = math.inf
    """``served_s`` at which its quantum is used up."""
    since: float | None = None
    began_at: float = 0.0
    gave_way_to: str = ""
    queued: bool = False
    deferred: bool = False
    held: bool = False
    promoted: bool = False
    in_lane: bool = False
    in_line: bool = False
    waited_s: float = 0.0
    served_s: float = 0.0
    debt_since: float = 0.0
    debt_waited_s: float = 0.0
    promoted_at_s: float = 0.0
    """``served_s`` at its last promotion."""
    steps: int = 0
    began_at_step: int = 0
    """``steps`` when it last began to run."""
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    @property
    def order(self) -> float:
        """Its place within its level; a smaller one runs first."""
        return self.key[1]

    @property
    def seq(self) -> int:
        """A number that it has anew with each priority."""
        return self.key[2]

    @property
    def quantum_left(self) -> float:
        """Seconds of service until its priority is asked for again."""
        return self.quantum_ends_s - self.served_s

    @property
    def debt_served_s(self) -> float:
        """Its service since its last promotion."""
        return self.served_s - self.promoted_at_s

    @property
    def residency_steps(self) -> int:
        """Engine steps since it last began to run."""
        return self.steps - self.began_at_step

    def __lt__(self, other: QueuedCall) -> bool:
        return self.key < other.key
