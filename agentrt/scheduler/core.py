"""The scheduler of one engine as a state machine: events in, a plan for each step out.

Algorithm 1 of Agentix (queue levels, quanta, demotion, promotion), extended by admission to the KV
cache. `SchedulerCore` is pure: it knows nothing of vLLM, and time comes with the events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, assert_never

from agentrt.errors import InvariantError
from agentrt.scheduler.admission import Capacity
from agentrt.scheduler.by_name import make_admission
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import (
    CallAdmitted,
    CallArrived,
    CallEvent,
    CallFinished,
    CallPreempted,
    CallReranked,
    CallStarted,
    Event,
    FirstToken,
    InterruptEnded,
    InterruptStarted,
    Listener,
    Part,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.learned import SCANNED, Mean
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.promotion import Promoter
from agentrt.scheduler.queues import CallQueue
from agentrt.scheduler.records import ENDED, RUNNING, UNQUEUED, WAITING, EngineProgram, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramTotals

_EPSILON_S = 1e-9
"""What a quantum may lack: rounding."""
_LOOKED_AT = 64
"""Waiting calls that one step looks at to find those worth a preemption."""


class Engine(Protocol):
    """What `SchedulerCore.plan_step` asks of the engine. Blocks are those of the KV cache."""

    def may_be_offered(self, call: QueuedCall) -> bool:
        """Whether a deferred call can be started now."""

    def free_slots(self) -> int:
        """Slots of the batch that no running call holds."""

    def free_blocks(self) -> int:
        """Blocks that can be handed out."""

    def blocks_needed(self, call: QueuedCall, free: int) -> int:
        """Blocks that a waiting call takes of so many ``free`` ones."""

    def can_start(self, call: QueuedCall) -> bool:
        """Whether nothing but a slot and blocks keeps a waiting call from running."""

    def may_preempt(self, call: QueuedCall) -> bool:
        """Whether preempting a running call frees its slot at once, and is worth it."""

    def running_needs(self) -> tuple[int, int]:
        """Tokens of the next step, and free blocks, that running calls take first."""

    def step_tokens(self) -> int:
        """Tokens that a step can have."""


class Preempt(NamedTuple):
    """A decision: this running call gives its slot to the ``better`` waiting call."""

    call: QueuedCall
    better: QueuedCall


class StepPlan(NamedTuple):
    """What `SchedulerCore.plan_step` decided, in the order in which it decided it."""

    released: Sequence[QueuedCall]
    """Deferred calls that the engine can start now."""
    promoted: Sequence[QueuedCall]
    """Calls that waited too long, and go before the policy's order."""
    admitted: Sequence[QueuedCall]
    """Calls of programs that may use the KV cache from now on."""
    preempted: Sequence[Preempt]
    """Running calls that give way: the engine has yet to stop them."""


class SchedulerCore:
    """The calls and programs of one engine, and who runs next.

    ``slots`` are those of the engine's batch. With a ``capacity`` of KV cache, ``owners`` account
    for its blocks and an ``admission`` says who may use it, if the settings name one. The core
    keeps the engine's process ``table``, the ``calls`` in it, and the ``queue`` of those that wait.
    A call arrives (`CallArrived`) and is put in the queue; from then on the engine takes the head
    of the queue when it has a slot, and says what happened.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | None = None,
        *,
        slots: int = 0,
        capacity: Capacity | None = None,
        table: ProcessTable[EngineProgram] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.config = config
        self.policy = make_policy(config) if policy is None else policy
        self.learned = learned = self.policy.learned
        self.table = ProcessTable(EngineProgram) if table is None else table
        self.calls: dict[str, QueuedCall] = {}
        keeps = config.retention == "cost" or config.admission == "memory"
        self.learns = self.policy.learns or keeps
        self.owners = BlockOwners(learned if keeps else None)
        self.admission = None if capacity is None else make_admission(config, capacity, learned)
        self.promoter = self.policy.promoter(slots) or Promoter()
        self.queue = CallQueue(self.admission, self.promoter)
        self.listeners = [*listeners]
        self.parts: list[Part] = [] if capacity is None else [self.owners]
        if self.admission is not None:
            # Whom the owners tell is set later.
            self.admission.changed = lambda blocks: self.owners.changed(blocks)
            self.parts.append(self.admission)
        self._revision = 0
        self._lost_share = Mean()
        """The share of its computed tokens that a preempted call had to compute again."""

    # -- events ----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:  # noqa: C901  # the order is visible in one place
        """Take in what happened: the parts hear of it in the order that stands here.

        Raises `InvariantError` for an event that cannot follow on a call's earlier ones.
        """
        match event:
            case StepFinished():
                self._charge(event)
            case CallArrived(call, now):
                self._add(call, now)
                self.table.call_arrived(call.program, call.call_id, now)
                self.queue.rank(call, self.policy.priority(call, now))
                for part in self.parts:
                    part.call_arrived(call, now)
                if self.policy.follows_program and len(call.program.queued) > 1:
                    self._rank_again(call.program.queued.values(), now)
                self._tell(event)
            case CallStarted(call, now, cached_tokens):
                self._start(call, now)
                self.promoter.started(call, now)
                if cached_tokens is not None:
                    self._begin_prefill(call, cached_tokens)
                for part in self.parts:
                    part.call_started(call, now)
                if call.preemptions == 0:
                    self._rank_again(self.policy.call_left(call), now)
                self._tell(event)
            case FirstToken(call, _):
                self._end_prefill(call)
                self._tell(event)
            case CallPreempted(call, now, reason, better):
                self._tell(event)
                call.change_state(UNQUEUED)
                call.since = now
                call.preemptions += 1
                if better is not None:
                    call.gave_way_to = better.program.program_id
                for part in self.parts:
                    part.call_preempted(call, now, reason)
            case CallFinished(call, now):
                if self.calls.pop(call.call_id, None) is None:
                    return
                self._tell(event)
                self._remove(call, now)
                self.table.call_ended(
                    call.program, call.call_id, now, call.path_s, call.served_s, call.waited_s
                )
                self._learn(call)
                for part in self.parts:
                    part.call_finished(call, now)
                self.promoter.program_changed(call.program)
                if self.policy.follows_program:
                    self._rank_again(call.program.queued.values(), now)
                if call.program.ended and not call.program.queued:
                    self._forget(call.program, now)  # what was noted of it since its end can go
                elif call.program.lone:
                    self.handle(ProgramEnded(ProgramTotals.of(call.program), now))
            case InterruptStarted(program, kind, name, now):
                self.table.interrupt_started(program, now, kind)
                for part in self.parts:
                    part.interrupt_started(program, kind, name, now)
            case InterruptEnded(program, kind, now):
                self.table.interrupt_ended(program, now, kind, seconds=0.0)
                for part in self.parts:
                    part.interrupt_ended(program, now)
            case ProgramEnded(totals, now):
                ended = self.table.end_program(totals.program_id)
                if ended is None:
                    return
                self.table.catch_up(ended, totals.service_s)
                if not ended.service_s:  # it never ran: there is nothing to learn
                    self._forget(ended, now)
                    return
                for part in self.parts:
                    part.program_ended(ended, now)
                self.policy.program_ended(ended, now)
            case CallAdmitted() | CallReranked():
                raise InvariantError(f"{type(event).__name__} is the core's own event")
            case _:
                assert_never(event)

    def drop_stale(self, now: float) -> None:
        """Drop the programs that were not heard of for the settings' ``stale_after_s``."""
        for program in self.table.stale(now, self.config.stale_after_s, in_tools=True):
            self.table.end_program(program.program_id)
            self._forget(program, now)

    # -- a step ----------------------------------------------------------------------------

    def plan_step(self, now: float, running: Sequence[QueuedCall], engine: Engine) -> StepPlan:
        """Decide who may start in the engine's next step, and who gives way.

        ``running`` are the running calls by their keys, the worst last. All that is decided of
        waiting calls has been done to the queue when this returns.
        """
        released = self.queue.release(engine.may_be_offered)
        promoted = self.promote(now)
        admitted = self.admit(now, len(running))
        return StepPlan(released, promoted, admitted, self._preemptions(running, engine))

    def promote(self, now: float) -> list[QueuedCall]:
        """Move up the calls that waited too long, by the rule that goes with the policy.

        Before that, all waiting calls are ranked again if the policy has learned much.
        """
        if self.policy.revision != self._revision:
            self._revision = self.policy.revision
            for waiting in self.calls.values():
                if waiting.since is not None and not waiting.promoted:
                    self.queue.rank(waiting, self.policy.priority(waiting, now))
        promoted: list[QueuedCall] = []
        while (call := self.promoter.promote(now)) is not None:
            call.promoted = True
            call.promotions += 1
            self.queue.rank(call, self.promoter.priority)
            promoted.append(call)
        return promoted

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        """Admit the programs that may use the KV cache now, beside so many ``running`` calls.

        Their calls, which wait for a slot from now on.
        """
        admitted: list[QueuedCall] = []
        admission = self.admission
        while admission and (calls := admission.admit(now, running + self.queue.startable)):
            for call in calls:
                self.queue.offer(call)
                self._tell(CallAdmitted(call, now))
            admitted += calls
        return admitted

    def _preemptions(self, running: Sequence[QueuedCall], engine: Engine) -> list[Preempt]:
        # The one comparison that nearly every step comes down to.
        head = self.queue.head()
        if head is None or not running or head.level >= running[-1].level:
            return []
        free_slots, free_blocks = engine.free_slots(), engine.free_blocks()

        def chosen(blocks: int) -> list[Preempt]:
            return self.victims(
                running,
                free_slots,
                blocks,
                lambda call: engine.blocks_needed(call, free_blocks),
                engine.may_preempt,
                engine.can_start,
            )

        if not (victims := chosen(free_blocks)):
            return victims
        # What running calls take first, of this step and of the blocks, nobody can begin with.
        tokens, blocks = engine.running_needs()
        if tokens - len(victims) >= engine.step_tokens():
            return []
        return chosen(free_blocks - blocks) if blocks else victims

    def victims(
        self,
        running: Sequence[QueuedCall],
        free_slots: int,
        free_blocks: int = 0,
        blocks_needed: Callable[[QueuedCall], int] = lambda call: 0,
        may_preempt: Callable[[QueuedCall], bool] = lambda call: True,
        can_start: Callable[[QueuedCall], bool] = lambda call: True,
    ) -> list[Preempt]:
        """Return which running calls to preempt, each with the waiting call that needs its slot.

        ``running`` is sorted by key, the worst last. Only a call of a strictly worse level is
        preempted. It loses its slot of the batch, and is never preempted for its memory: a waiting
        call that does not fit into the ``free_blocks`` waits, since what is evicted has to be
        computed again, which delays all others too. Running calls that the engine may not preempt
        or that are not `settled` are passed over, and so are waiting calls that cannot start.
        """
        config, victims = self.config, list[Preempt]()
        if not (config.preemption and running) or free_slots >= self.queue.startable:
            return victims
        pool = (
            call
            for call in reversed(running)
            if call.residency_steps >= config.min_residency_steps
            and call.settled
            and may_preempt(call)
        )
        for head in self.queue.best(_LOOKED_AT):
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
            victims.append(Preempt(victim, head))
        return victims

    # -- the queue -------------------------------------------------------------------------

    def put_back(self, call: QueuedCall, now: float) -> None:
        """Queue a call again that was taken and could not start; it is `stuck` until it does.

        A stuck call is no reason to preempt another, does not count as running when programs are
        admitted, and gives a promotion back, so that it does not keep others from theirs.
        """
        call.stuck = True
        if call.promoted:
            self.promoter.left(call)
            call.promoted = False
            self.queue.rank(call, self.policy.priority(call, now))
        self.queue.put(call)

    def in_order(self) -> list[QueuedCall]:
        """All waiting calls, best first. O(n log n): for people and tests."""
        waiting = (call for call in self.calls.values() if call.queued)
        return sorted(waiting, key=lambda call: call.key)

    def next_promotion(self, now: float) -> float | None:
        """When `promote` will next have something to do, if nothing happens till then; or None."""
        return self.promoter.next_moment(now)

    # -- inside ----------------------------------------------------------------------------

    def _tell(self, event: CallEvent) -> None:
        event.call.events.append((type(event).__name__, event.now))
        for listener in self.listeners:
            listener.hear(event)

    def _add(self, call: QueuedCall, now: float) -> None:
        if call.call_id in self.calls:
            raise InvariantError(f"call {call.call_id} is queued already")
        call.since = call.arrived_at = now
        if self.admission is None:
            call.program.resident = True
        self.calls[call.call_id] = call.program.queued[call.call_id] = call

    def _start(self, call: QueuedCall, now: float) -> None:
        call.change_state(RUNNING)
        assert call.since is not None
        call.waited_s += now - call.since
        call.since, call.began_at = None, now
        call.gave_way_to, call.stuck = "", False
        call.began_at_step, call.began_served_s = call.steps, call.served_s

    def _begin_prefill(self, call: QueuedCall, cached_tokens: int) -> None:
        """Until its first token a call keeps its level and is not preempted for a slot: all that
        it has computed could be lost.
        """
        if call.cached_tokens is None:
            call.cached_tokens = min(cached_tokens, call.prompt_tokens)
            call.lost_tokens = 0
        else:
            call.lost_tokens = max(0, call.computed_tokens - cached_tokens)
            call.recomputed_tokens += call.lost_tokens
        call.settled_at_s = math.inf
        if call.preemptions and call.computed_tokens:
            self._lost_share.add(call.lost_tokens / call.computed_tokens)

    def _end_prefill(self, call: QueuedCall) -> None:
        """From here on outputs survive a preemption.

        If the call had to compute again what a preemption had lost, it is safe until it was served
        as long again as that took. So what a call loses to preemptions for a slot is at most one
        prefill more than the service that it keeps. A call that has lost nothing yet is safe for
        the part of that time that preempted calls of this engine usually lose.
        """
        share = 1.0 if call.lost_tokens else self._lost_share.value
        call.settled_at_s = call.served_s + share * (call.served_s - call.began_served_s)

    def _remove(self, call: QueuedCall, now: float) -> None:
        """Take a call that ended out of the queue, of the batch, and of its program's calls."""
        self.queue.discard(call)
        if call.since is not None:
            call.waited_s += now - call.since
            call.since = None
            if call.steps == 0:
                self._rank_again(self.policy.call_left(call), now)
        self.promoter.left(call)
        del call.program.queued[call.call_id]
        call.change_state(ENDED)

    def _learn(self, call: QueuedCall) -> None:
        if self.learns and 0 < call.prompt_tokens <= call.computed_tokens:  # else it was cancelled
            outputs = call.computed_tokens - call.prompt_tokens
            self.learned.call_ended(call.program.kind, outputs, call.max_tokens)

    def _forget(self, program: EngineProgram, now: float) -> None:
        """Drop what the parts and the policy keep of a program that nothing is learned from."""
        for part in self.parts:
            part.program_ended(program, now)
        self.policy.program_lost(program)

    def _charge(self, step: StepFinished) -> None:
        """Charge the step's time to each call in it; those whose quantum is used up are ranked."""
        call_ids, seconds, now, tokens, steps = step
        for call in map(self.calls.get, call_ids):
            if call is None:
                continue
            call.served_s = served = call.served_s + seconds
            call.program.attained_s += seconds
            call.steps += steps
            if call.promoted:
                self.promoter.charged(call, seconds)
            if (
                served >= call.quantum_ends_s - _EPSILON_S
                and served >= call.settled_at_s
                and self._quantum_spent(call, now)
            ):
                self._tell(CallReranked(call, now))
            if call.state is WAITING:  # it was preempted with this step in flight
                self.promoter.waits(call)
        if tokens and self.learns:
            self.learned.costs.step(seconds, tokens, len(call_ids))

    def _quantum_spent(self, call: QueuedCall, now: float) -> bool:
        """Rank a call again, or give it its quantum anew. True if it has another place now."""
        if self.promoter.keeps and call.promoted:
            call.quantum_ends_s = call.served_s + self.promoter.priority.quantum_s
            return False
        before = call.level
        self.queue.rank(call, self.policy.on_quantum_expired(call, now))
        call.demotions += call.level > before
        return True

    def _rank_again(self, calls: Iterable[QueuedCall], now: float) -> None:
        """Ask for the priority of a few of these again: of the first that wait."""
        left = SCANNED
        for call in calls:
            if call.since is None or call.promoted:
                continue
            priority = self.policy.priority(call, now)
            if (priority.level, priority.order) != call.key[:2]:
                self.queue.rank(call, priority)
            left -= 1
            if not left:
                return
