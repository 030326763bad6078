"""FCFS: calls run in the order of their arrival, as stock vLLM does."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.policies.base import Place, Policy

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


class Fcfs(Policy):
    """First come, first served. No levels, no preemption for a batch slot."""

    name: ClassVar[str] = "fcfs"
    levelled: ClassVar[bool] = False
    starving: ClassVar[bool] = False

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return 0.0

    def place(self, call: QueuedCall, now: float) -> Place:
        return Place(0)
