"""Algorithm 1 of Agentix in one engine: queue levels, quanta, demotion, and whom to preempt.

`LevelQueues` takes the events of an engine, once each, and says which call runs next. A call's
priority is the policy's answer. A call keeps its key, (level, order, sequence), while it runs, so
that a preempted call comes back ahead of those that got the same priority after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, islice

from agentrt.errors import InvariantError
from agentrt.scheduler.admission import Capacity
from agentrt.scheduler.by_name import make_admission
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Events
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import SCANNED, Mean
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import (
    ASIDE,
    DEFERRED,
    ENDED,
    OUTSIDE,
    RUNNING,
    WAITING,
    ProgramRow,
    QueuedCall,
)

_EPSILON_S = 1e-9
"""What a quantum may lack: rounding."""
_LOOKED_AT = 64
"""Waiting calls that one step looks at to find those worth a preemption."""


class LevelQueues:
    """The calls of one engine in levels, first come, first served within a level and order.

    A call *arrives* (it is ranked), is *put* in the queue, *taken*, *begins* or is put back, is
    *charged* for each engine step, is perhaps *preempted* and put back, and is *removed*.
    ``slots`` are those of the engine's batch. With a ``capacity`` of KV cache there are ``owners``
    of its blocks, and an ``admission`` where the settings name one.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | None = None,
        *,
        slots: int = 0,
        capacity: Capacity | None = None,
    ) -> None:
        self.config = config
        self.policy = make_policy(config) if policy is None else policy
        self.learned = learned = self.policy.learned
        self.calls: dict[str, QueuedCall] = {}
        keeps = config.retention == "cost" or config.admission == "memory"
        self.learns = self.policy.learns or keeps
        self.owners = BlockOwners(learned if keeps else None)
        self.admission = None if capacity is None else make_admission(config, capacity, learned)
        self._parts: list[Events] = [] if capacity is None else [self.owners]
        if self.admission is not None:
            # Whom the owners tell is set later.
            self.admission.changed = lambda blocks: self.owners.changed(blocks)
            self._parts.append(self.admission)
        self._promoter = self.policy.promoter(slots) or Promoter()
        self._waiting: Heap[QueuedCall] = Heap()
        self._deferred: dict[QueuedCall, None] = {}
        self._queued = self._stuck = self._revision = 0
        self._lost_share = Mean()
        """The share of its computed tokens that a preempted call had to compute again."""
        self._seqs = count(1)

    # -- what happens ------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, now: float) -> QueuedCall:
        """Rank a new call. It waits from now on, but still has to be `put` in the queue."""
        if call.call_id in self.calls:
            raise InvariantError(f"call {call.call_id} is queued already")
        call.since = call.arrived_at = now
        if self.admission is None:
            call.program.member = True
        self.calls[call.call_id] = call.program.queued[call.call_id] = call
        self._enter(call, self.policy.priority(call, now))
        for part in self._parts:
            part.call_arrived(call, now)
        if self.policy.follows_program and len(call.program.queued) > 1:
            self._reprioritize(call.program.queued.values(), now)
        return call

    def call_began(self, call: QueuedCall, now: float) -> None:
        """A call was taken and runs now."""
        call.go(RUNNING)
        assert call.since is not None
        call.waited_s += now - call.since
        call.since, call.began_at = None, now
        call.gave_way_to, call.stuck = "", False
        call.began_at_step, call.began_served_s = call.steps, call.served_s
        self._promoter.began(call, now)
        for part in self._parts:
            part.call_began(call, now)
        if call.preemptions == 0:
            self._reprioritize(self.policy.call_left(call), now)

    def computing(self, call: QueuedCall, lost_tokens: int = 0) -> None:
        """A call that began computes its context, of which it had ``lost_tokens`` computed before.

        Until its `first_token` it keeps its level and is not preempted for a slot: all that it has
        computed could be lost. An engine without a prefill phase never says so.
        """
        call.settled_at_s, call.lost_tokens = math.inf, lost_tokens
        if call.preemptions and call.computed_tokens:
            self._lost_share.add(lost_tokens / call.computed_tokens)

    def first_token(self, call: QueuedCall) -> None:
        """A call has put out its first token since it began; outputs survive a preemption.

        If it had to compute again what a preemption had lost, it is safe until it was served as
        long again as that took. So what a call loses to preemptions for a slot is at most one
        prefill more than the service that it keeps. A call that has lost nothing yet is safe for
        the part of that time that preempted calls of this engine usually lose.
        """
        share = 1.0 if call.lost_tokens else self._lost_share.value
        call.settled_at_s = call.served_s + share * (call.served_s - call.began_served_s)

    def call_preempted(self, call: QueuedCall, now: float, *, for_memory: bool = False) -> None:
        """A running call stopped, and has to be `put` back."""
        call.go(ASIDE)
        call.since = now
        call.preemptions += 1
        for part in self._parts:
            part.call_preempted(call, now, for_memory=for_memory)

    def remove(self, call: QueuedCall, now: float) -> None:
        """A call finished or was aborted, in whatever state. Its program's row hears of it next,
        and then `call_ended` lets the policy and the parts look at that row.
        """
        if self.calls.pop(call.call_id, None) is None:
            return
        self.discard(call)
        if call.since is not None:
            call.waited_s += now - call.since
            call.since = None
            if call.steps == 0:
                self._reprioritize(self.policy.call_left(call), now)
        self._promoter.left(call)
        del call.program.queued[call.call_id]
        call.go(ENDED)

    def call_ended(self, call: QueuedCall, now: float) -> None:
        """A removed call is in its program's row by now: its other calls' priorities follow."""
        if self.learns and 0 < call.prompt_tokens <= call.computed_tokens:  # else it was cancelled
            outputs = call.computed_tokens - call.prompt_tokens
            self.learned.call_ended(call.program.kind, outputs, call.max_tokens)
        for part in self._parts:
            part.call_ended(call, now)
        self._promoter.program_changed(call.program)
        if self.policy.follows_program:
            self._reprioritize(call.program.queued.values(), now)
        if call.program.ended and not call.program.queued:
            self.program_lost(call.program, now)  # what was noted of it since its end can go

    def interrupt_began(self, row: ProgramRow, kind: str, name: str, now: float) -> None:
        """A program waits for a ``tool`` of this name, or for a ``human``."""
        for part in self._parts:
            part.interrupt_began(row, kind, name, now)

    def interrupt_ended(self, row: ProgramRow, now: float) -> None:
        """It was answered."""
        for part in self._parts:
            part.interrupt_ended(row, now)

    def program_ended(self, program: ProgramRow, now: float) -> None:
        """A program ended: the policy may learn from it, if it ever ran."""
        if not program.service_s:
            self.program_lost(program, now)
            return
        for part in self._parts:
            part.program_ended(program, now)
        self.policy.program_ended(program, now)

    def program_lost(self, program: ProgramRow, now: float) -> None:
        """A program was dropped from the table without an end."""
        for part in self._parts:
            part.program_ended(program, now)
        self.policy.program_lost(program)

    # -- service -----------------------------------------------------------------------

    def charge_step(
        self, call_ids: Collection[str], seconds: float, now: float, tokens: int = 0, steps: int = 1
    ) -> list[QueuedCall]:
        """These calls ran for so many seconds, in a step of so many ``tokens`` (0: unknown).

        Or in several ``steps``. Returns those that it moved to another place in the order.
        """
        moved: list[QueuedCall] = []
        for call in map(self.calls.get, call_ids):
            if call is None:
                continue
            call.served_s = served = call.served_s + seconds
            call.program.attained_s += seconds
            call.steps += steps
            if call.promoted:
                self._promoter.charged(call, seconds)
            if (
                served >= call.quantum_ends_s - _EPSILON_S
                and served >= call.settled_at_s
                and self._quantum_spent(call, now)
            ):
                moved.append(call)
            if call.state is WAITING:  # it was preempted with this step in flight
                self._promoter.waits(call)
        if tokens and self.learns:
            self.learned.costs.step(seconds, tokens, len(call_ids))
        return moved

    def _quantum_spent(self, call: QueuedCall, now: float) -> bool:
        """Rank a call again, or give it its quantum anew. True if it has another place now."""
        if self._promoter.keeps and call.promoted:
            call.quantum_ends_s = call.served_s + self._promoter.priority.quantum_s
            return False
        before = call.level
        self._enter(call, self.policy.on_quantum_expired(call, now))
        call.demotions += call.level > before
        return True

    # -- the waiting calls, in order ---------------------------------------------------

    def __len__(self) -> int:
        """How many calls wait, the deferred ones and those outside included."""
        return self._queued

    def head(self) -> QueuedCall | None:
        """The call that should run next, or None."""
        return self._waiting.first()

    def take(self) -> QueuedCall:
        """Take the head out, to start it or to put it back."""
        if (call := self.head()) is None:
            raise InvariantError("no call waits")
        self.discard(call)
        return call

    def put(self, call: QueuedCall, *, deferred: bool = False) -> None:
        """Queue a waiting call by its priority; ``deferred``, only from when it is `release`d.

        A deferred call is neither let in nor promoted, and no other call is preempted for it.
        """
        self._queued += 1
        if deferred:
            call.go(DEFERRED)
            self._deferred[call] = None
        elif self.admission is None or self.admission.goes_on(call):
            self._offer(call)
        else:
            call.go(OUTSIDE)
            self.admission.wait(call)

    def put_back(self, call: QueuedCall, now: float) -> None:
        """Queue a call again that was taken and could not start; it is `stuck` until it does.

        A stuck call is no reason to preempt another, does not count as running when programs are
        admitted, and gives a promotion back, so that it does not keep others from theirs.
        """
        call.stuck = True
        if call.promoted:
            self._promoter.left(call)
            call.promoted = False
            self._enter(call, self.policy.priority(call, now))
        self.put(call)

    def discard(self, call: QueuedCall) -> bool:
        """Take a call out of the queue wherever it stands; False if it was not in it."""
        if call.state is WAITING:
            self._waiting.discard(call)
            self._stuck -= call.stuck
        elif call.state is DEFERRED:
            del self._deferred[call]
        elif call.state is OUTSIDE and self.admission is not None:
            self.admission.leave(call)
        else:
            return False
        self._queued -= 1
        call.go(ASIDE)
        return True

    def release(self, ready: Callable[[QueuedCall], bool]) -> None:
        """Put the deferred calls that are ``ready`` where they belong."""
        for call in [call for call in self._deferred if ready(call)]:
            self.discard(call)
            self.put(call)

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        """Put those in the queue that may come in, beside so many ``running``: these calls."""
        came: list[QueuedCall] = []
        admission = self.admission
        while admission and (calls := admission.let_in(now, running + self._startable)):
            for call in calls:
                self._offer(call)
            came += calls
        return came

    def in_order(self) -> list[QueuedCall]:
        """All waiting calls, best first. O(n log n): for people and tests."""
        waiting = (call for call in self.calls.values() if call.queued)
        return sorted(waiting, key=lambda call: call.key)

    # -- anti-starvation and preemption ------------------------------------------------

    def promote(self, now: float) -> list[QueuedCall]:
        """Move up those calls that waited too long, by the rule that goes with the policy.

        Before that, rank all waiting calls again if the policy has learned much
        (`Policy.revision`).
        """
        if self.policy.revision != self._revision:
            self._revision = self.policy.revision
            for waiting in self.calls.values():
                if waiting.since is not None and not waiting.promoted:
                    self._enter(waiting, self.policy.priority(waiting, now))
        promoted = []
        while (call := self._promoter.promote(now)) is not None:
            call.promoted = True
            call.promotions += 1
            self._enter(call, self._promoter.priority)
            promoted.append(call)
        return promoted

    def next_promotion(self, now: float) -> float | None:
        """When `promote` will next have something to do, if nothing happens till then; or None."""
        return self._promoter.next_moment(now)

    def victims(
        self,
        running: Sequence[QueuedCall],
        free_slots: int,
        free_blocks: int = 0,
        blocks_needed: Callable[[QueuedCall], int] = lambda call: 0,
        spared: Callable[[QueuedCall], bool] = lambda call: False,
        can_start: Callable[[QueuedCall], bool] = lambda call: True,
    ) -> list[tuple[QueuedCall, QueuedCall]]:
        """Which running calls to preempt in this step, each with the waiting call that needs its
        slot.

        ``running`` is sorted by key, the worst last. Only a call of a strictly worse level is
        preempted. It loses its slot of the batch, and is never preempted for its memory: a waiting
        call that does not fit into the ``free_blocks`` waits, since what is evicted has to be
        computed again, which delays all others too. Running calls that are ``spared`` or not yet
        `settled` are passed over, and so are waiting calls that are stuck or not ``can_start``.
        """
        config, victims = self.config, list[tuple[QueuedCall, QueuedCall]]()
        if not (config.preemption and running) or free_slots >= self._startable:
            return victims
        pool = (
            call
            for call in reversed(running)
            if call.residency_steps >= config.min_residency_steps
            and call.settled
            and not spared(call)
        )
        for head in islice(self._waiting, _LOOKED_AT):
            if len(victims) >= config.max_preemptions_per_step or head.level >= running[-1].level:
                break
            if head.stuck or not can_start(head):
                continue
            free_blocks -= blocks_needed(head)
            if free_blocks < 0:
                break
            if free_slots > 0:
                free_slots -= 1
                continue
            victim = next(pool, None)
            if victim is None or victim.level <= head.level:
                break
            victims.append((victim, head))
        return victims

    # -- inside ------------------------------------------------------------------------

    def _enter(self, call: QueuedCall, priority: Priority) -> None:
        call.level, quantum_s, order = priority
        call.key = (call.level, order, next(self._seqs))
        call.quantum_ends_s = call.served_s + quantum_s
        if call.state is WAITING:
            self._waiting.put(call, call.key)
        elif call.state is OUTSIDE and self.admission is not None:
            self.admission.wait(call)

    def _reprioritize(self, calls: Iterable[QueuedCall], now: float) -> None:
        """Ask for the priority of a few of these again: of the first that wait."""
        left = SCANNED
        for call in calls:
            # Simulated replicas share the program's one record: the others' calls are not here.
            if call.since is None or call.promoted or call.call_id not in self.calls:
                continue
            priority = self.policy.priority(call, now)
            if (priority.level, priority.order) != call.key[:2]:
                self._enter(call, priority)
            left -= 1
            if not left:
                return

    @property
    def _startable(self) -> int:
        """How many waiting calls could start, as far as is known."""
        return len(self._waiting) - self._stuck

    def _offer(self, call: QueuedCall) -> None:
        call.go(WAITING)
        self._waiting.put(call, call.key)
        if call.stuck:
            self._stuck += 1
        else:
            self._promoter.waits(call)
