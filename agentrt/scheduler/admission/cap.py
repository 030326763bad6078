"""A plain cap on the programs that are there at one time, in the order of their arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.admission.base import Admission, Capacity, Rank
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


class Cap(Admission):
    """At most ``admission_cap`` programs, from their first call to their end."""

    name: ClassVar[str] = "cap"

    def __init__(self, config: SchedulerConfig, capacity: Capacity) -> None:
        super().__init__(config, capacity)
        self._members: set[str] = set()

    def rank(self, call: QueuedCall) -> Rank:
        return (call.program.started_at, call.seq)

    def goes_on(self, call: QueuedCall, now: float) -> bool:
        return call.program.program_id in self._members

    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        if running and len(self._members) >= self.config.admission_cap:
            return False
        self._members.add(call.program.program_id)
        return True

    def program_ended(self, program_id: str, now: float) -> None:
        self._members.discard(program_id)
