"""Algorithm 1 of Agentix: queue levels, quanta, demotion, promotion, and whom to preempt.

`LevelQueues` is the mechanism; a call's priority is the policy's answer. A call keeps its
key, (level, order, sequence), while it runs, so that a preempted call comes back ahead of
those that got the same priority after it. It is long because every operation keeps the same
four structures in step: calls, levels, waiting calls and starvation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from agentrt.errors import InvariantError
from agentrt.scheduler.admission.base import Admission
from agentrt.scheduler.call import Key, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.policies.adaptive.lane import CHARGED_EVERY_S, Lane
from agentrt.scheduler.policies.base import Policy, Priority
from agentrt.scheduler.starvation import Starvation
from agentrt.scheduler.table import ProgramRow
from agentrt.scheduler.victims import Room, choose_victims

_EPSILON_S = 1e-9
_SLACK = 64
_REPRIORITIZED = 32
"""How many of a program's waiting calls get a new priority when one of its calls ends."""
LANE = Priority(-1_000_000_000, CHARGED_EVERY_S)
"""That of the lane's calls: before all others, for as long as they run."""


class LevelQueues:
    """The calls of one engine in levels, first come, first served within a level and order.

    A call is *added* (ranked), *put* in the queue, *taken* and *started*, *charged* for
    each engine step, perhaps *stopped* (preempted) and *put* back, and *removed*. A call
    that was taken can also be put back, for an engine that looks and changes its mind.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | None = None,
        *,
        slots: int = 0,
        admission: Admission | None = None,
    ) -> None:
        self.config = config
        self.admission = admission
        self.policy = make_policy(config) if policy is None else policy
        self._heap: list[tuple[Key, QueuedCall]] = []
        self._deferred: list[QueuedCall] = []
        self._seqs = count(1)
        self._waiting = 0
        self._promoted_waiting = 0
        self._starvation = Starvation(config.beta)
        # An admission that has a line of its own lets in the oldest at the rate of its members.
        lined = admission is not None and admission.lined
        self._lane = Lane(config.lane if self.policy.lane and not lined else 0.0, slots)
        self._by_program: dict[str, dict[str, QueuedCall]] = {}
        self.calls: dict[str, QueuedCall] = {}

    # -- the life of a call ------------------------------------------------------------

    def add(
        self,
        call_id: str,
        program: ProgramRow,
        item: Any,
        path_s: float | None,
        now: float,
        node: str = "",
        prompt_tokens: int = 0,
    ) -> QueuedCall:
        """Rank a new call. It waits from now on, but still has to be `put` in the queue."""
        if call_id in self.calls:
            raise InvariantError(f"call {call_id} is queued already")
        call = QueuedCall(
            call_id, program, item, path_s, now, node, prompt_tokens, since=now, debt_since=now
        )
        self.calls[call_id] = call
        if self.policy.follows_program:
            self._by_program.setdefault(program.program_id, {})[call_id] = call
        self._enter(call, self.policy.priority(call, now))
        self._watch(call)
        return call

    def start(self, call: QueuedCall, now: float) -> None:
        """A call was taken and runs now."""
        if call.since is None or call.queued:
            raise InvariantError(f"call {call.call_id} starts but was not taken from its queue")
        call.waited_s += now - call.since
        call.debt_waited_s += now - call.debt_since
        call.since, call.began_at = None, now
        call.gave_way_to = ""
        call.began_at_step = call.steps
        if call.promoted:
            self._settle_promotion(call)
        if call.preemptions == 0:
            self._reprioritize(self.policy.call_left(call), now)

    def stop(self, call: QueuedCall, now: float, *, to_tail: bool = False) -> None:
        """A running call was preempted, and has to be `put` back: at its turn, or ``to_tail``."""
        if call.since is not None:
            raise InvariantError(f"call {call.call_id} is preempted but does not run")
        call.since = call.debt_since = now
        call.preemptions += 1
        if to_tail:
            call.key = (*call.key[:2], next(self._seqs))
        self._watch(call)

    def charge(self, call: QueuedCall, seconds: float, now: float, steps: int = 1) -> bool:
        """A call ran for so many seconds, in one engine step or several. True if that moved it."""
        call.served_s += seconds
        call.program.attained_s += seconds
        call.steps += steps
        return self._charged(call, seconds, now)

    def charge_step(self, call_ids: Iterable[str], seconds: float, now: float) -> list[QueuedCall]:
        """`charge` for all calls in a step, written out since it is so frequent. Whom it moved."""
        moved: list[QueuedCall] = []
        levelled = self.policy.levelled
        for call in map(self.calls.get, call_ids):
            if call is None:
                continue
            call.served_s = served = call.served_s + seconds
            call.program.attained_s += seconds
            call.steps += 1
            # Without levels there are no quanta, and nobody gives way.
            if (
                levelled
                and (
                    served >= call.quantum_ends_s - _EPSILON_S
                    or call.in_lane
                    or call.since is not None
                )
                and self._charged(call, seconds, now)
            ):
                moved.append(call)
        return moved

    def _charged(self, call: QueuedCall, seconds: float, now: float) -> bool:
        """What follows from a call's charge. True if its place changed."""
        if call.in_lane:
            self._lane.charge(seconds)
        spent = call.served_s >= call.quantum_ends_s - _EPSILON_S
        if spent and call.in_lane:
            call.quantum_ends_s = call.served_s + LANE.quantum_s
        elif spent:
            before = call.level
            self._enter(call, self.policy.on_quantum_expired(call, now))
            call.demotions += call.level > before
        if call.since is not None:
            # It was preempted with this step in flight: its deadline moved.
            self._watch(call)
        return spent and not call.in_lane

    def remove(self, call: QueuedCall, now: float) -> None:
        """A call finished or was aborted, in whatever state."""
        if self.calls.pop(call.call_id, None) is None:
            return
        if call.since is not None:
            call.waited_s += now - call.since
            call.since = None
            if call.steps == 0:
                self._reprioritize(self.policy.call_left(call), now)
        if call.promoted:
            self._settle_promotion(call)
        if call.in_lane:
            self._lane.leave(call)
        self.discard(call)
        self._starvation.forget(call)
        self._by_program.get(call.program.program_id, {}).pop(call.call_id, None)

    def call_ended(self, call: QueuedCall, now: float) -> None:
        """A removed call is in its program's row by now: its other calls' priorities follow."""
        self._starvation.refresh(call.program)
        self._reprioritize(self._by_program.get(call.program.program_id, {}).values(), now)

    def program_ended(self, program: ProgramRow, now: float) -> None:
        """A program ended: the policy may learn from it."""
        self._by_program.pop(program.program_id, None)
        self.policy.program_ended(program, now)

    def program_lost(self, program: ProgramRow) -> None:
        """A program was dropped from the table without an end."""
        self._by_program.pop(program.program_id, None)
        self.policy.program_lost(program)

    # -- the waiting calls, in order ---------------------------------------------------

    def __len__(self) -> int:
        """How many calls wait, the deferred ones included."""
        return self._waiting

    def head(self) -> QueuedCall | None:
        """The call that should run next, or None."""
        heap = self._heap
        while heap:
            key, call = heap[0]  # `_is_current`, written out since it is so frequent
            if call.queued and key is call.key and not (call.deferred or call.held):
                return call
            heapq.heappop(heap)
        return None

    def take(self) -> QueuedCall:
        """Take the head out, to start it or to put it back."""
        call = self.head()
        if call is None:
            raise InvariantError("no call waits")
        heapq.heappop(self._heap)
        call.queued = False
        self._waiting -= 1
        self._tidy()
        return call

    def put(self, call: QueuedCall, *, deferred: bool = False, held: bool = False) -> None:
        """Queue a waiting call by its priority.

        ``deferred``, it is counted but not offered; ``held``, not before its program may come in.
        """
        if call.queued:
            raise InvariantError(f"call {call.call_id} is queued twice")
        call.queued, call.held = True, held
        self._waiting += 1
        if deferred:
            call.deferred = True
            self._deferred.append(call)
        else:
            self._offer(call)
        self._lane.line_up(call)

    def defer(self) -> None:
        """Offer the head no longer, until it is `release`d. It is there: somebody has looked."""
        call = heapq.heappop(self._heap)[1]
        call.deferred = True
        self._deferred.append(call)

    def discard(self, call: QueuedCall) -> bool:
        """Take a call out of the queue wherever it stands; False if it was not in it."""
        if not call.queued:
            return False
        call.queued = False
        self._waiting -= 1
        if call.deferred:
            call.deferred = False
            self._deferred.remove(call)
        if call.held and self.admission is not None:
            self.admission.leave(call)
        self._tidy()
        return True

    def release(self, ready: Callable[[QueuedCall], bool]) -> None:
        """Offer the deferred calls that are ``ready``."""
        if not self._deferred:
            return
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            if ready(call):
                call.deferred = False
                self._offer(call)
            else:
                self._deferred.append(call)

    def let_in(self, now: float, running: int) -> None:
        """Offer the calls of the programs that may come in; so many are ``running`` already."""
        if (admission := self.admission) is None:
            return
        while calls := admission.let_in(now, running + self._inside(admission)):
            for call in calls:
                if not call.deferred:
                    self._offer(call)

    def in_order(self) -> list[QueuedCall]:
        """All waiting calls, best first. O(n log n): for people and tests."""
        return sorted(call for call in self.calls.values() if call.queued)

    # -- anti-starvation and preemption ------------------------------------------------

    def promote(self, now: float) -> list[QueuedCall]:
        """Move starved calls to Q_1, those that starve longest first (Alg. 1, lines 24-30).

        And admit to the lane those that it has room for.
        """
        promoted = []
        while (call := self._lane.admit(now)) is not None:
            self._enter(call, LANE)
            promoted.append(call)
        while self._promoted_waiting < self.config.max_promoted:
            call = self._starvation.pop_starved(now)
            if call is None:
                break
            call.promoted_at_s, call.debt_waited_s = call.served_s, 0.0
            call.debt_since = now
            call.promotions += 1
            call.promoted = True
            self._promoted_waiting += 1
            self._enter(call, Priority(0, self.config.level_quanta[0]))
            promoted.append(call)
        return promoted

    def next_promotion(self, now: float) -> float | None:
        """When `promote` will next have something to do, if nothing happens till then; or None."""
        moments = [self._lane.next_moment(now)]
        if self._promoted_waiting < self.config.max_promoted:
            moments.append(self._starvation.next_moment())
        return min((moment for moment in moments if moment is not None), default=None)

    def victims(
        self, running: Sequence[QueuedCall], free_slots: int, free_blocks: int, room: Room
    ) -> list[QueuedCall]:
        """Which running calls to preempt so that better waiting calls run in this step.

        ``running`` is sorted by key, the worst last; `choose_victims` has the rules.
        """
        head = self.head()
        if not self.config.preemption or head is None or not running:
            return []
        if head.level >= running[-1].level:
            return []
        seen: list[tuple[Key, QueuedCall]] = []
        try:
            heads = self._heads(seen)
            return choose_victims(heads, running, free_slots, free_blocks, room, self.config)
        finally:
            for entry in seen:
                heapq.heappush(self._heap, entry)

    def check_integrity(self) -> None:
        """For tests. Raises `InvariantError` on a state that must not be."""
        queued = [c for c in self.calls.values() if c.queued]
        if len(queued) != self._waiting:
            raise InvariantError(f"{self._waiting} calls counted as waiting, {len(queued)} are")
        offered = {id(entry[1]) for entry in self._heap if _is_current(entry)}
        for call in queued:
            if call.since is None:
                raise InvariantError(f"call {call.call_id} runs and is queued")
            if not (call.deferred or call.held) and id(call) not in offered:
                raise InvariantError(f"call {call.call_id} waits but is not offered")
        if self._promoted_waiting != sum(c.promoted for c in self.calls.values()):
            raise InvariantError("promoted calls are miscounted")
        self._starvation.check_integrity(self.calls)

    # -- inside ------------------------------------------------------------------------

    def _enter(self, call: QueuedCall, priority: Priority) -> None:
        call.level, quantum_s, order = priority
        call.key = (call.level, order, next(self._seqs))
        call.quantum_ends_s = call.served_s + quantum_s
        if call.queued and not call.deferred:
            self._offer(call)

    def _offer(self, call: QueuedCall) -> None:
        """Put a waiting call into the heap, by its key, or among those outside."""
        if call.held and self.admission is not None:
            self.admission.wait(call)
        else:
            heapq.heappush(self._heap, (call.key, call))
            self._tidy()

    def _tidy(self) -> None:
        """Drop what is out of date once it outweighs what waits: it holds on to ended calls."""
        if len(self._heap) > 2 * self._waiting + _SLACK:
            self._heap = [entry for entry in self._heap if _is_current(entry)]
            heapq.heapify(self._heap)
        self._lane.tidy(self._waiting)

    def _reprioritize(self, calls: Iterable[QueuedCall], now: float) -> None:
        movable = (c for c in calls if c.since is not None and not (c.promoted or c.in_lane))
        for call in islice(movable, _REPRIORITIZED):
            priority = self.policy.priority(call, now)
            if (priority.level, priority.order) != (call.level, call.order):
                self._enter(call, priority)

    def _watch(self, call: QueuedCall) -> None:
        # A call in Q_1 cannot be promoted any further.
        if call.level > 0 and self.policy.starving:
            self._starvation.watch(call)

    def _inside(self, admission: Admission) -> int:
        return 0 if self.head() is None else self._waiting - admission.held

    def _settle_promotion(self, call: QueuedCall) -> None:
        call.promoted = False
        self._promoted_waiting -= 1

    def _heads(self, seen: list[tuple[Key, QueuedCall]]) -> Iterator[QueuedCall]:
        """The waiting calls best first; entries of those ``seen`` are taken out of the heap."""
        while (call := self.head()) is not None:
            seen.append(heapq.heappop(self._heap))
            yield call


def _is_current(entry: tuple[Key, QueuedCall]) -> bool:
    """Whether a heap's entry still stands for its call: a call has another key once it moved."""
    key, call = entry
    return call.queued and key is call.key and not (call.deferred or call.held)
