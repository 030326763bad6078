"""Program-FCFS: calls run in the order in which their programs arrived.

A baseline: head-of-line blocking by calls is gone, by programs it is not. Its tail is
the fairest there is, so `adaptive` keeps a lane of the batch in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.policies.base import Place, Policy

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


class ProgramFcfs(Policy):
    """First come, first served by programs. A running call is never preempted for a slot."""

    name: ClassVar[str] = "program-fcfs"
    starving: ClassVar[bool] = False

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def place(self, call: QueuedCall, now: float) -> Place:
        return Place(0, order=call.program.started_at)
