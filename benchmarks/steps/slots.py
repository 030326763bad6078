"""One engine of the step simulator: batch slots and the real queues."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from agentrt.lab.program import LiveProgram
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import CallFinished, CallPreempted, CallStarted, StepFinished
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.records import QueuedCall


@dataclass(slots=True, eq=False)
class Job:
    """The payload of a queued call: its index in its program, and the steps that it needs."""

    live: LiveProgram
    index: int
    left: int
    settled_at: int = 0
    stamp: int = 0

    @property
    def ends_at(self) -> int:
        """The step at which the call ends if it keeps running."""
        return self.settled_at + self.left


class Clock(Protocol):
    """The part of `Steps` that keeps the time and handles ends."""

    at: int
    now: float
    step_s: float

    def when(self, step: int, action: Callable[[], None]) -> None: ...

    def touch(self, engine: Slots) -> None: ...

    def served(self, engine: Slots) -> None: ...

    def leave(self, engine: Slots, call: QueuedCall) -> None: ...


class Slots:
    """``batch`` slots that give each running call one token per step.

    As in a real engine, where preemptions have a cost, a running call is preempted only for a
    strictly better level. ``busy_steps`` is the sum of the served steps of all slots.
    """

    def __init__(self, clock: Clock, config: SchedulerConfig, policy: Policy, batch: int) -> None:
        self.core = SchedulerCore(config, policy, slots=batch)
        self.running: list[QueuedCall] = []
        self.busy_steps = 0
        self._batch = batch
        self._clock = clock
        self._preemption = config.preemption
        self._over: list[QueuedCall] = []
        self._unsorted = False
        self._wakes: set[int] = set()

    # -- who runs ----------------------------------------------------------------------

    def choose(self) -> None:
        """Promote, preempt and admit, as an engine does before a step."""
        clock = self._clock
        self.core.promote(clock.now)
        if self._unsorted:
            self.running.sort(key=_key)
            self._unsorted = False
        for call in self._victims():
            self._stop(call)
        while len(self.running) < self._batch and self.core.queue.head() is not None:
            self._start(self.core.queue.take())
        # A running call may be protected from preemption for some steps only, so choose again then.
        head = self.core.queue.head()
        if head is not None:
            if self._preemption and any(head.level < c.level for c in self.running):
                self._wake(clock.at + 1)
            starving = self.core.next_promotion(clock.now)
            if starving is not None:
                self._wake(step_of(starving, clock.step_s))

    def _wake(self, step: int) -> None:
        """Choose again at a step, even if nothing else happens then."""
        step = max(step, self._clock.at + 1)
        if step not in self._wakes:
            self._wakes.add(step)
            self._clock.when(step, lambda: self._woken(step))

    def _woken(self, step: int) -> None:
        self._wakes.discard(step)
        self._clock.touch(self)

    def _victims(self) -> list[QueuedCall]:
        head = self.core.queue.head()
        if head is None or not self.running or head.level >= self.running[-1].level:
            return []
        for call in self.running:
            if call.level > head.level:
                self._settle(call)
        self.running.sort(key=_key)
        free = self._batch - len(self.running)
        return [decision.call for decision in self.core.victims(self.running, free)]

    def _start(self, call: QueuedCall) -> None:
        self.core.handle(CallStarted(call, self._clock.now))
        self.running.append(call)
        self._unsorted = True
        job: Job = call.item
        job.settled_at = self._clock.at
        job.stamp += 1
        self._watch(call)

    def _stop(self, call: QueuedCall) -> None:
        self.running.remove(call)
        call.item.stamp += 1
        self.core.handle(CallPreempted(call, self._clock.now))
        self.core.queue.put(call)

    # -- service -----------------------------------------------------------------------

    def _watch(self, call: QueuedCall) -> None:
        """Wake up when the call ends or has spent its quantum, whichever is first."""
        job: Job = call.item
        clock = self._clock
        budget = job.left
        if not math.isinf(left := call.quantum_ends_s - call.served_s):
            budget = max(1, step_of(left, clock.step_s))
        stamp = job.stamp
        clock.when(clock.at + min(job.left, budget), lambda: self._due(call, stamp))

    def _due(self, call: QueuedCall, stamp: int) -> None:
        if stamp == call.item.stamp:
            self._over.append(call)
            self._clock.served(self)

    def serve(self) -> None:
        """End the calls whose service is over, then demote those whose quantum is spent."""
        over, self._over = sorted(self._over, key=_key), []
        for call in (call for call in over if call.item.ends_at == self._clock.at):
            self._settle(call)
            self.running.remove(call)
            self.core.handle(CallFinished(call, self._clock.now))
            self._clock.leave(self, call)
        for call in (call for call in over if call.item.left):
            self._settle(call)
            self._watch(call)

    def _settle(self, call: QueuedCall) -> None:
        """Charge a running call for the steps since it was last charged."""
        job: Job = call.item
        steps = self._clock.at - job.settled_at
        if not steps:
            return
        job.settled_at = self._clock.at
        job.left -= steps
        self.busy_steps += steps
        seconds, key = steps * self._clock.step_s, call.key
        self.core.handle(StepFinished([call.call_id], seconds, self._clock.now, steps=steps))
        if call.key is not key:
            self._unsorted = True


def step_of(seconds: float, step_s: float) -> int:
    """Return the first step that begins at ``seconds`` or later."""
    return math.ceil(seconds / step_s - 1e-9)


_key = attrgetter("key")
