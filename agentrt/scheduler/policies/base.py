"""The base class of scheduling policies, which decide the priority of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import EngineProgram, QueuedCall
from agentrt.scheduler.starvation import Starvation


class Policy(ABC):
    """A scheduling policy, which decides which calls run before others. It reads programs and
    calls, and must not change them.

    Subclass `AttainedService` and implement `rank`, or implement `priority` and
    `on_quantum_expired`. An instance serves one engine. Policies are pure and synchronous, and
    import only the standard library and `agentrt.scheduler`, because they are loaded in the engine
    core.

    - ``levelled``: False if the policy serves calls in the engine's own order, first come, first
      served.
    - ``starving``: True if waiting calls are promoted by the anti-starvation rule of Agentix.
    - ``learns``: True if the policy uses statistics of ended programs. ``learned`` holds this
      engine's statistics.
    - ``follows_program``: True if the waiting calls of a program get a new priority whenever one of
      its calls ends.
    - ``settings``: the fields of `SchedulerConfig` that this policy uses, among the fields that
      only some policies use.
    """

    revision: int = 0
    """A number that changes when the statistics have changed so much that all waiting calls are
    ranked again.
    """
    name: ClassVar[str]
    levelled: ClassVar[bool] = True
    starving: ClassVar[bool] = True
    follows_program: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "beta", "max_promoted"})

    def __init__(self, config: SchedulerConfig) -> None:
        self.config, self.learned = config, Learned()

    def promoter(self, slots: int) -> Promoter | None:
        """Return the promoter that keeps calls from starving in an engine with ``slots`` batch
        slots.
        """
        if not (self.levelled and self.starving):
            return None
        return Starvation(self.config)

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        """Return the rank of a call that waits outside the engine. The rank is compared with those
        of the same tenant's other calls; a lower rank runs first.

        ``path_s`` is p(c) of Eq. 2 in the Agentix paper, in seconds; it is None if the call's
        parents are unknown. ``program_service_s`` is the service of the call's program. The rank of
        a call is computed only once.
        """
        return program_service_s if path_s is None else path_s

    @abstractmethod
    def priority(self, call: QueuedCall, now: float) -> Priority:
        """Return the priority of a call that arrives ``now``, or whose program has changed."""

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        """Return the new priority of a call whose quantum is used up."""
        return self.priority(call, now)

    def preempts_by(self, better: QueuedCall, call: QueuedCall) -> int:
        """Return by how many levels a waiting call, ``better``, must be better than a running call
        to take its slot.
        """
        return 1

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        """Handle the first time that a call leaves the queue. Return the waiting calls whose
        priority changes because of it.
        """
        return ()

    def program_ended(self, row: EngineProgram, now: float) -> None:  # noqa: B027  # few learn
        """Learn from a program that has ended."""

    def program_lost(self, row: EngineProgram) -> None:  # noqa: B027  # few keep anything
        """Drop the state of a program that has timed out and is removed from the table."""
