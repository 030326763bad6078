"""What a policy is: the priority of a call, answered from plain values."""

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
    """Says which call runs before which. A policy sees the table and cannot change it.

    Subclass `AttainedService` and give it a `rank`, or answer `priority` and
    `on_quantum_expired`.
    One instance serves one engine. Policies are pure and synchronous, and import the
    standard library and `agentrt.scheduler` only: they are loaded in the engine core.

    A policy that is not ``levelled`` serves calls in the engine's own order, first
    come, first served. Where a policy is not ``starving``, calls are not promoted by
    the paper's anti-starvation rule, because something else bounds their waiting.
    One that ``learns`` changes with the programs that end; ``learned`` is what this engine has
    learned. With ``follows_program``, the waiting calls of a program get a new priority whenever
    one of its calls ends. ``settings`` are the fields of `SchedulerConfig` that only some policies
    read, and this one does.
    """

    revision: int = 0
    """Changes when so much has been learned that all waiting calls are worth ranking again."""
    name: ClassVar[str]
    levelled: ClassVar[bool] = True
    starving: ClassVar[bool] = True
    follows_program: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "beta", "max_promoted"})

    def __init__(self, config: SchedulerConfig) -> None:
        self.config, self.learned = config, Learned()

    def promoter(self, slots: int) -> Promoter | None:
        """What keeps its calls from starving in an engine with so many batch slots."""
        if not (self.levelled and self.starving):
            return None
        return Starvation(self.config)

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        """Where a call stands that waits outside the engine, among its tenant's; less is better.

        It is decided once, from the call's p(c) of Eq. 2, None where its parents are unknown,
        and its program's service (seconds).
        """
        return program_service_s if path_s is None else path_s

    @abstractmethod
    def priority(self, call: QueuedCall, now: float) -> Priority:
        """That of a call that arrives ``now``, or whose program changed."""

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        """The new priority of a call whose quantum is used up."""
        return self.priority(call, now)

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        """A call left the queue for the first time. The waiting calls to ask about again for it."""
        return ()

    def program_ended(self, row: EngineProgram, now: float) -> None:  # noqa: B027  # few learn
        """A program ended. To learn from."""

    def program_lost(self, row: EngineProgram) -> None:  # noqa: B027  # few keep anything
        """A program was not heard of for long, and is dropped from the table."""
