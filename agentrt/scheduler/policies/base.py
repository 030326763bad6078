"""What a policy is: where a call stands, answered from plain values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.backlog import Backlog
    from agentrt.scheduler.call import QueuedCall
    from agentrt.scheduler.history import History


class Place(NamedTuple):
    """Where a call stands: smaller levels run first, within one level smaller orders.

    Only a call of a strictly better level preempts. ``budget_s`` are the seconds of
    service after which the policy is asked again (`Policy.expire`).
    """

    level: int
    budget_s: float = math.inf
    order: float = 0.0


class Policy(ABC):
    """Places calls. A policy sees the table and cannot change it.

    Subclass `AttainedService` and give it a `rank`, or answer `place` and `expire`.
    One instance serves one engine. Policies are pure and synchronous, and import the
    standard library and `agentrt.scheduler` only: they are loaded in the engine core.

    A policy that is not ``levelled`` serves calls in the engine's own order, first
    come, first served. Where a policy is not ``starving``, calls are not promoted by
    the paper's anti-starvation rule, because something else bounds their waiting.
    One that ``learns`` changes with the programs that end, and has a ``history`` of them.
    With ``follows_program``, the waiting calls of a program are placed anew whenever
    one of its calls ends. With ``lane``, a share of the batch serves the oldest programs; a
    policy's ``backlog`` tells it when they are late.
    """

    name: ClassVar[str]
    levelled: ClassVar[bool] = True
    starving: ClassVar[bool] = True
    follows_program: ClassVar[bool] = False
    lane: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    history: History | None = None
    backlog: Backlog | None = None

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        """Where a call stands that waits outside the engine, among its tenant's; less is better.

        It is decided once, from the call's p(c) of Eq. 2, None where its parents are unknown,
        and its program's service (seconds).
        """
        return program_service_s if path_s is None else path_s

    @abstractmethod
    def place(self, call: QueuedCall, now: float) -> Place:
        """Where a call stands that arrives ``now``, or whose program changed."""

    def expire(self, call: QueuedCall, now: float) -> Place:
        """Where a call stands whose budget is used up."""
        return self.place(call, now)

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        """A call left the queue for the first time. The waiting calls to place anew for it."""
        return ()

    def program_ended(self, row: ProgramRow, now: float) -> None:  # noqa: B027  # few learn
        """A program ended. To learn from."""

    def program_rests(self, row: ProgramRow) -> None:  # noqa: B027  # few count who is there
        """None of a program's calls is in the engine any more, for now."""

    def program_lost(self, row: ProgramRow) -> None:  # noqa: B027  # few keep anything
        """A program was not heard of for long, and is dropped from the table."""


class AttainedService(Policy):
    """Levels with quanta, as in Agentix, Algorithm 1: a rank in seconds picks the first level.

    A call whose quantum is used up sinks one level.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._ends = config.level_ends
        self._quanta = config.level_quanta

    @abstractmethod
    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        """The attained service (seconds) that decides a call's first level; less is better.

        ``path_s`` is the call's p(c) of Eq. 2, None where its parents are unknown.
        """

    def place(self, call: QueuedCall, now: float) -> Place:
        rank = max(self.rank(call.program, call.path_s), 0.0)
        level = min(bisect_right(self._ends, rank), len(self._quanta) - 1)
        return Place(level, self._quanta[level])

    def expire(self, call: QueuedCall, now: float) -> Place:
        level = min(int(call.level) + 1, len(self._quanta) - 1)
        return Place(level, self._quanta[level])
