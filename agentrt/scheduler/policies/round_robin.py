"""Round-robin: programs take turns of one quantum each, whatever they were served before.

The turns are counted per program, so that a program cannot gain by splitting into many
calls; a new program starts in the round that is being served (start-time fair queueing,
Goyal et al. 1996, with equal weights).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Place, Policy
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


class RoundRobin(Policy):
    """Rounds are levels: a call that used its quantum stands in its program's next round."""

    name: ClassVar[str] = "round-robin"
    starving: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._quantum = config.level_quanta[0]
        self._round = 0
        self._rounds: dict[str, int] = {}

    def place(self, call: QueuedCall, now: float) -> Place:
        program = call.program.program_id
        turn = max(self._rounds.get(program, 0), self._round)
        self._rounds[program] = turn
        return Place(turn, self._quantum)

    def expire(self, call: QueuedCall, now: float) -> Place:
        program = call.program.program_id
        # What runs is in the best rounds there are: that is the round being served.
        self._round = max(self._round, int(call.level))
        turn = max(self._rounds.get(program, 0), int(call.level)) + 1
        self._rounds[program] = turn
        return Place(turn, self._quantum)

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self._rounds.pop(row.program_id, None)

    def program_lost(self, row: ProgramRow) -> None:
        self._rounds.pop(row.program_id, None)
