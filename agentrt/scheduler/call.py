"""A call as the queues see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentrt.scheduler.table import ProgramRow


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
    lose that service from the program's total.
    """

    call_id: str
    program: ProgramRow
    item: Any
    path_s: float | None
    arrived_at: float
    node: str = ""
    prompt_tokens: int = 0
    level: int = 0
    order: float = 0.0
    seq: int = 0
    quantum_left: float = math.inf
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
    debt_served_s: float = 0.0
    residency_steps: int = 0
    steps: int = 0
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    @property
    def key(self) -> tuple[int, float, int]:
        """A smaller key runs first."""
        return (self.level, self.order, self.seq)

    def __lt__(self, other: QueuedCall) -> bool:
        return self.key < other.key
