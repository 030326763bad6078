"""The base class of admission policies, their decisions, and the simplest policy, ``cap``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Part
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.state import NOT_ADMITTED, CachedBlocks, EngineProgram, QueuedCall


class Capacity(NamedTuple):
    """An engine's KV cache, in ``blocks`` of ``block_size`` tokens, and its batch ``slots``."""

    blocks: int
    block_size: int
    slots: int


class Admit(NamedTuple):
    """A decision: ``program`` becomes resident, the programs ``expelled`` stop being resident, and
    the residents ``ceding`` claim less of the cache.
    """

    program: EngineProgram
    expelled: tuple[EngineProgram, ...] = ()
    ceding: tuple[EngineProgram, ...] = ()


class Keep(NamedTuple):
    """A decision: a program is not admitted now. Decide again at the time ``until``, or at the next
    event if that is earlier.

    If an idle engine waits for the end of a tool instead, ``tool_of`` is the resident program that
    called the tool.
    """

    until: float = math.inf
    tool_of: EngineProgram | None = None


class Admission(Part, ABC):
    """An admission policy. It decides which programs are *resident*: the calls of resident programs
    may run and use the KV cache.

    A program is admitted with all of its calls. A subclass implements `may_stay` and `decide`,
    which must not change any state; this class applies their decisions. ``changed`` is a function;
    it is called with the cached blocks of each program that becomes resident or stops being
    resident.
    """

    name: ClassVar[str]

    def __init__(self, config: SchedulerConfig, capacity: Capacity, learned: Learned) -> None:
        self.config, self.capacity, self.learned = config, capacity, learned
        self.changed: Callable[[CachedBlocks], None] = lambda blocks: None
        self.residents: dict[EngineProgram, None] = {}
        """The resident programs, in the order of their admission."""
        self._not_admitted: PriorityQueue[QueuedCall] = PriorityQueue()

    # -- decisions of a subclass -----------------------------------------------------------

    @abstractmethod
    def may_stay(self, call: QueuedCall) -> bool:
        """Return whether the resident program of a call may stay resident. This is called when the
        call arrives or is queued again.
        """

    @abstractmethod
    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        """Decide whether the program of a call becomes resident now.

        ``running`` is the number of calls that run or could start. If it is 0, the decision must be
        `Admit`, or a `Keep` with a finite ``until``; otherwise the engine would stay idle.
        """

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        """Return the sort key of a call that waits for admission. The call with the smallest key is
        considered first.
        """
        return call.key

    def candidates(self, now: float, running: int) -> Iterable[QueuedCall]:
        """Return the calls whose programs may be admitted next, in order."""
        return islice(self._not_admitted, 1)

    def next_moment(self) -> float:
        """Return the earliest time at which a program may be admitted if no event happens before;
        infinity if there is none.
        """
        return math.inf

    # -- for the queue and the core --------------------------------------------------------

    def keep_or_expel(self, call: QueuedCall) -> bool:
        """Expel a call's program if it is resident and may not stay. Return whether it is resident
        now.
        """
        program = call.program
        if program.resident and not self.may_stay(call):
            self.expel(program)
        return program.resident

    def wait(self, call: QueuedCall) -> None:
        """Put a call among the calls that wait for admission. If it already waits, update its
        priority. O(log n).
        """
        self._not_admitted.put(call, self.rank(call))

    def blocked(self, call: QueuedCall, now: float) -> None:
        """Handle that a call was queued and cannot start yet (`QueuedCall.blocked`). The default
        does nothing.
        """

    def unblocked(self, call: QueuedCall) -> None:
        """Handle that a blocked call can start now. The default does nothing."""

    def cache_emptied(self, programs: Iterable[EngineProgram]) -> None:
        """Handle that the prefix cache was emptied. ``programs`` are all live programs. The default
        does nothing.
        """

    def first(self) -> QueuedCall | None:
        """Return the call that is considered first for admission; None if no call waits for
        admission.
        """
        return self._not_admitted.first()

    def leave(self, call: QueuedCall) -> None:
        """Remove a call from the calls that wait for admission."""
        self._not_admitted.discard(call)

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        """Admit the next program, if one may be admitted. Return its calls, which no longer wait
        for admission; an empty list if no program is admitted.
        """
        for call in self.candidates(now, running):
            decision = self.decide(call, now, running)
            if isinstance(decision, Admit):
                self._apply(decision)
                calls = [
                    waiting
                    for waiting in call.program.queued.values()
                    if waiting.state is NOT_ADMITTED
                ]
                for waiting in calls:
                    self.leave(waiting)
                return calls
            self._keep(call.program, decision)
        return []

    def _apply(self, decision: Admit) -> None:
        for program in decision.expelled:
            self.expel(program)
        self.join(decision.program)

    def _keep(self, program: EngineProgram, decision: Keep) -> None:
        """Record that a program is not admitted. The default does nothing."""

    def join(self, program: EngineProgram) -> None:
        """Make a program resident. Idempotent."""
        if not program.resident:
            self._set_resident(program, True)

    def expel(self, program: EngineProgram) -> None:
        """Make a program not resident. Idempotent."""
        if program.resident:
            self._set_resident(program, False)

    def _set_resident(self, program: EngineProgram, resident: bool) -> None:
        program.resident = resident
        if resident:
            self.residents[program] = None
        else:
            del self.residents[program]
        if program.cached is not None:
            self.changed(program.cached)


class Cap(Admission):
    """The admission ``cap``: at most ``admission_cap`` programs are resident, in the order of their
    arrival. A program stays resident from its admission to its end.

    There is an exception: if no call runs or could start, for example because all resident programs
    wait for tools, another program is admitted, so that the engine does not stay idle.
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

    def program_ended(self, program: EngineProgram, now: float) -> None:
        self.expel(program)
