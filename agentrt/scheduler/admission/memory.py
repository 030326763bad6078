"""The admission ``memory``: as many programs are resident as fit into the KV cache with their
contexts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

from agentrt.scheduler.admission.base import Admission, Admit, Capacity, Keep
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import PreemptionReason
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.durations import RESOLUTION_S, Forecast
from agentrt.scheduler.limits import SCANNED
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.retention import returns
from agentrt.scheduler.state import MANY_CALLS, NOT_ADMITTED, WAITING, EngineProgram, QueuedCall

OLDEST_EVERY = 32
"""Every 32nd admission goes to the program that has waited longest. This limits how often a waiting
program is overtaken: by fewer than 32 * (n + 1) later programs, if n programs had waited longer
than it.
"""

_FILLED = 0.5
"""Share of the batch. While less of the batch is used, a program of a type that branches is
admitted even if it does not fit into the cache.
"""
_CONSIDERED = 64
"""The limit of three searches (`WorkingSet`). For a free slot that a program could use, the search
ends after this many absent residents whose contexts are worth more than the slot. For a tool for
which an idle engine could wait, the search considers at most this many absent residents. If there
are programs of more types than this, no search finds out whether all of these types branch.
"""
_AGAIN = 0.25
"""A free slot is compared with an absent resident's context again when the resident's gap has
become longer by this share: the longer a gap has lasted, the more slowly its forecast changes.
"""
_OUTGROWN = 2.0
"""If the contexts outgrow the cache, the blocks that do not fit are recomputed this many times:
once before a resident leaves (`may_stay`), and once when the resident is admitted again.
"""
_TURN = 8.0
"""When a call of a resident is queued, the resident gives way to another program only after it has
been served for this many times the cost of recomputing its context. The cost is the time that the
recomputation takes, multiplied by the number of residents in the batch, which all wait for this
time.
"""


class WorkingSet(Admission):
    """The admission ``memory``.

    A program claims blocks for its context and for the tokens that its calls are expected to add. A
    prefix that all programs of a type share is counted once. Programs are usually admitted in the
    order of the policy, when their claim fits into the cache in addition to the claims of the
    residents; `candidates` and `decide` have the exceptions. Most other decisions compare the cost
    of *holding* a context with the cost of *recomputing* it: the number of its tokens times
    ``token_s``, the cost of a prompt token as measured in this engine. A resident without a call
    that runs or could start is *absent*: for example, it is in a tool, waits for a human, or has
    ended without a report of its end, or its call waits for a grammar or for room for its LoRA
    adapter (`QueuedCall.blocked`).
    """

    name: ClassVar[str] = "memory"

    def __init__(self, config: SchedulerConfig, capacity: Capacity, learned: Learned) -> None:
        super().__init__(config, capacity, learned)
        self.admissions = 0
        """The number of admissions so far. A program may be admitted several times."""
        self.claimed = 0
        """Blocks that the residents claim, including the shared prefixes of their types."""
        self._shared = 0
        """The part of ``claimed`` that is for the shared prefixes, in blocks."""
        self._needed = 0
        """Blocks that residents with calls that could start claim, without their growth."""
        self._kept = 0
        """Blocks that these residents and the absent residents whose contexts are held claim,
        without their growth.
        """
        self._growth = 0
        """Blocks that residents claim for future calls."""
        self._recomputed_tokens = 0
        """Tokens that all residents together have recomputed because their contexts exceed the
        cache, since a program was last expelled.
        """
        self._branching: dict[EngineProgram, None] = {}
        """Residents with several calls in the engine."""
        self._kinds: Counter[tuple[str, str]] = Counter()
        """For each type: the number of residents, and of calls that wait for admission."""
        self._sharers: dict[tuple[str, str], tuple[int, int]] = {}
        """For each type: the number of residents that share its prefix, and the prefix's blocks."""
        self._held: PriorityQueue[EngineProgram] = PriorityQueue()
        """Absent residents whose contexts are held, sorted by the time until which they are
        held.
        """
        self._due: dict[EngineProgram, None] = {}
        """Absent residents whose contexts are no longer held. They stay resident until another
        program needs their room, and are expelled then.
        """
        self._due_claim = 0
        """Blocks that the residents in ``_due`` claim."""
        self._absent: dict[EngineProgram, None] = {}
        """All absent residents, in the order in which their current gaps began."""
        self._by_age: PriorityQueue[QueuedCall] = PriorityQueue()
        """The calls that are not admitted, the longest waiting first."""
        self._full_at: int | None = None
        """The number of running calls when `admit` last found no program to admit; None if the
        state has changed since then. While the number is the same, `admit` need not look again.
        """
        self._look_again = math.inf
        """The time at which a program may be admitted even if no event happens before."""
        self._forecasts: dict[EngineProgram, Forecast] = {}
        """The forecasts of absent residents in this pass over the calls that wait for admission."""

    # -- events ----------------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        program = call.program
        self._end_holds(now)  # an idle engine takes no steps, so it admits no programs
        self._no_longer_absent(program)
        stats, beside = self.learned.of_type(program.kind), len(program.queued) > 1
        stats.beside.add(beside)
        if not (program.finished_calls or program.resident or beside):
            program.shared_tokens = int(stats.shared.value)
        program.context_tokens = max(program.context_tokens, call.known_tokens)
        call.holds = self._adds(call, max(call.beside_tokens, program.shared_tokens))
        call.adds = self._adds(call, call.known_tokens)
        self._update_claim(program)

    def call_started(self, call: QueuedCall, now: float) -> None:
        program, cached = call.program, call.cached_tokens or 0
        was_served = program.attained_s > program.attained_when_admitted_s
        if program.resident and was_served and not call.preemptions and self._overfull:
            self._recomputed_tokens += max(call.known_tokens - cached, 0)
        # The call may have waited in a queue of vLLM's own, which has no admission.
        self.join(program)
        if program.last_turn_at is not None and len(program.queued) == 1:
            turns = self.learned.of_type(program.kind).running
            call.turn = turns.begin(program.last_turn_at + call.waited_s, now)
        if call.preemptions:
            return
        # A call without a cache hit says nothing about a shared prefix: the prefix may have been
        # evicted.
        if cached and not program.finished_calls and len(program.queued) == 1:
            self.learned.of_type(program.kind).shared.add(cached)
            if not program.shared_tokens and cached > call.known_tokens:
                # The program arrived before the prefix of its type was known.
                usual_tokens = int(self.learned.of_type(program.kind).shared.value)
                _, blocks = self._sharers.get(program.kind, (0, self.capacity.blocks))
                self._share(program, min(cached, usual_tokens, blocks * self.capacity.block_size))
                call.holds = self._adds(call, max(call.beside_tokens, program.shared_tokens))
        adds = self._adds(call, cached)
        if adds < call.adds:
            program.context_tokens = max(program.context_tokens, cached)
            call.adds = adds
            self._update_claim(program)

    def call_preempted(self, call: QueuedCall, now: float, reason: PreemptionReason) -> None:
        self._end_turn(call, now)
        alone = len(call.program.queued) <= 1 < len(self.residents)
        if reason is not PreemptionReason.SLOT and alone:
            self.expel(call.program)

    def call_finished(self, call: QueuedCall, now: float) -> None:
        program, tokens = call.program, call.computed_tokens
        self._end_turn(call, now)
        if tokens >= call.prompt_tokens:  # otherwise the call was cancelled before any output
            if program.last_turn_at is not None and not program.queued:
                stats = self.learned.of_type(program.kind)
                stats.grown.add(max(tokens - program.context_tokens, 0))
                stats.turn_ended(now - program.last_turn_at - call.waited_s)
            program.last_turn_at = now
        program.context_tokens = max(program.context_tokens, tokens)
        self._update_claim(program)
        self._note_absent(program, now)

    def _end_turn(self, call: QueuedCall, now: float) -> None:
        if call.turn is not None:
            call.turn.end(now)
            call.turn = None

    def blocked(self, call: QueuedCall, now: float) -> None:
        self._count(call.program)
        self._note_absent(call.program, now)

    def unblocked(self, call: QueuedCall) -> None:
        self._no_longer_absent(call.program)
        self._count(call.program)

    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        self._note_absent(program, now)

    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        self._full_at = None  # the engine need not wait for the program's tool any more

    def program_ended(self, program: EngineProgram, now: float) -> None:
        self._full_at = None  # the program's calls that were not admitted need no room any more
        if program.service_s and not program.queued:  # otherwise called again when the calls end
            stats, calls = self.learned.of_type(program.kind), program.finished_calls
            stats.calls.add(calls)
            stats.calls_squared.add(calls * calls)
        self.expel(program)

    def cache_emptied(self, programs: Iterable[EngineProgram]) -> None:
        for program in programs:
            if not program.queued:  # no context is left, and the next call computes it all
                self.expel(program)
                program.context_tokens, program.last_turn_at = 0, None
                self._update_claim(program)

    def _note_absent(self, program: EngineProgram, now: float) -> None:
        """Decide how long to hold the context of a resident that has no call that could start.

        The context is held for the time that computing the whole cache takes. After that time,
        holding the context's share of the cache has cost more than recomputing the context would
        (the ski rental rule). The context is not held at all if the expected time until the
        program's next call is longer than that time multiplied by the probability of such a call.
        """
        if _can_run(program) or not program.resident or program.cached is None:
            return
        chance, seconds = returns(self.learned, program.cached, now)
        held_s = self._compute_s(self.capacity.blocks)
        self._no_longer_absent(program)
        self._held.put(program, now if seconds > chance * held_s else now + held_s)
        self._absent[program] = None
        self._full_at = None

    def _end_holds(self, now: float) -> None:
        """Stop holding the contexts that are held only until ``now``."""
        while (until := self._held.first_key()) is not None and until <= now:
            program = self._held.pop()
            self._due[program] = None
            self._due_claim += program.claim
            self._count(program)

    def _no_longer_absent(self, program: EngineProgram) -> None:
        self._held.discard(program)
        self._absent.pop(program, None)
        if program in self._due:
            del self._due[program]
            self._due_claim -= program.claim
            self._count(program)

    # -- which residents stay --------------------------------------------------------------

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        # A program that returns from a tool precedes new programs of the same level.
        level, order, seq = call.key
        return (level, not call.program.was_resident, order, seq)

    def may_stay(self, call: QueuedCall) -> bool:
        program = call.program
        if len(program.queued) > 1:
            return True
        # The program's first call may have been preempted, so that no call has ended yet.
        context_tokens = max(program.context_tokens, call.computed_tokens, 1)
        outgrown = len(self.residents) > 1 and (
            self._busy > self.capacity.blocks
            or (self._overfull and self._recomputed_tokens >= context_tokens)
        )
        return not (outgrown or self._gives_way(program, call)) or self._all_branch

    @property
    def _overfull(self) -> bool:
        """Whether the contexts that residents use or hold exceed the cache."""
        return self._kept + self._shared > self.capacity.blocks

    def _gives_way(self, program: EngineProgram, call: QueuedCall) -> bool:
        """Return whether a program is expelled when its call is queued, in favour of the first
        program that waits for admission.

        The switch costs the time to recompute the program's context later, and all residents in the
        batch wait for this time. So a program is expelled only after it has been served for `_TURN`
        times the sum of these waits.
        """
        candidate = self.first()
        if candidate is None or program.admitted_by_age or self._fits(candidate.program):
            return False
        if not (self._oldest_is_next or candidate.level < call.level):
            return False
        beside = min(len(self.residents), self.capacity.slots)
        reload_s = program.context_tokens * self.learned.costs.token_s
        attained_s = program.attained_s - program.attained_when_admitted_s
        return attained_s >= _TURN * reload_s * beside

    # -- which programs are admitted -------------------------------------------------------

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        if running == self._full_at and now < self.next_moment():
            return []
        self._look_again = math.inf
        self._forecasts.clear()
        self._end_holds(now)
        calls = super().admit(now, running)
        self._full_at = None if calls else running
        return calls

    def candidates(self, now: float, running: int) -> Iterable[QueuedCall]:
        oldest = self._by_age.first()
        if oldest is not None and (self._oldest_is_next or self._overdue(oldest, now)):
            return (oldest,)
        # If there is a free slot, also consider later programs, which may need less room.
        several = SCANNED if running < self.capacity.slots else 1
        return islice(self._not_admitted, several)

    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        program = call.program
        if self._overdue(call, now):
            return Admit(program)
        if (expelled := self._due_that_make_room(program)) is not None:
            return Admit(program, expelled)
        if self._all_branch:
            return Admit(program)
        if (ceding := self._branching_that_cede(call)) is not None:
            return Admit(program, ceding=ceding)
        if self._fills_batch(program, running):
            return Admit(program)
        decision = self._use_free_slot(program, now, running)
        if isinstance(decision, Admit) or running:
            return decision
        # The program evicts contexts that are no longer held, so expel the residents that claim
        # them.
        return self._wait_for_tool(program, now) or Admit(program, tuple(self._due))

    def _due_that_make_room(self, program: EngineProgram) -> tuple[EngineProgram, ...] | None:
        """Return which residents to expel so that a program fits into the cache. Only absent
        residents whose contexts are no longer held are considered.

        Returns no more residents than needed, and None if the program would not fit even if all of
        them were expelled.
        """
        needs, claimed, most = self._needs(program), self.claimed, self.capacity.blocks
        if claimed + needs <= most:  # the common case, without looking at the residents
            return ()
        if claimed - self._due_claim + needs > most:
            return None  # too little room, without counting shared prefixes that might be freed
        leaving: list[EngineProgram] = []
        sharers = Counter[tuple[str, str]]()
        for resident in self._due:
            leaving.append(resident)
            claimed -= resident.claim
            if resident.shared_tokens:
                sharers[resident.kind] += 1
                count, blocks = self._sharers[resident.kind]
                if sharers[resident.kind] == count:  # the prefix is freed with its last sharer
                    claimed -= blocks
                    if resident.kind == program.kind and program.shared_tokens:
                        needs += self._blocks(program.shared_tokens)
            if claimed + needs <= most:
                return tuple(leaving)
        return None

    def _branching_that_cede(self, candidate: QueuedCall) -> tuple[EngineProgram, ...] | None:
        """Return the residents that give up room so that the program of the call ``candidate``
        fits; None if it would not fit. If this program has several calls, room for ``candidate`` is
        enough.

        Residents give up the room that they claim for waiting calls, if ``candidate`` comes before
        one of these calls. Only residents of types that branch do so, and residents with several
        calls; and only if one of the latter has made `MANY_CALLS` calls, or if the residents claim
        more than the cache. Without this rule, a program that always has more calls than fit would
        keep all others out for as long as it lives. An example is a proxy that gives all its
        clients one program id. And a chain would wait for many programs that were admitted without
        room while all programs branched (`_all_branch`).
        """
        over = self.claimed > self.capacity.blocks
        if not over and all(each.finished_calls < MANY_CALLS for each in self._branching):
            return None
        program = candidate.program
        needs = self._needs(program)
        if len(program.queued) > 1:
            needs = min(needs, self._blocks(candidate.holds) + 1)
        short = self.claimed + needs - self.capacity.blocks
        ceding: list[EngineProgram] = []
        for resident in self.residents if over else self._branching:
            if resident not in self._branching and not self.learned.of_type(resident.kind).branches:
                continue
            calls = resident.queued.values()
            if any(call.state is WAITING and candidate.key < call.key for call in calls):
                ceding.append(resident)
                short -= resident.claim - self._running_blocks(resident)
                if short <= 0:
                    return tuple(ceding)
        return None

    def _running_blocks(self, program: EngineProgram) -> int:
        """Return the blocks that a program claims for its running calls."""
        running = [call.holds for call in program.queued.values() if not call.queued]
        return min(self._blocks(sum(running)) + len(running), program.claim)

    @property
    def _all_branch(self) -> bool:
        """Whether all residents, and all programs that wait for admission, are of types that
        branch. Then no program is kept out. False for more than `_CONSIDERED` types.

        Most branches end soon, so what another program evicts would rarely have been used again.
        Only the order of the calls matters. If there is a chain, its context is worth protecting.
        """
        if len(self._kinds) > _CONSIDERED:
            return False
        return all(self.learned.of_type(kind).branches for kind in self._kinds)

    def _fills_batch(self, program: EngineProgram, running: int) -> bool:
        """Return whether a program is admitted even if it does not fit into the cache, because
        little of the batch is used.

        This is done only for programs of a type that branches. Most branches end soon, and their
        blocks mostly replace blocks of branches that have ended. A program with one chain of calls
        needs its whole context again for each call, and would evict other programs each time.
        """
        few = running < _FILLED * self.capacity.slots
        return few and self.learned.of_type(program.kind).branches

    def _use_free_slot(self, program: EngineProgram, now: float, running: int) -> Admit | Keep:
        """Weigh the gain of using a free slot against the cost of the contexts that the program
        would evict.

        A step computes one token of each call in the batch. So a call that joins b calls does
        1/(b + 1) of the work of the batch, and gains 1/(b + 1) of a second of work for each second
        in which the slot would be empty. Evicting the context of an absent resident costs the time
        to recompute it, times the probability that the resident makes another call. The freed room
        is useful until the waiting call is expected to end, or until the resident makes its next
        call, whichever is earlier. Using room that residents claim for future calls costs the time
        to compute the same number of blocks.

        Residents are expelled, those with the oldest gaps first, only if the program then fits.
        After `_CONSIDERED` residents whose contexts are worth more, no further residents are
        considered.
        """
        calls = [call for call in program.queued.values() if call.state is NOT_ADMITTED]
        slots = min(self.capacity.slots - running, len(calls))
        needs = max(self._needs(program), 1)  # a program that gave up its room needs 0
        if slots <= 0 or self._busy + needs - program.growth > self.capacity.blocks:
            return Keep()
        costs = self.learned.costs
        work_s = max(self.learned.output(program.kind), 1) * costs.decode_s
        block_s = self._compute_s(1)
        worth = slots / ((running + slots) * needs)  # the gain per block and second
        short = self.claimed + needs - self.capacity.blocks
        growth = self._growth + program.growth
        leaving: list[EngineProgram] = []
        stay, look_again = 0, math.inf
        for resident in self._absent:
            if short <= 0 or stay == _CONSIDERED:
                break
            chance, seconds = self._forecast(resident, now)
            use_s = chance * min(seconds, work_s) + (1.0 - chance) * work_s
            if chance * block_s <= worth * use_s:
                leaving.append(resident)
                short -= resident.claim
                growth -= resident.growth
                continue
            stay += 1
            assert resident.cached is not None
            if resident.cached.since < now:
                look_again = min(look_again, now + (now - resident.cached.since) * _AGAIN)
        if short > 0 and (short > growth or block_s > worth * work_s):
            return Keep(look_again)
        return Admit(program, tuple(leaving))

    def _forecast(self, resident: EngineProgram, now: float) -> Forecast:
        """Return the forecast of an absent resident's next call. The forecast is computed only once
        in each pass over the calls that wait for admission.
        """
        forecast = self._forecasts.get(resident)
        if forecast is None:
            assert resident.cached is not None
            if resident.queued:  # assume that it is blocked for as long again as it has been
                blocked_s = now - min(call.since or now for call in resident.queued.values())
                forecast = Forecast(1.0, max(blocked_s, RESOLUTION_S))
            else:
                forecast = returns(self.learned, resident.cached, now)
            self._forecasts[resident] = forecast
        return forecast

    def _wait_for_tool(self, program: EngineProgram, now: float) -> Keep | None:
        """Decide whether an idle engine waits for a resident's tool instead of admitting a program
        that does not fit into the cache. Return None to admit the program.

        If the program were admitted, it would evict the resident's blocks, and the resident would
        evict the program's blocks after its tool. The program waits in this way only once, and at
        most for the time that computing the new parts of its prompts takes. It waits only for a
        tool that is known to run and is expected to end within that time. No program waits before
        this time can be estimated from several steps: the first step of an engine may take a
        minute.
        """
        if not self.learned.costs.compared:
            return None
        until = program.tool_wait_until
        if until is None:
            calls = program.queued.values()
            tokens = sum(max(call.prompt_tokens - call.known_tokens, 0) for call in calls)
            until = now + tokens * self.learned.costs.token_s
        if until <= now:
            return None
        for resident in islice(self._absent, _CONSIDERED):
            if resident.tools and resident.cached is not None:
                forecast = self._forecast(resident, now)
                if forecast.seconds <= until - now:
                    return Keep(until, resident)
        return None

    def _overdue(self, call: QueuedCall, now: float) -> bool:
        target, since = self.config.ttft_target, call.since
        return target is not None and since is not None and now >= since + target

    def _keep(self, program: EngineProgram, decision: Keep) -> None:
        self._look_again = min(self._look_again, decision.until)
        if decision.tool_of is not None:
            program.tool_wait_until = decision.until
            program.tool_wait_for = decision.tool_of.program_id

    # -- calls that wait for admission -----------------------------------------------------

    @property
    def _oldest_is_next(self) -> bool:
        return self.admissions % OLDEST_EVERY == OLDEST_EVERY - 1

    def wait(self, call: QueuedCall) -> None:
        super().wait(call)
        self._full_at = None
        if call not in self._by_age:
            self._kinds[call.program.kind] += 1
        self._by_age.put(call, call.since)

    def leave(self, call: QueuedCall) -> None:
        super().leave(call)
        self._full_at = None
        if call in self._by_age:
            self._leave_kind(call.program.kind)
            self._by_age.discard(call)

    def first(self) -> QueuedCall | None:
        """Return the call that is considered first for admission, unless the oldest call exceeds
        ``ttft_target``; None if no call waits for admission.
        """
        return (self._by_age if self._oldest_is_next else self._not_admitted).first()

    def next_moment(self) -> float:
        until = self._held.first_key()
        moment = min(self._look_again, math.inf if until is None else until)
        target, oldest = self.config.ttft_target, self._by_age.first()
        if target is not None and oldest is not None:
            moment = min(moment, (oldest.since or 0.0) + target)
        return moment

    # -- residents and their claims ----------------------------------------------------------

    def _adds(self, call: QueuedCall, cached: int) -> int:
        # While it runs, a call holds half of its output on average.
        return max(call.prompt_tokens - cached, 0) + self.learned.output(call.program.kind) // 2

    def _compute_s(self, blocks: int) -> float:
        """Return the seconds that computing ``blocks`` blocks takes."""
        return blocks * self.capacity.block_size * self.learned.costs.token_s

    @property
    def _busy(self) -> int:
        """The number of blocks that are claimed, without growth, by residents that have a call that
        could start, plus the blocks of the prefixes that types share.
        """
        return self._needed + self._shared

    def _fits(self, program: EngineProgram) -> bool:
        """Return whether a program that is not resident fits into the cache in addition to the
        residents.
        """
        return self.claimed + self._needs(program) <= self.capacity.blocks

    def _needs(self, program: EngineProgram) -> int:
        """Return the blocks that a program would add: its claim, and the shared prefix of its type
        if no resident has it.
        """
        if program.shared_tokens and program.kind not in self._sharers:
            return program.claim + self._blocks(program.shared_tokens)
        return program.claim

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_size)

    def _update_claim(self, program: EngineProgram) -> None:
        """Recompute how many cache blocks a program claims, without the shared prefix of its type.

        A program with at most one call is a chain: its next call continues from its context. Its
        claim includes the expected growth for as long as holding the room costs less than lacking
        it (`_OUTGROWN`). Before any program of the type has ended, it is unknown how many go on, so
        only half of this period counts. A program with several calls has
        branches with separate contexts. A branch is counted if it has a call, and not counted while
        it waits for a tool.
        """
        calls = [*program.queued.values()]
        tokens, growth = program.context_tokens - program.shared_tokens, 0
        if len(calls) <= 1:
            tokens += sum(call.adds for call in calls)
            stats = self.learned.of_type(program.kind)
            seconds = self._compute_s(self.capacity.blocks) * (_OUTGROWN if stats.calls.n else 1.0)
            growth = stats.growth(tokens, program.finished_calls, seconds)
        else:
            tokens = max(tokens, sum(call.holds for call in calls))
        without = min(self._blocks(max(tokens, 0)) + len(calls), self.capacity.blocks)
        claim = min(self._blocks(max(tokens + growth, 0)) + len(calls), self.capacity.blocks)
        if program.ceded:  # take back what others no longer need
            others = self.claimed - program.claim
            program.ceded = max(min(program.ceded, others + claim - self.capacity.blocks), 0)
            claim -= program.ceded
            without = min(without, claim)
        if program.resident and len(calls) > 1:
            self._branching[program] = None
        else:
            self._branching.pop(program, None)
        if program.resident:
            self.claimed += claim - program.claim
        if program in self._due:
            self._due_claim += claim - program.claim
        program.claim, program.growth = claim, claim - without
        self._count(program)

    def _count(self, program: EngineProgram) -> None:
        """Update the sums of the residents' claims after a change of one program.

        A resident with a call that could start adds the blocks that it needs now. It adds them to
        the kept blocks, too, as does an absent resident whose context is held. Each resident adds
        its growth.
        """
        self._full_at = None
        counted = (0, 0, 0)
        if program.resident:
            kept = 0 if program in self._due else program.claim - program.growth
            counted = (kept if _can_run(program) else 0, kept, program.growth)
        self._needed += counted[0] - program.counted[0]
        self._kept += counted[1] - program.counted[1]
        self._growth += counted[2] - program.counted[2]
        program.counted = counted

    def _apply(self, decision: Admit) -> None:
        decision.program.admitted_by_age = self._oldest_is_next
        super()._apply(decision)
        for resident in (*decision.ceding, decision.program) if decision.ceding else ():
            over = max(self.claimed - self.capacity.blocks, 0)
            resident.ceded += min(over, resident.claim - self._running_blocks(resident))
            self._update_claim(resident)

    def join(self, program: EngineProgram) -> None:
        if program.resident:
            return
        super().join(program)
        self._kinds[program.kind] += 1
        program.attained_when_admitted_s = program.attained_s
        self.admissions += 1
        self.claimed += program.claim
        self._share(program, program.shared_tokens)
        self._count(program)
        if len(program.queued) > 1:
            self._branching[program] = None

    def _share(self, program: EngineProgram, tokens: int) -> None:
        """Count the first ``tokens`` tokens of a resident's context once for all residents of its
        type.
        """
        program.shared_tokens = tokens
        if tokens:
            sharers, blocks = self._sharers.get(program.kind, (0, self._blocks(tokens)))
            if not sharers:
                self._count_prefix(blocks)
            self._sharers[program.kind] = sharers + 1, blocks

    def expel(self, program: EngineProgram) -> None:
        self._no_longer_absent(program)
        if not program.resident:
            return
        super().expel(program)
        self._recomputed_tokens = 0
        self._leave_kind(program.kind)
        self._branching.pop(program, None)
        program.was_resident = True
        self._count(program)
        self.claimed -= program.claim
        if program.ceded:  # to be admitted again, it needs what it gave up, too
            program.ceded = 0
            self._update_claim(program)
        if program.shared_tokens:
            sharers, blocks = self._sharers.pop(program.kind)
            if sharers > 1:
                self._sharers[program.kind] = sharers - 1, blocks
            else:
                self._count_prefix(-blocks)

    def _leave_kind(self, kind: tuple[str, str]) -> None:
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]

    def _count_prefix(self, blocks: int) -> None:
        self.claimed += blocks
        self._shared += blocks


def _can_run(program: EngineProgram) -> bool:
    """Return whether a program has a call that runs or could start."""
    return any(not call.blocked for call in program.queued.values())
