"""Published policies: those of Agentix, and baselines.

In the policies of Agentix (Algorithm 1), attained service decides the first queue level of a call.
PLAS takes the sum of the service of the program's calls (Eq. 1), and ATLAS the longest path of
service in the program's DAG (Eq. 2). MLFQ, with which the paper compares these two, ignores the
program.

The baselines order calls by arrival, in turns, or by the length of the prompt. ``srtf`` and
``two-level`` are from the vLLM thesis, §4.5.2 and §4.5.3. ``round-robin`` is start-time fair
queueing (Goyal et al. 1996) with equal weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.queues import Priority
from agentrt.scheduler.state import EngineProgram

if TYPE_CHECKING:
    from agentrt.scheduler.state import QueuedCall

STAGED = 8
"""Size of the staging queue of ``two-level``. The vLLM thesis says only that it is small."""
_STAGING, _LINE = 0, 1
_EPSILON = 1e-6
"""Tolerance for rounding errors at the end of a turn."""

# -- attained service ------------------------------------------------------------------------


class AttainedService(Policy):
    """The base class of policies with levels and quanta. The level of a new call depends on the
    attained service that `level_service_s` returns for it.

    A call whose quantum is used up is demoted by one level.
    """

    _former_names: ClassVar[Mapping[str, str]] = {**Policy._former_names, "rank": "level_service_s"}

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._ends = config.level_ends
        self._quanta = config.level_quanta

    @abstractmethod
    def level_service_s(self, program: EngineProgram, path_s: float | None) -> float:
        """Return the attained service, in seconds, that decides a call's first level; less is
        better.

        ``path_s`` is p(c) of Eq. 2 in the Agentix paper, in seconds; None if the call's
        parents are unknown.
        """

    def rank(self, program: EngineProgram, path_s: float | None) -> float:
        """Return the result of `level_service_s`, which was called ``rank`` before 0.3. The old
        name will be removed in 0.4.
        """
        result: float = self._method_of("rank").__get__(self)(program, path_s)
        return result

    def priority(self, call: QueuedCall, now: float) -> Priority:
        service_s = max(self.level_service_s(call.program, call.path_s), 0.0)
        level = min(bisect_right(self._ends, service_s), len(self._quanta) - 1)
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

    def level_service_s(self, program: EngineProgram, path_s: float | None) -> float:
        return 0.0


class Plas(AttainedService):
    """Program-level attained service: the sum over the program's completed calls (Agentix, Eq.
    1).
    """

    name: ClassVar[str] = "plas"

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def level_service_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.service_s


class Atlas(AttainedService):
    """Adaptive thread-level attained service: the seconds of service on the longest path of calls
    that leads to the call.

    Source: Agentix, Eq. 2, computed from the call's true parents. If the parents are unknown, the
    longest path anywhere in the program is used, as in `AtlasScalar`.
    """

    name: ClassVar[str] = "atlas"

    def level_service_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s if path_s is None else path_s


class AtlasScalar(AttainedService):
    """The paper's approximation of ATLAS: the longest path seen anywhere in the program."""

    name: ClassVar[str] = "atlas-scalar"

    def level_service_s(self, program: EngineProgram, path_s: float | None) -> float:
        return program.path_s


# -- baselines -------------------------------------------------------------------------------


class Fcfs(Policy):
    """First come, first served, like stock vLLM: no levels, and no preemption for a batch slot."""

    name: ClassVar[str] = "fcfs"
    levelled: ClassVar[bool] = False
    starving: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return 0.0

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0)


class ProgramFcfs(Policy):
    """First come, first served among programs. A running call is never preempted for a slot.

    The calls of a program precede all calls of programs that started later. This order keeps
    the longest waiting times short, so `adaptive` reserves a share of the batch for calls in this
    order.
    """

    name: ClassVar[str] = "program-fcfs"
    starving: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, order=call.program.started_at)


class Srtf(Policy):
    """Shortest remaining time to the next token first. Long prompts can starve.

    A running call needs only one step to its next token, so it precedes all waiting calls. Waiting
    calls are ordered by the length of their prompts.
    """

    name: ClassVar[str] = "srtf"
    starving: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset()

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, order=call.prompt_tokens)


class TwoLevel(Policy):
    """A policy with two queues: calls enter a small staging queue in the order of their arrival,
    and leave it with the shortest prompt first.

    Only the prompts in the small staging queue have to be compared. A long prompt in it can starve,
    while calls with shorter prompts keep entering it.
    """

    name: ClassVar[str] = "two-level"
    starving: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._staged: set[str] = set()
        self._line: OrderedDict[str, QueuedCall] = OrderedDict()

    def priority(self, call: QueuedCall, now: float) -> Priority:
        if call.call_id in self._staged or len(self._staged) < STAGED:
            self._staged.add(call.call_id)
            return Priority(_STAGING, order=call.prompt_tokens)
        self._line[call.call_id] = call
        return Priority(_LINE)

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        self._line.pop(call.call_id, None)
        self._staged.discard(call.call_id)
        if self._line and len(self._staged) < STAGED:
            return (self._line.popitem(last=False)[1],)
        return ()


class RoundRobin(Policy):
    """A policy in which programs take turns of one quantum each. The level of a call is the number
    of its program's next round.

    The round of a program depends on its total service over all its calls, so a program gains
    nothing by splitting its work into many or short calls. A program that is new, or that makes a
    call after a pause, starts in the current round.
    """

    name: ClassVar[str] = "round-robin"
    starving: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset({"quanta"})

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._quantum = config.level_quanta[0]
        self._round = 0
        self._offsets: dict[str, float] = {}

    @classmethod
    def tenant_queue_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def priority(self, call: QueuedCall, now: float) -> Priority:
        program = call.program
        turns = program.attained_s / self._quantum
        # A program cannot catch up on turns that it missed while it had no call.
        offset = max(self._offsets.get(program.program_id, -math.inf), self._round - turns)
        self._offsets[program.program_id] = offset
        turn = math.floor(offset + turns + _EPSILON)
        return Priority(turn, self._quantum * (turn + 1 - offset - turns))

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        # The calls of the earliest round run first, so the round of a running call is the current
        # round.
        self._round = max(self._round, int(call.level))
        return self.priority(call, now)

    def program_ended(self, row: EngineProgram, now: float) -> None:
        self._offsets.pop(row.program_id, None)

    def program_lost(self, row: EngineProgram) -> None:
        self._offsets.pop(row.program_id, None)
