"""Algorithm 1 of Agentix as slowly and plainly as it can be said, to compare the queues with.

There are no heaps and no stamps: lists are searched, and what can be computed again is computed
again. A call stands in its level's list from its arrival to its end, whether it waits or runs. So a
preempted call comes back ahead of the calls that came to its level after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentrt.scheduler import SchedulerConfig


@dataclass(eq=False)
class Program:
    """A program's row in the process table of Algorithm 1."""

    service_s: float = 0.0
    path_s: float = 0.0
    waiting_s: float = 0.0


@dataclass(eq=False)
class Call:
    """A call. The list that contains the call is its level."""

    name: str
    program: Program
    path_s: float | None
    since: float | None
    level: int = 0
    left_s: float = 0.0
    deferred: bool = False
    promoted: bool = False
    served_s: float = 0.0
    waited_s: float = 0.0
    debt_served_s: float = 0.0
    debt_waited_s: float = 0.0
    debt_since: float = 0.0
    steps: int = 0


Rank = Callable[[Call], float]

RANKS: dict[str, Rank] = {
    "mlfq": lambda call: 0.0,
    "plas": lambda call: call.program.service_s,
    "atlas-scalar": lambda call: call.program.path_s,
    "atlas": lambda call: call.program.path_s if call.path_s is None else call.path_s,
}
"""What a policy ranks a new call by, in seconds of attained service."""


@dataclass
class Reference:
    """The levels of one engine, fed with the same events as the real queues."""

    config: SchedulerConfig
    levels: list[list[Call]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.levels = [[] for _ in self.config.level_quanta]

    # -- events ------------------------------------------------------------------------

    def arrive(self, call: Call) -> None:
        """Line 12: the level whose range holds the call's rank."""
        rank, low = RANKS[self.config.policy](call), 0.0
        for level, quantum in enumerate(self.config.level_quanta):
            if low <= rank < low + quantum:
                self._enter(call, level)
            low += quantum

    def start(self, call: Call, now: float) -> None:
        assert call.since is not None
        call.waited_s += now - call.since
        call.debt_waited_s += now - call.debt_since
        call.since, call.promoted, call.steps = None, False, 0

    def stop(self, call: Call, now: float, *, defer: bool = False) -> None:
        """A preemption. The call keeps its place in its level."""
        call.since = call.debt_since = now
        call.deferred = defer

    def serve(self, call: Call, seconds: float) -> None:
        """Lines 20-23: a call whose quantum is used up goes to the tail of the next level."""
        call.served_s += seconds
        call.debt_served_s += seconds
        call.left_s -= seconds
        call.steps += 1
        if call.left_s <= 0:
            self._enter(call, min(call.level + 1, len(self.levels) - 1))

    def end(self, call: Call, now: float) -> None:
        """Lines 1-7 and 16-19: the table gets what the call used in its whole life."""
        if call.since is not None:
            call.waited_s += now - call.since
        self.levels[call.level].remove(call)
        program = call.program
        before = program.path_s if call.path_s is None else call.path_s
        program.path_s = max(program.path_s, before + call.served_s)
        program.service_s += call.served_s
        program.waiting_s += call.waited_s

    def promote(self, call: Call, now: float) -> None:
        """Lines 26-30: to the tail of Q_1, its own waiting and service forgotten."""
        call.debt_served_s = call.debt_waited_s = 0.0
        call.debt_since, call.promoted = now, True
        self._enter(call, 0)

    def _enter(self, call: Call, level: int) -> None:
        for calls in self.levels:
            if call in calls:
                calls.remove(call)
        self.levels[level].append(call)
        call.level, call.left_s = level, self.config.level_quanta[level]

    # -- questions ---------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """All calls, best first."""
        return [call for level in self.levels for call in level]

    def waiting(self) -> list[Call]:
        """The calls that may run next, best first."""
        return [call for call in self.calls() if call.since is not None and not call.deferred]

    def running(self) -> list[Call]:
        """The calls that run, best first."""
        return [call for call in self.calls() if call.since is None]

    def overdue_s(self, call: Call, now: float) -> float:
        """Line 26: by how much the program's waiting exceeds β times its service.

        Both include the call's own time since its last promotion.
        """
        waited = call.program.waiting_s + call.debt_waited_s + now - call.debt_since
        return waited - self.config.beta * (call.program.service_s + call.debt_served_s)

    def starving(self, now: float) -> list[Call]:
        """The waiting calls below Q_1 that are to be promoted, the most overdue first."""
        below = [call for call in self.calls() if call.since is not None and call.level > 0]
        starved = [call for call in below if self.overdue_s(call, now) >= 0]
        return sorted(starved, key=lambda call: -self.overdue_s(call, now))

    def promotion_is_open(self) -> bool:
        """Whether fewer promoted calls wait than the maximum."""
        return sum(call.promoted for call in self.calls()) < self.config.max_promoted

    def next_promotion(self, now: float) -> float | None:
        """The time at which the first waiting call will starve if nothing else happens."""
        below = [call for call in self.calls() if call.since is not None and call.level > 0]
        if not self.promotion_is_open() or not below:
            return None
        return min(now - self.overdue_s(call, now) for call in below)

    def victims(
        self, slots: int, blocks: int, size: Callable[[Call], int], spared: set[str]
    ) -> list[Call]:
        """The preempted calls: for each waiting call without a free slot, the worst running call.

        That call must be of a worse level, and neither newly started nor spared. It gives up its
        slot and no memory: no call is preempted for a call that does not fit into the free blocks,
        nor for any call behind that one.
        """
        safe = self.config.min_running_steps
        pool = [c for c in self.running() if c.steps >= safe and c.name not in spared]
        chosen: list[Call] = []
        for call in self.waiting() if self.config.preemption else []:
            blocks -= size(call)
            if blocks < 0 or len(chosen) >= self.config.max_preemptions_per_step:
                break
            if slots < 1:
                if not pool or pool[-1].level <= call.level:
                    break
                chosen.append(pool.pop())
                slots += 1
            slots -= 1
        return chosen
