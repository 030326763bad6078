"""The priority of a call, and the promotion of waiting calls that would otherwise starve.

`Starvation` is the anti-starvation rule of Agentix (§4.2.2), without a scan of all waiting calls. A
call starves when the ratio of waiting to service, (W_p + W_c) / (T_p + T_c), reaches beta. W is
the waiting time and T the service, of the program (p) and of the call (c). While a call waits and
no other call of its program ends, only W_c changes. So the time at which the call will starve is
known: ``born + beta·T_p - W_p``, with ``born = (start of the wait) - W_c + beta·T_c``. ``born``
depends only on the call, and the rest depends only on the program. So each program has a queue of
its calls, sorted by ``born``, and one queue holds the programs, sorted by the time at which their
first call starves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.records import EngineProgram, QueuedCall


class Priority(NamedTuple):
    """The priority of a call. Calls of a smaller ``level`` run first. Within a level, calls of a
    smaller ``order`` (a number, or a tuple of numbers) run first.

    A call preempts another call only if its level is strictly smaller. After ``quantum_s`` seconds
    of service, the policy chooses a new priority (`Policy.on_quantum_expired`).
    """

    level: int
    quantum_s: float = math.inf
    order: Any = 0.0


class Promoter:
    """A promoter of calls that have waited for long. This base class promotes no calls.

    A promoted call gets the priority ``priority``. The call keeps this priority until its quantum
    is used up, or, if ``keeps`` is set, until it ends. A call that the engine takes but cannot
    start loses its promotion.
    """

    priority = Priority(0)
    keeps: ClassVar[bool] = False

    def waits(self, call: QueuedCall) -> None:
        """Handle that a call waits for a slot, or for its LoRA adapter after a failed attempt to
        start. The wait began at ``call.since``. This is called again if a step that was in flight
        when the call was preempted changes the call's service, and perhaps its level.
        """

    def started(self, call: QueuedCall, now: float) -> None:
        """Handle the start of a call."""

    def charged(self, call: QueuedCall, seconds: float) -> None:
        """Handle ``seconds`` of service of a promoted call."""

    def left(self, call: QueuedCall) -> None:
        """Handle the end of a call in any state, or the loss of its promotion."""

    def program_changed(self, program: EngineProgram) -> None:
        """Handle a change of a program's own service or waiting time."""

    def promote(self, now: float) -> QueuedCall | None:
        """Return the next call to promote ``now``, or None. Amortised O(log n)."""
        return None

    def next_moment(self, now: float) -> float | None:
        """Return the earliest time at which a call may have to be promoted if no event happens
        before; None if there is no such time.
        """
        return None


@dataclass(slots=True, eq=False)
class _Debt:
    """The waiting time and the service of a call since its last promotion, or since its arrival.

    The paper resets the call's own times when it is promoted. These times are kept separately
    here, because the service before the promotion must stay in the program's total.
    """

    since: float
    waited_s: float = 0.0
    promoted_at_s: float = 0.0
    """The value of ``served_s`` at its last promotion."""


class Starvation(Promoter):
    """A promoter that moves starving calls to Q_1. The call that has been starving for longest is
    promoted first (Agentix, Alg. 1, lines 24-30).

    At most ``max_promoted`` promoted calls wait at the same time.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.priority = Priority(0, config.level_quanta[0])
        self._beta = config.beta
        self._most = config.max_promoted
        self._promoted: set[QueuedCall] = set()
        self._debts: dict[QueuedCall, _Debt] = {}
        self._watched: dict[EngineProgram, PriorityQueue[QueuedCall]] = {}
        """For each program: its waiting calls that are not in Q_1 or are stuck, sorted by
        ``born``.
        """
        self._programs: PriorityQueue[EngineProgram] = PriorityQueue()

    def waits(self, call: QueuedCall) -> None:
        if math.isinf(self._beta) or call.since is None:
            return
        debt = self._debts.setdefault(call, _Debt(call.since))
        debt.since = max(debt.since, call.since)
        # A call in Q_1 cannot be promoted, but starves if its LoRA adapter does not fit.
        if call.level > 0 or call.stuck:
            served_s = call.served_s - debt.promoted_at_s
            born = debt.since - debt.waited_s + self._beta * served_s
            self._watched.setdefault(call.program, PriorityQueue()).put(call, born)
            self._file(call.program)
        else:
            self._unwatch(call)

    def started(self, call: QueuedCall, now: float) -> None:
        if (debt := self._debts.get(call)) is not None:
            debt.waited_s += now - debt.since
        self._settle(call)
        self._unwatch(call)

    def left(self, call: QueuedCall) -> None:
        self._debts.pop(call, None)
        self._settle(call)
        self._unwatch(call)

    def program_changed(self, program: EngineProgram) -> None:
        self._file(program)

    def promote(self, now: float) -> QueuedCall | None:
        moment = self._programs.first_key()
        if len(self._promoted) >= self._most or moment is None or moment > now:
            return None
        program = self._programs.first()
        assert program is not None
        call = self._watched[program].first()
        assert call is not None
        self._unwatch(call)
        debt = self._debts[call]
        debt.promoted_at_s, debt.waited_s, debt.since = call.served_s, 0.0, now
        self._promoted.add(call)
        return call

    def next_moment(self, now: float) -> float | None:
        if len(self._promoted) >= self._most:
            return None
        moment: float | None = self._programs.first_key()
        return moment

    def _settle(self, call: QueuedCall) -> None:
        self._promoted.discard(call)
        call.promoted = False

    def _unwatch(self, call: QueuedCall) -> None:
        calls = self._watched.get(call.program)
        if calls is not None and calls.discard(call):
            self._file(call.program)

    def _file(self, program: EngineProgram) -> None:
        """Record the time at which the first of a program's calls starves."""
        calls = self._watched.get(program)
        if calls is None:
            return
        if not calls:
            del self._watched[program]
            self._programs.discard(program)
            return
        moment = calls.first_key() + self._beta * program.service_s - program.waiting_s
        self._programs.put(program, moment)
