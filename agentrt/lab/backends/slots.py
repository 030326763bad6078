"""One simulated engine of the step simulator: batch slots, and the real queues before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from agentrt.lab.backends.live import Job
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.victims import Room

SERVED, CALL, PROGRAM = range(3)
"""What comes first at one moment: service that is over, calls after gaps, programs."""


class Clock(Protocol):
    """Who keeps the time, and hears of ends. ``at`` is the step, ``now`` its second."""

    at: int
    now: float
    step_s: float

    def when(self, step: int, kind: int, what: Callable[[], None]) -> None:
        """Let something happen at a step."""

    def touch(self, engine: Slots) -> None:
        """At this moment the engine has to choose who runs."""

    def served(self, engine: Slots) -> None:
        """At this moment service of the engine's calls is over."""

    def call_ended(self, engine: Slots, call: QueuedCall) -> None:
        """A call has left the engine."""


class Slots:
    """``batch`` slots that give each running call one token a step."""

    def __init__(
        self, clock: Clock, config: SchedulerConfig, policy: Policy, batch: int, index: int = 0
    ) -> None:
        self.index = index
        self.batch = batch
        self.queues = LevelQueues(config, policy, slots=batch)
        self.running: list[QueuedCall] = []
        self.busy_steps = 0
        """Steps that its slots have served, all together."""
        self._clock = clock
        self._preemption = config.preemption
        self._over: list[QueuedCall] = []
        self._unsorted = False
        self._wakes: set[int] = set()

    # -- who runs ----------------------------------------------------------------------

    def choose(self) -> None:
        """Promote, preempt and admit, as an engine does before a step."""
        clock = self._clock
        self.queues.promote(clock.now)
        if self._unsorted:
            self.running.sort(key=_key)
            self._unsorted = False
        self._make_room()
        while len(self.running) < self.batch and self.queues.head() is not None:
            self._start(self.queues.take())
        # A running call may be safe from preemption for some steps only: look again.
        head = self.queues.head()
        if head is not None:
            if self._preemption and any(head.level < c.level for c in self.running):
                self._wake(clock.at + 1)
            starving = self.queues.next_promotion(clock.now)
            if starving is not None:
                self._wake(step_of(starving, clock.step_s))

    def _wake(self, step: int) -> None:
        """Choose again at a step at which nothing else may happen."""
        step = max(step, self._clock.at + 1)
        if step not in self._wakes:
            self._wakes.add(step)
            self._clock.when(step, SERVED, lambda: self._woken(step))

    def _woken(self, step: int) -> None:
        self._wakes.discard(step)
        self._clock.touch(self)

    def _make_room(self) -> None:
        head = self.queues.head()
        if head is None or not self.running or head.level >= self.running[-1].level:
            return
        for call in self.running:
            if call.level > head.level:
                self._settle(call)
        self.running.sort(key=_key)
        free = self.batch - len(self.running)
        for call in self.queues.victims(self.running, free, 1, _ROOM):
            self.running.remove(call)
            call.item.stamp += 1
            self.queues.stop(call, self._clock.now)
            self.queues.put(call)

    def _start(self, call: QueuedCall) -> None:
        self.queues.start(call, self._clock.now)
        self.running.append(call)
        self._unsorted = True
        job: Job = call.item
        job.settled_at = self._clock.at
        job.stamp += 1
        self._watch(call)

    # -- service -----------------------------------------------------------------------

    def _watch(self, call: QueuedCall) -> None:
        """Wake up when the call ends, or has used up its budget, whichever is first."""
        job: Job = call.item
        clock = self._clock
        budget = job.left
        if not math.isinf(call.quantum_left):
            budget = max(1, step_of(call.quantum_left, clock.step_s))
        stamp = job.stamp
        clock.when(clock.at + min(job.left, budget), SERVED, lambda: self._due(call, stamp))

    def _due(self, call: QueuedCall, stamp: int) -> None:
        if stamp == call.item.stamp:
            self._over.append(call)
            self._clock.served(self)

    def serve(self) -> None:
        """End the calls whose service is over, then let those sink whose budget is."""
        over, self._over = sorted(self._over, key=_key), []
        for call in (call for call in over if call.item.ends_at == self._clock.at):
            self._settle(call)
            self.running.remove(call)
            self.queues.remove(call, self._clock.now)
            self._clock.call_ended(self, call)
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
        if self.queues.charge(call, steps * self._clock.step_s, self._clock.now, steps):
            self._unsorted = True


def step_of(seconds: float, step_s: float) -> int:
    """The first step that begins at these seconds or later."""
    return math.ceil(seconds / step_s - 1e-9)


_key = attrgetter("key")
_ROOM = Room()
