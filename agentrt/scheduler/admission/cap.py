"""The admission ``cap``: at most a fixed number of programs are resident, unless the engine would
stay idle.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentrt.scheduler.admission.base import Admission, Admit, Keep
from agentrt.scheduler.records import EngineProgram, QueuedCall


class Cap(Admission):
    """The admission ``cap``: at most ``admission_cap`` programs are resident, in the order of their
    arrival. A program stays resident from its admission to its end.

    There is an exception: if no call runs or could start, because the resident programs wait for
    tools, another program is admitted, so that the engine does not stay idle.
    """

    name: ClassVar[str] = "cap"

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        return (call.program.started_at, call.key[2])

    def may_stay(self, call: QueuedCall) -> bool:
        return True

    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        if running and len(self.residents) >= self.config.admission_cap:
            return Keep()
        return Admit(call.program)

    def program_ended(self, row: EngineProgram, now: float) -> None:
        self.expel(row)
