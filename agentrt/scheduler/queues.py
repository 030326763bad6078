"""The queue of an engine's calls, the priority of a call, and the promotion of waiting calls that
would otherwise starve.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar, NamedTuple

from agentrt.errors import InvariantError
from agentrt.scheduler.admission import Admission
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.state import (
    DEFERRED,
    NOT_ADMITTED,
    QUEUED,
    UNQUEUED,
    WAITING,
    EngineProgram,
    QueuedCall,
)


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


# -- the queue -------------------------------------------------------------------------------


class CallQueue:
    """A queue of waiting calls, ordered by priority; with equal priority, first come, first served.

    A call keeps its key (level, order, sequence number) while it runs, so that a preempted call
    precedes calls that got the same priority later. The engine can take only calls that wait for a
    slot. All other calls in the queue wait for their program's ``admission``, or are deferred until
    the engine can start them.

    The priorities of all waiting calls can become ``outdated`` at once, when a policy's statistics
    have changed much. They are then computed again over several steps (`refresh`).
    """

    def __init__(self, admission: Admission | None, promoter: Promoter) -> None:
        self._admission, self._promoter = admission, promoter
        self._waiting: PriorityQueue[QueuedCall] = PriorityQueue()
        self.outdated: dict[str, QueuedCall] = {}
        """The calls whose priorities are outdated, by id, in the order of their arrival. Some of
        these calls may be running.
        """
        self._priority: Callable[[QueuedCall], Priority] = lambda call: Priority(call.level)
        self._refreshes = 0
        """The number of outdated priorities that may still be computed now."""
        self._deferred: dict[QueuedCall, None] = {}
        self._starving: QueuedCall | None = None
        self._starving_later: dict[QueuedCall, None] = {}
        """The deferred calls that starve after the `starving` call, in this order."""
        self._queued = self._stuck = 0
        self._seqs = count(1)

    def __len__(self) -> int:
        """Return the number of waiting calls, including calls that are deferred or not admitted."""
        return self._queued

    @property
    def startable(self) -> int:
        """The number of calls that wait for a slot, without the calls that are ``stuck``."""
        return len(self._waiting) - self._stuck

    @property
    def starving(self) -> QueuedCall | None:
        """A call that would be promoted if its LoRA adapter fitted; None if there is no such call.

        The call stays the starving call until it starts or ends, or until its adapter fits and it
        cannot start for another reason. If several calls starve, they become the starving call one
        after another, in the order in which they would have been promoted.
        """
        if self._starving is not None and not self._starving.queued:
            self._starving = None
        if self._starving is None and self._starving_later:
            self._starving = next(iter(self._starving_later))
            del self._starving_later[self._starving]
        return self._starving

    def starves(self, call: QueuedCall) -> None:
        """Make the deferred ``call`` the `starving` call, after the calls that starve already."""
        if self.starving is None:
            self._starving = call
        elif call is not self._starving:
            self._starving_later[call] = None

    def no_longer_starves(self, call: QueuedCall) -> None:
        """Note that a call no longer waits for its LoRA adapter: it could not start for another
        reason, although its adapter fitted.
        """
        if call is self._starving:
            self._starving = None

    def head(self) -> QueuedCall | None:
        """Return the call that should run next, or None."""
        head = self._waiting.first()
        while self.outdated and head is not None and self._refresh(head):
            head = self._waiting.first()
        return head

    def best(self, most: int) -> Iterator[QueuedCall]:
        """Yield the first calls that wait for a slot, at most ``most``. The queue must not change
        meanwhile.
        """
        return islice(self._waiting, most)

    def outdate(self, calls: Mapping[str, QueuedCall]) -> None:
        """Note that the priorities of these calls (by id) are outdated."""
        self.outdated = dict(calls)

    def refresh(self, most: int, priority: Callable[[QueuedCall], Priority]) -> None:
        """Compute outdated priorities again, by the function ``priority``: first up to ``most``
        priorities in the order in which the calls arrived, and then up to ``most`` priorities of
        the calls that may be admitted next.

        Until the next call of this method, `head` does the same for the calls that may run next. So
        a step computes at most three times ``most`` priorities, however many calls wait.
        """
        self._priority, self._refreshes = priority, most
        passed = []
        for call in self.outdated.values():
            if not self._refreshes:
                break
            passed.append(call)
            self._refresh_queued(call)
        for call in passed:
            del self.outdated[call.call_id]
        self._refreshes = most
        if self._admission is not None and self.outdated:
            while (first := self._admission.first()) is not None and self._refresh(first):
                pass
            self._refreshes = most

    def _refresh(self, call: QueuedCall) -> bool:
        """Compute the priority of a call again if it is outdated and more may be computed now.

        Return whether the call was outdated and is not any more. A call that is promoted, or that
        has left the queue, keeps its priority: then nothing is computed, but the result is True.
        """
        if not self._refreshes or self.outdated.pop(call.call_id, None) is None:
            return False
        self._refresh_queued(call)
        return True

    def _refresh_queued(self, call: QueuedCall) -> None:
        if call.state in QUEUED and not call.promoted:
            self._refreshes -= 1
            self.set_priority(call, self._priority(call))

    def set_priority(self, call: QueuedCall, priority: Priority) -> None:
        """Set the priority of a call, and move it to its place if it is queued."""
        call.level, quantum_s, order = priority
        call.key = (call.level, order, next(self._seqs))
        call.quantum_ends_s = call.served_s + quantum_s
        if call.state is WAITING:
            self._waiting.put(call, call.key)
        elif call.state is NOT_ADMITTED and self._admission is not None:
            self._admission.wait(call)

    def put(self, call: QueuedCall, *, deferred: bool = False) -> None:
        """Put a call into the queue by its priority. A ``deferred`` call waits until `release`.

        A deferred call is neither admitted nor promoted, and no call is preempted for it. A call
        whose program is not admitted waits for admission. A program that may not stay resident is
        expelled.
        """
        self._queued += 1
        if deferred:
            call.change_state(DEFERRED)
            self._deferred[call] = None
            if self._admission is not None and call.blocked:
                self._admission.blocked(call, call.since or 0.0)
        elif self._admission is None or self._admission.keep_or_expel(call):
            self.offer(call)
        else:
            call.change_state(NOT_ADMITTED)
            self._admission.wait(call)

    def offer(self, call: QueuedCall) -> None:
        """Put a queued call among the calls that wait for a slot."""
        call.change_state(WAITING)
        self._waiting.put(call, call.key)
        if call.stuck:
            self._stuck += 1
        else:
            self._promoter.waits(call)

    def take(self) -> QueuedCall:
        """Remove the head of the queue and return it. The caller starts the call, loads its KV
        cache, or puts it back. Raises `InvariantError` if no call waits for a slot.
        """
        if (call := self.head()) is None:
            raise InvariantError("cannot take a call: no call waits for a slot")
        self.discard(call)
        return call

    def discard(self, call: QueuedCall) -> bool:
        """Remove a call from the queue. Return False if it was not queued."""
        if call.state is WAITING:
            self._waiting.discard(call)
            self._stuck -= call.stuck
        elif call.state is DEFERRED:
            del self._deferred[call]
            if self._starving_later:  # the call is promoted if it still waits for a slot
                self._starving_later.pop(call, None)
        elif call.state is NOT_ADMITTED and self._admission is not None:
            self._admission.leave(call)
        else:
            return False
        self._queued -= 1
        call.change_state(UNQUEUED)
        return True

    def remove(self, call: QueuedCall) -> None:
        """Remove a call that has ended, and all references to it."""
        # Most calls run when they end. This runs for each call, so it calls few functions.
        if call.state in QUEUED:
            self.discard(call)
        self.outdated.pop(call.call_id, None)
        if call is self._starving:
            self._starving = None

    def release(self, ready: Callable[[QueuedCall], bool]) -> list[QueuedCall]:
        """Put the deferred calls for which ``ready`` is true into the queue by their priority, and
        return these calls.

        A call that waited for its LoRA adapter was admitted before, and does not wait for admission
        again. If it did, calls with other adapters could take the adapter's place in this time.
        """
        released = [call for call in self._deferred if ready(call)]
        for call in released:
            blocked, stuck = call.blocked, call.stuck
            self.discard(call)
            call.stuck = False
            if self._admission is not None:
                if blocked:
                    self._admission.unblocked(call)
                if stuck:
                    self._admission.join(call.program)
            if stuck:
                self._queued += 1
                self.offer(call)
            else:
                self.put(call)
        return released


# -- promotion by the paper's rule ------------------------------------------------------------


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
            self._sort_program(call.program)
        else:
            self._unwatch(call)

    def started(self, call: QueuedCall, now: float) -> None:
        if (debt := self._debts.get(call)) is not None:
            debt.waited_s += now - debt.since
        self._end_promotion(call)
        self._unwatch(call)

    def left(self, call: QueuedCall) -> None:
        self._debts.pop(call, None)
        self._end_promotion(call)
        self._unwatch(call)

    def program_changed(self, program: EngineProgram) -> None:
        self._sort_program(program)

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

    def _end_promotion(self, call: QueuedCall) -> None:
        self._promoted.discard(call)
        call.promoted = False

    def _unwatch(self, call: QueuedCall) -> None:
        calls = self._watched.get(call.program)
        if calls is not None and calls.discard(call):
            self._sort_program(call.program)

    def _sort_program(self, program: EngineProgram) -> None:
        """Sort a program by the time at which the first of its watched calls starves."""
        calls = self._watched.get(program)
        if calls is None:
            return
        if not calls:
            del self._watched[program]
            self._programs.discard(program)
            return
        moment = calls.first_key() + self._beta * program.service_s - program.waiting_s
        self._programs.put(program, moment)
