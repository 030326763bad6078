"""Adaptive: the program that is expected to need the least service still, learned from its kin.

Ours. The expectation is `History`'s, from finished programs of the same type and tenant, and
ATLAS's rank where there are none. It is capped at twice the mean program of its type, or at
what the program has had where that is more: who has only been unlucky is not put off further
and further, and a large program under a small type's name is, from twice its mean on. Programs
whose expectations are within a factor of 1.4 stand in one level: there, those that are small
by what they had and by what they need go first, and then the older ones, but nobody is
preempted for that. A lane of the batch bounds the tail (`lane.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.adaptive.estimate import History
from agentrt.scheduler.policies.base import Policy, Priority
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_LEVELS_PER_DOUBLING = 2
_QUANTA_OF_LIFE = 8.0
"""A quantum is this part of what the program had, or of what it is expected to need."""
_SHORTEST_QUANTUM_S = 0.5
_SMALL_S = 0.25
"""Attained service below which sizes are not told apart."""
_CAP = 2.0
_SIZE_STRIDE = 2.0**32
"""Between two sizes in the order within a level; below it, the arrival in seconds."""


class Adaptive(Policy):
    """Learned expected remaining service, with a lane for the old."""

    name: ClassVar[str] = "adaptive"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True
    lane: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.history: History = History()

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        path_s = row.path_s if call.path_s is None else call.path_s
        expected = self.history.expect(row, call.node, path_s + call.served_s)
        attained = max(row.attained_s, _SMALL_S)
        usual = self.history.usual(row)
        if usual is not None:
            expected = min(expected, max(_CAP * usual, attained))
        size = math.floor(math.log2(attained * expected) / 2.0)
        return Priority(
            math.floor(_LEVELS_PER_DOUBLING * math.log2(expected)),
            max(_SHORTEST_QUANTUM_S, max(attained, expected) / _QUANTA_OF_LIFE),
            size * _SIZE_STRIDE + row.started_at,
        )

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self.history.learn(row)

    def program_lost(self, row: ProgramRow) -> None:
        self.history.forget(row)
