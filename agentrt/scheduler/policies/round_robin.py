"""Round-robin: programs take turns of one quantum each, whatever they were served before.

A program's turn follows from its service, whichever of its calls had it, so that a program
cannot gain by splitting into many calls, or into short ones; one that is new or was away
starts in the round that is being served (start-time fair queueing, Goyal et al. 1996, with
equal weights).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Place, Policy
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_EPSILON = 1e-6
"""What a sum of service may lack for a whole turn."""


class RoundRobin(Policy):
    """Rounds are levels: a program that used its quantum stands in the next round."""

    name: ClassVar[str] = "round-robin"
    starving: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._quantum = config.level_quanta[0]
        self._round = 0
        self._offsets: dict[str, float] = {}

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def place(self, call: QueuedCall, now: float) -> Place:
        program = call.program
        turns = program.attained_s / self._quantum
        # Turns that a program did not take while it was away are not saved up.
        offset = max(self._offsets.get(program.program_id, -math.inf), self._round - turns)
        self._offsets[program.program_id] = offset
        turn = math.floor(offset + turns + _EPSILON)
        return Place(turn, self._quantum * (turn + 1 - offset - turns))

    def expire(self, call: QueuedCall, now: float) -> Place:
        # What runs is in the best rounds there are: that is the round being served.
        self._round = max(self._round, int(call.level))
        return self.place(call, now)

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self._offsets.pop(row.program_id, None)

    def program_lost(self, row: ProgramRow) -> None:
        self._offsets.pop(row.program_id, None)
