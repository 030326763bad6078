"""The waiting calls of one engine: in levels, not admitted, or deferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice

from agentrt.errors import InvariantError
from agentrt.scheduler.admission import Admission
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import DEFERRED, NOT_ADMITTED, UNQUEUED, WAITING, QueuedCall


class CallQueue:
    """The calls that wait, first come, first served within a level and order.

    A call keeps its key, (level, order, sequence), while it runs, so that a preempted call comes
    back ahead of those that got the same priority after it. Of the calls here, only those that
    wait for a slot alone can be taken; the others wait for their program's ``admission``, or are
    deferred until the engine can start them.
    """

    def __init__(self, admission: Admission | None, promoter: Promoter) -> None:
        self._admission, self._promoter = admission, promoter
        self._waiting: Heap[QueuedCall] = Heap()
        self._deferred: dict[QueuedCall, None] = {}
        self._queued = self._stuck = 0
        self._seqs = count(1)

    def __len__(self) -> int:
        """How many calls wait, the deferred ones and those not admitted included."""
        return self._queued

    @property
    def startable(self) -> int:
        """How many waiting calls could start, as far as is known."""
        return len(self._waiting) - self._stuck

    def head(self) -> QueuedCall | None:
        """The call that should run next, or None."""
        return self._waiting.first()

    def best(self, most: int) -> Iterator[QueuedCall]:
        """The first calls that wait for a slot. The queue must not change meanwhile."""
        return islice(self._waiting, most)

    def rank(self, call: QueuedCall, priority: Priority) -> None:
        """Give a call this priority, and its place if it is queued."""
        call.level, quantum_s, order = priority
        call.key = (call.level, order, next(self._seqs))
        call.quantum_ends_s = call.served_s + quantum_s
        if call.state is WAITING:
            self._waiting.put(call, call.key)
        elif call.state is NOT_ADMITTED and self._admission is not None:
            self._admission.wait(call)

    def put(self, call: QueuedCall, *, deferred: bool = False) -> None:
        """Queue a call by its priority; a ``deferred`` call waits until it is `release`d.

        A deferred call is neither admitted nor promoted, and no call is preempted for it. A call
        whose program is not admitted waits for that; a program that may not stay leaves.
        """
        self._queued += 1
        if deferred:
            call.change_state(DEFERRED)
            self._deferred[call] = None
        elif self._admission is None or self._admission.stays(call):
            self.offer(call)
        else:
            call.change_state(NOT_ADMITTED)
            self._admission.wait(call)

    def offer(self, call: QueuedCall) -> None:
        """Let a call that is counted here wait for a slot."""
        call.change_state(WAITING)
        self._waiting.put(call, call.key)
        if call.stuck:
            self._stuck += 1
        else:
            self._promoter.waits(call)

    def take(self) -> QueuedCall:
        """Take the head out, to start it or to put it back."""
        if (call := self.head()) is None:
            raise InvariantError("no call waits")
        self.discard(call)
        return call

    def discard(self, call: QueuedCall) -> bool:
        """Take a call out of the queue wherever it stands; False if it was not in it."""
        if call.state is WAITING:
            self._waiting.discard(call)
            self._stuck -= call.stuck
        elif call.state is DEFERRED:
            del self._deferred[call]
        elif call.state is NOT_ADMITTED and self._admission is not None:
            self._admission.leave(call)
        else:
            return False
        self._queued -= 1
        call.change_state(UNQUEUED)
        return True

    def release(self, ready: Callable[[QueuedCall], bool]) -> list[QueuedCall]:
        """Put the deferred calls that are ``ready`` where they belong; return them."""
        released = [call for call in self._deferred if ready(call)]
        for call in released:
            self.discard(call)
            self.put(call)
        return released
