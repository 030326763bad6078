"""The paper's policies, in which attained service decides the first queue level of a call.

Source: Agentix, Algorithm 1. PLAS takes the sum of the service of the program's calls (Eq. 1), and
ATLAS the longest path of service in the program's DAG (Eq. 2). MLFQ, with which the paper compares
these two, ignores the program.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.queues import Priority
from agentrt.scheduler.records import EngineProgram

if TYPE_CHECKING:
    from agentrt.scheduler.records import QueuedCall


class AttainedService(Policy):
    """The base class of policies with levels and quanta. The level of a new call depends on the
    attained service that `attained_s` returns for it.

    A call whose quantum is used up is demoted by one level.
    """

    _former_names: ClassVar[Mapping[str, str]] = {**Policy._former_names, "rank": "attained_s"}

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._ends = config.level_ends
        self._quanta = config.level_quanta

    @abstractmethod
    def attained_s(self, program: EngineProgram, path_s: float | None) -> float:
        """Return the attained service, in seconds, that decides a call's first level; less is
        better.

        ``path_s`` is p(c) of Eq. 2 in the Agentix paper, in seconds; None if the call's
        parents are unknown.
        """

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        """Return the result of `attained_s`, which was called ``rank`` before 0.3. The old name
        will be removed in 0.4.
        """
        result: float = self._method_of("rank").__get__(self)(program, path_s)
        return result

    def priority(self, call: QueuedCall, now: float) -> Priority:
        attained_s = max(self.attained_s(call.program, call.path_s), 0.0)
        level = min(bisect_right(self._ends, attained_s), len(self._quanta) - 1)
        return Priority(level, self._quanta[level])

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        # The last level's quantum is infinite, so there is always a next level here.
        level = int(call.level) + 1
        return Priority(level, self._quanta[level])


class Mlfq(AttainedService):
    """A multi-level feedback queue of calls: every call starts in Q_1, independent of its program.

    Source: Agentix, §3.1 and §6.
    """

    name: ClassVar[str] = "mlfq"

    def attained_s(self, program: EngineProgram, path_s: float | None) -> float:
        return 0.0


class Plas(AttainedService):
    """Program-level attained service: the sum over the program's completed calls (Agentix, Eq.
    1).
    """

    name: ClassVar[str] = "plas"

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def attained_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.service_s


class Atlas(AttainedService):
    """Adaptive thread-level attained service: the seconds of service on the longest path of calls
    that leads to the call.

    Source: Agentix, Eq. 2, computed from the call's true parents. If the parents are unknown, the
    longest path anywhere in the program is used, as in `AtlasScalar`.
    """

    name: ClassVar[str] = "atlas"

    def attained_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s if path_s is None else path_s


class AtlasScalar(AttainedService):
    """The paper's approximation of ATLAS: the longest path seen anywhere in the program."""

    name: ClassVar[str] = "atlas-scalar"

    def attained_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s
