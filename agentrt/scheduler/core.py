"""The scheduler of one engine as a state machine: it handles events, and plans each engine step.

The module implements Algorithm 1 of Agentix (queue levels, quanta, demotion, promotion), and adds
admission to the KV cache. `SchedulerCore` is pure: it does not import vLLM, and it takes the time
from the events instead of a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, assert_never

from agentrt.errors import InvariantError
from agentrt.scheduler.admission import Capacity, make_admission
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import (
    CallAdmitted,
    CallArrived,
    CallEvent,
    CallFinished,
    CallListener,
    CallLoaded,
    CallLoading,
    CallPreempted,
    CallReranked,
    CallStarted,
    Event,
    FirstToken,
    InterruptEnded,
    InterruptStarted,
    Part,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.learned.means import Mean
from agentrt.scheduler.limits import SCANNED
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.queues import CallQueue, Promoter
from agentrt.scheduler.state import (
    DEFERRED,
    ENDED,
    LOADING,
    RUNNING,
    UNQUEUED,
    WAITING,
    EngineProgram,
    QueuedCall,
)
from agentrt.scheduler.table import ProcessTable, ProgramTotals

_EPSILON_S = 1e-9
"""Tolerance for rounding errors at the end of a quantum, in seconds."""
_LOOKED_AT = 64
"""Maximum number of waiting calls that a step considers for preemptions."""
_PROTECTION = 3.0
"""A call that had to compute tokens again is not preempted for a slot until it has been served for
a multiple of the time that this took. The multiple is `_PROTECTION` if preempted calls lose most of
their tokens, as on an engine without a prefix cache, and otherwise 1.
"""
_LOSES_MOST = 0.5
"""Preempted calls of an engine lose most of their tokens if the mean share that they lose is larger
than this.
"""
_REFRESHED = 32
"""Maximum number of outdated priorities that a step computes again in the order of the calls'
arrival. The step may compute as many for the calls that may be admitted next, and as many for the
calls that may run next (`CallQueue.refresh`). Computing all outdated priorities in one step would
delay this step by 12 milliseconds with 1,000 waiting calls.
"""


class Engine(Protocol):
    """The engine's state as `SchedulerCore.plan_step` needs it. Blocks are KV cache blocks."""

    def may_be_offered(self, call: QueuedCall) -> bool:
        """Return whether a deferred call can be started now."""

    def free_slots(self) -> int:
        """Return the number of free slots in the batch."""

    def free_blocks(self) -> int:
        """Return the number of free blocks."""

    def blocks_needed(self, call: QueuedCall, free: int) -> int:
        """Return the number of free blocks that a waiting call would take, if ``free`` blocks are
        free.
        """

    def can_start(self, call: QueuedCall) -> bool:
        """Return whether a waiting call could start if it had a slot and blocks."""

    def may_preempt(self, call: QueuedCall) -> bool:
        """Return whether preempting a running call frees its blocks at once, and gains more time
        than it costs.
        """

    def running_needs(self) -> tuple[int, int]:
        """Return how many tokens of the next step, and how many free blocks, the running calls
        need. The blocks include the blocks for parts of prompts that later steps compute. The block
        that a decoding call may need is not counted.
        """

    def step_tokens(self) -> int:
        """Return the maximum number of tokens of a step."""


class PreemptionChecks(NamedTuple):
    """The functions by which `SchedulerCore.victims` asks an engine about calls. The defaults are
    for an engine whose calls need only a slot.
    """

    blocks_needed: Callable[[QueuedCall], int] = lambda call: 0
    """Returns the number of free blocks that a waiting call would take."""
    may_preempt: Callable[[QueuedCall], bool] = lambda call: True
    """See `Engine.may_preempt`."""
    can_start: Callable[[QueuedCall], bool] = lambda call: True
    """See `Engine.can_start`."""


_ONLY_SLOTS = PreemptionChecks()


class Preempt(NamedTuple):
    """A decision: this running call is preempted for the waiting call ``better``."""

    call: QueuedCall
    better: QueuedCall


class StepPlan(NamedTuple):
    """The decisions of `SchedulerCore.plan_step`, in the order in which they were made.

    The core has already applied all decisions except the preemptions to its queue. The engine
    applies the preemptions.
    """

    released: Sequence[QueuedCall]
    """Deferred calls that the engine can start now (`CallQueue.release`)."""
    promoted: Sequence[QueuedCall]
    """Calls that were promoted, and have the priority of the `Promoter` now. The policy chooses the
    promoter (`Policy.promoter`), and `Promoter.promote` chooses the calls.
    """
    admitted: Sequence[QueuedCall]
    """Calls of programs that may use the KV cache from now on (`Admission.decide`)."""
    preempted: Sequence[Preempt]
    """Running calls that are to be preempted (`SchedulerCore.victims`). The engine must stop
    them.
    """


class SchedulerCore:
    """The scheduler of one engine: it keeps the engine's calls and programs, and decides which call
    runs next.

    ``slots`` is the size of the engine's batch. If the ``capacity`` of the KV cache is known,
    ``owners`` tracks which programs own its blocks, and ``admission`` decides which programs may
    use the cache, unless the settings turn admission control off. The core keeps a ``table`` with a
    row for each live program, all ``calls``, and the ``queue`` of waiting calls. A call arrives
    (`CallArrived`) and is put into the queue. When the engine has a free slot, the engine takes the
    call at the head of the queue. The engine reports what happens to a call, such as its start and
    its end, as events.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | None = None,
        *,
        slots: int = 0,
        capacity: Capacity | None = None,
        table: ProcessTable[EngineProgram] | None = None,
        listeners: Sequence[CallListener] = (),
    ) -> None:
        self.config = config
        self.policy = make_policy(config) if policy is None else policy
        self.learned = learned = self.policy.learned
        self.table = ProcessTable(EngineProgram) if table is None else table
        self.calls: dict[str, QueuedCall] = {}
        self.loading: dict[QueuedCall, None] = {}
        """The calls whose KV cache is being loaded, or that were loaded and have not started."""
        keeps = config.retention == "cost" or config.admission == "memory"
        self.learns = self.policy.learns or keeps
        self.owners = BlockOwners(learned if keeps else None)
        self.admission = None if capacity is None else make_admission(config, capacity, learned)
        self.promoter = self.policy.promoter(slots) or Promoter()
        self.queue = CallQueue(self.admission, self.promoter)
        self.listeners = [*listeners]
        # The owners come first, because the admission reads the gap that they note at a call's end.
        self.parts: list[Part] = [] if capacity is None else [self.owners]
        if self.admission is not None:
            # `owners.changed` is assigned later, so look it up on each call.
            self.admission.changed = lambda blocks: self.owners.changed(blocks)
            self.parts.append(self.admission)
        self._revision = 0
        self._lost_share = Mean()
        """The mean share of a preempted call's computed tokens that had to be recomputed."""

    # -- events ----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:  # noqa: C901  # the order of the parts is visible in one place
        """Handle an event: update the core's state, and pass the event to the scheduler's parts.

        Raises `InvariantError` for an event that would change a call's state in a way that is not
        in `TRANSITIONS`, for a second arrival of a call, and for an event that only the core
        reports.
        """
        match event:
            case StepFinished():
                self._charge(event)
            case CallArrived(call, now):
                self._add(call, now)
                self.table.call_arrived(call.program, call.call_id, now)
                self.queue.set_priority(call, self.policy.priority(call, now))
                for part in self.parts:
                    part.call_arrived(call, now)
                if self.policy.follows_program and len(call.program.queued) > 1:
                    self._rank_again(call.program.queued.values(), now)
                self._tell(event)
            case CallLoading(call, now, _, tokens):
                call.change_state(LOADING)
                call.loading_tokens = tokens
                call.load_due = now + tokens * self.learned.costs.token_s
                self.loading[call] = None
                self._tell(event)
            case CallLoaded(call, _, failed):
                if failed:
                    self._drop_load(call)
                    del self.loading[call]
                    call.change_state(UNQUEUED)
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
                self._drop_load(call)  # nothing to drop if the call has started since
                self._tell(event)  # listeners hear of an end before it changes the parts
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
                    # The program ended before its last call, so the call may have left state after
                    # the end of the program.
                    self._forget(call.program, now)
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
                ended.catch_up(totals.service_s)
                if not ended.service_s:  # the program never ran, so there is nothing to learn
                    self._forget(ended, now)
                    return
                for part in self.parts:
                    part.program_ended(ended, now)
                self.policy.program_ended(ended, now)
            case CallAdmitted() | CallReranked():
                raise InvariantError(
                    f"{type(event).__name__} is reported by the core and must not be passed to it"
                )
            case _:
                assert_never(event)

    def drop_stale(self, now: float) -> None:
        """Drop the programs that have no call, and had no event for ``stale_after_s`` seconds (a
        setting).
        """
        for program in self.table.stale(now, self.config.stale_after_s, in_tools=True):
            self.table.end_program(program.program_id)
            self._forget(program, now)

    def cache_emptied(self) -> None:
        """Note that the prefix cache was emptied, and that the contexts of all programs without a
        call in the engine are lost.
        """
        if self.admission is not None:
            self.admission.cache_emptied(self.table)

    # -- a step ----------------------------------------------------------------------------

    def plan_step(self, now: float, running: Sequence[QueuedCall], engine: Engine) -> StepPlan:
        """Plan the engine's next step: which further calls may start, in which order the waiting
        calls start, and which running calls are preempted.

        ``running`` are the running calls sorted by key, the worst call last. When this method
        returns, the decisions about waiting calls have been applied to the queue. The caller,
        `ProgramScheduler._prepare_step`, only carries out the preemptions. vLLM then starts calls
        from the head of the queue (`CallQueue.take`), and decides how many fit into the step.
        """
        released = self.queue.release(engine.may_be_offered)
        self.refresh_priorities(now)
        promoted = self.promote(now)
        admitted = self.admit(now, len(running))
        return StepPlan(released, promoted, admitted, self._preemptions(running, engine))

    def refresh_priorities(self, now: float) -> None:
        """If the policy's statistics have changed much, give all waiting calls a new priority, over
        several steps (`_REFRESHED`). Most calls get their priority in the order of their arrival,
        but the calls that may be admitted or may run next get it earlier. This method is called
        once in each step.
        """
        if (revision := self.policy.revision) != self._revision:
            self._revision = revision
            self.queue.outdate(self.calls)
        if self.queue.outdated:
            self.queue.refresh(_REFRESHED, lambda call: self.policy.priority(call, now))

    def promote(self, now: float) -> list[QueuedCall]:
        """Promote the calls that the policy's rule against starvation selects, and return them. A
        selected call that is deferred is not promoted, since it cannot start (`CallQueue.starves`).
        """
        promoted: list[QueuedCall] = []
        while (call := self.promoter.promote(now)) is not None:
            call.promoted = True
            if call.state is DEFERRED:
                self.promoter.left(call)
                call.promoted = False
                self.queue.starves(call)
                continue
            call.promotions += 1
            self.queue.set_priority(call, self.promoter.priority)
            promoted.append(call)
        return promoted

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        """Admit the programs that may use the KV cache now, and return their calls, which now wait
        for a slot. ``running`` is the number of running calls.
        """
        admitted: list[QueuedCall] = []
        admission = self.admission
        # A call that loads holds blocks and runs soon, so an engine that only loads is not idle.
        # But a load that takes longer than computing its tokens may never end.
        running += sum(now < call.load_due for call in self.loading)
        while admission and (calls := admission.admit(now, running + self.queue.startable)):
            for call in calls:
                self.queue.offer(call)
                self._tell(CallAdmitted(call, now))
            admitted += calls
        return admitted

    def _preemptions(self, running: Sequence[QueuedCall], engine: Engine) -> list[Preempt]:
        # The fast path: in nearly every step this comparison is all that happens.
        head = self.queue.head()
        if head is None or not running or head.level >= running[-1].level:
            return []
        free_slots, free_blocks = engine.free_slots(), engine.free_blocks()
        checks = PreemptionChecks(
            lambda call: engine.blocks_needed(call, free_blocks),
            engine.may_preempt,
            engine.can_start,
        )
        if not (victims := self.victims(running, free_slots, free_blocks, checks)):
            return victims
        # Running calls take their tokens and blocks before a new call can start.
        tokens, blocks = engine.running_needs()
        if tokens - len(victims) >= engine.step_tokens():
            return []
        if not blocks:
            return victims
        return self.victims(running, free_slots, free_blocks - blocks, checks)

    def victims(
        self,
        running: Sequence[QueuedCall],
        free_slots: int,
        free_blocks: int = 0,
        checks: PreemptionChecks = _ONLY_SLOTS,
    ) -> list[Preempt]:
        """Return which running calls to preempt, each with the waiting call that needs its slot.
        `plan_step` calls this method unless it sees at once that no call is preempted.

        ``running`` is sorted by key, the worst call last. A running call is preempted only for a
        waiting call of a better level, by as many levels as the policy wants
        (`Policy.preempts_by`), and only to free a slot in the batch, never to free memory. A
        waiting call that does not fit into the ``free_blocks`` keeps waiting, because evicted
        blocks must be recomputed, which delays all other calls, too. The calls behind it also keep
        waiting, because vLLM starts calls in order. A running call is skipped in its first
        ``min_running_steps`` steps, while it is not `settled`, and if ``checks.may_preempt`` is
        False. A waiting call that cannot start is skipped, too.
        """
        config, victims = self.config, list[Preempt]()
        if not (config.preemption and running) or free_slots >= self.queue.startable:
            return victims
        pool = (
            call
            for call in reversed(running)
            if call.steps_since_start >= config.min_running_steps
            and call.settled
            and checks.may_preempt(call)
        )
        for head in self.queue.best(_LOOKED_AT):
            if len(victims) >= config.max_preemptions_per_step or head.level >= running[-1].level:
                break
            free_blocks -= checks.blocks_needed(head)
            if free_blocks < 0:
                break
            # Such a call may start as soon as a victim is gone, for example with the victim's place
            # for an adapter. Then it comes before the calls behind it, so its blocks count, too.
            if head.stuck or not checks.can_start(head):
                continue
            if free_slots > 0:
                free_slots -= 1
                continue
            victim = next(pool, None)
            if victim is None or victim.level - head.level < self.policy.preempts_by(head, victim):
                break
            victims.append(Preempt(victim, head))
        return victims

    # -- the queue -------------------------------------------------------------------------

    def put_back(self, call: QueuedCall, now: float, *, deferred: bool = False) -> None:
        """Put a call that was taken but could not start back into the queue, and mark it as
        ``stuck``. A ``deferred`` call waits until `Engine.may_be_offered`.

        No call is preempted for a stuck call. A stuck call does not count as a call that could
        start when programs are admitted. It loses its promotion, so that another call can be
        promoted.
        """
        call.stuck = True
        if not deferred:
            self.queue.no_longer_starves(call)
        if call.promoted:
            self.promoter.left(call)
            call.promoted = False
            self.queue.set_priority(call, self.policy.priority(call, now))
            if deferred:
                self.queue.starves(call)
        self.queue.put(call, deferred=deferred)
        if deferred:
            self.promoter.waits(call)

    def in_order(self) -> list[QueuedCall]:
        """Return all waiting calls, the highest priority first. O(n log n), for displays and tests
        only.
        """
        waiting = (call for call in self.calls.values() if call.queued)
        return sorted(waiting, key=lambda call: call.key)

    def next_promotion(self, now: float) -> float | None:
        """Return the earliest time at which `promote` may promote a call if no event happens
        before; None if there is no such time.
        """
        return self.promoter.next_moment(now)

    # -- inside ----------------------------------------------------------------------------

    def _tell(self, event: CallEvent) -> None:
        event.call.events.append((type(event).__name__, event.now))
        for listener in self.listeners:
            listener.hear(event)

    def _add(self, call: QueuedCall, now: float) -> None:
        if call.call_id in self.calls:
            raise InvariantError(f"call {call.call_id} is already queued")
        call.since = call.arrived_at = now
        if self.admission is None:
            call.program.resident = True
        self.calls[call.call_id] = call.program.queued[call.call_id] = call

    def _drop_load(self, call: QueuedCall) -> None:
        """Add the tokens of a call's load, which may be in flight, to the tokens whose load was of
        no use.
        """
        call.unused_loaded_tokens += call.loading_tokens
        call.loading_tokens = 0

    def _start(self, call: QueuedCall, now: float) -> None:
        call.change_state(RUNNING)
        if call in self.loading:
            del self.loading[call]
            call.loaded_tokens += call.loading_tokens
            call.loading_tokens = 0
        assert call.since is not None
        call.waited_s += now - call.since
        call.since, call.began_at = None, now
        call.gave_way_to, call.stuck = "", False
        call.began_at_step, call.began_served_s = call.steps, call.served_s

    def _begin_prefill(self, call: QueuedCall, cached_tokens: int) -> None:
        """Start a call's prefill. Until its first token the call keeps its level and is not
        preempted for a slot, because a preemption could lose all tokens that were computed for it.
        """
        if call.cached_tokens is None:
            call.cached_tokens = min(cached_tokens, call.prompt_tokens)
            call.last_recomputed_tokens = 0
        else:
            call.last_recomputed_tokens = max(0, call.computed_tokens - cached_tokens)
            call.recomputed_tokens += call.last_recomputed_tokens
        call.settled_at_s = math.inf
        if call.preemptions and call.computed_tokens:
            self._lost_share.add(call.last_recomputed_tokens / call.computed_tokens)

    def _end_prefill(self, call: QueuedCall) -> None:
        """End a call's prefill, and decide until when the call is protected from preemption.

        The outputs that the call produces from now on survive a preemption. If the call had to
        recompute tokens that it lost in an earlier preemption, it is protected for the duration of
        this prefill once more. This limits the service that a call loses to preemptions for a slot:
        it is at most the service that the call keeps, plus one prefill. If preempted calls of this
        engine lose most of their tokens, the call is protected for `_PROTECTION` times that
        duration, so it loses at most a third of the service that it keeps, plus one prefill. A call
        that has lost no tokens is protected for a part of that time: the mean share of tokens that
        preempted calls of this engine had to recompute.
        """
        lost = self._lost_share.value
        share = 1.0 if call.last_recomputed_tokens else lost
        if lost > _LOSES_MOST:
            share *= _PROTECTION
        call.settled_at_s = call.served_s + share * (call.served_s - call.began_served_s)

    def _remove(self, call: QueuedCall, now: float) -> None:
        """Remove a call that has ended from the queue, from the calls that load KV cache, and from
        its program's calls.
        """
        self.queue.remove(call)
        self.loading.pop(call, None)
        if call.since is not None:
            call.waited_s += now - call.since
            call.since = None
            if call.steps == 0:
                self._rank_again(self.policy.call_left(call), now)
        self.promoter.left(call)
        del call.program.queued[call.call_id]
        call.change_state(ENDED)

    def _learn(self, call: QueuedCall) -> None:
        if (
            self.learns and 0 < call.prompt_tokens <= call.computed_tokens
        ):  # otherwise it had no output, or its prompt's length is unknown
            outputs = call.computed_tokens - call.prompt_tokens
            self.learned.call_ended(call.program.kind, outputs, call.max_tokens)

    def _forget(self, program: EngineProgram, now: float) -> None:
        """Drop what the scheduler's parts (`self.parts`) and its policy have stored about a
        program. The policy learns nothing from the program here.
        """
        for part in self.parts:
            part.program_ended(program, now)
        self.policy.program_lost(program)

    def _charge(self, step: StepFinished) -> None:
        """Charge the step's time to each of its calls, and rank the calls again whose quantum is
        used up.

        If the core learns the costs of steps, the time for which the engine was stalled is not
        charged. Otherwise the types of the calls in this step would count as long types for
        hundreds of programs.
        """
        call_ids, step_s, now, tokens, steps = step
        learns, seconds = tokens and self.learns, step_s
        if learns:
            seconds = self.learned.costs.without_stall(step_s, tokens, len(call_ids))
        # This loop runs for each running call in each step; local names are found faster.
        waiting, early_s = WAITING, _EPSILON_S
        for call in map(self.calls.get, call_ids):
            if call is None:
                continue
            call.served_s = served = call.served_s + seconds
            call.program.attained_s += seconds
            call.steps += steps
            if call.promoted:
                self.promoter.charged(call, seconds)
            if (
                served >= call.quantum_ends_s - early_s
                and served >= call.settled_at_s
                and self._quantum_spent(call, now)
            ):
                self._tell(CallReranked(call, now))
            if call.state is waiting:  # the call was preempted while this step was in flight
                self.promoter.waits(call)
        if learns:
            self.learned.costs.step(step_s, tokens, len(call_ids))

    def _quantum_spent(self, call: QueuedCall, now: float) -> bool:
        """Rank a call again whose quantum is used up, or give it a new quantum of the same
        priority. Return whether the call was ranked again.
        """
        if self.promoter.keeps and call.promoted:
            call.quantum_ends_s = call.served_s + self.promoter.priority.quantum_s
            return False
        before = call.level
        self.queue.set_priority(call, self.policy.on_quantum_expired(call, now))
        call.demotions += call.level > before
        return True

    def _rank_again(self, calls: Iterable[QueuedCall], now: float) -> None:
        """Rank the first `SCANNED` waiting calls of ``calls`` again. Promoted calls are skipped."""
        left = SCANNED
        for call in calls:
            if call.since is None or call.promoted:
                continue
            priority = self.policy.priority(call, now)
            if (priority.level, priority.order) != call.key[:2]:
                self.queue.set_priority(call, priority)
            left -= 1
            if not left:
                return
