"""The paper's policies: a call's first queue level follows from the service attained so far.

Agentix, Algorithm 1. PLAS sums what the program's calls had (Eq. 1), ATLAS takes the longest
path of service in the program's DAG (Eq. 2), and MLFQ, which the paper compares them with, looks
at the call alone.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.promotion import Priority
from agentrt.scheduler.records import EngineProgram

if TYPE_CHECKING:
    from agentrt.scheduler.records import QueuedCall


class AttainedService(Policy):
    """Levels with quanta: a rank in seconds picks the first level.

    A call whose quantum is used up sinks one level.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._ends = config.level_ends
        self._quanta = config.level_quanta

    @abstractmethod
    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        """The attained service (seconds) that decides a call's first level; less is better.

        ``path_s`` is the call's p(c) of Eq. 2, None where its parents are unknown.
        """

    def priority(self, call: QueuedCall, now: float) -> Priority:
        rank = max(self.rank(call.program, call.path_s), 0.0)
        level = min(bisect_right(self._ends, rank), len(self._quanta) - 1)
        return Priority(level, self._quanta[level])

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        # The last level's quantum has no end.
        level = int(call.level) + 1
        return Priority(level, self._quanta[level])


class Mlfq(AttainedService):
    """Call-level multi-level feedback queue: every call starts in Q_1, whatever its program had.

    Source: Agentix, §3.1 and §6.
    """

    name: ClassVar[str] = "mlfq"

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        return 0.0


class Plas(AttainedService):
    """Program-level attained service: the sum over its completed calls. Agentix, Eq. 1."""

    name: ClassVar[str] = "plas"

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        return program.service_s


class Atlas(AttainedService):
    """Adaptive thread-level attained service: the longest path of service to this very call.

    Agentix, Eq. 2, from the call's true parents; the scalar where they are unknown.
    """

    name: ClassVar[str] = "atlas"

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s if path_s is None else path_s


class AtlasScalar(AttainedService):
    """The paper's approximation of ATLAS: the longest path seen anywhere in the program."""

    name: ClassVar[str] = "atlas-scalar"

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s
