"""What a policy is: one question, answered from plain values."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from agentrt.scheduler.table import ProgramRow


@runtime_checkable
class Policy(Protocol):
    """Ranks a call as it arrives. A policy sees the table and cannot change it.

    ``levelled`` policies place calls in queue levels by their rank and run under
    quanta, demotion, promotion and preemption. A policy that is not levelled serves
    calls in the engine's own order, first come, first served.
    """

    name: ClassVar[str]
    levelled: ClassVar[bool]

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        """The attained service (seconds) that decides the call's first level; less is better.

        ``path_s`` is the call's p(c) of Eq. 2, None where its parents are unknown.
        """
        ...
