"""``memory``: as many programs at a time as fit into the KV cache with their contexts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

from agentrt.scheduler.admission import Admission, Capacity
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import SCANNED, Learned
from agentrt.scheduler.records import OUTSIDE, ProgramRow, QueuedCall
from agentrt.scheduler.retention import returns

OLDEST_EVERY = 32
"""Of so many programs that come in, one is the one that has waited the longest. So a program is
passed by fewer others than that for itself, and for each that waited before it."""

_FILLED = 0.5
"""Programs that branch come in without room as long as less of the batch is taken."""
_CONSIDERED = 64
"""Absent members that are looked at for each program that could use a free slot."""
_TURN = 8.0
"""A member is served for so many times what its context takes to compute before it gives way."""


class WorkingSet(Admission):
    """The admission ``memory``.

    A program claims blocks for its context and for what its calls are expected to add; what all of
    a type share is counted once. It comes in, in the order of the policy, when its claim fits
    beside those of the members. All else follows from one comparison: what it costs to *hold* a
    context against what it costs to *compute it again*, ``token_s`` for each of its tokens, as is
    measured in this engine.

    ``came_in`` counts the programs that ever became members, ``claimed`` are the blocks that the
    members claim, ``held`` those of members without calls, which are given up one by one.
    """

    name: ClassVar[str] = "memory"

    def __init__(self, config: SchedulerConfig, capacity: Capacity, learned: Learned) -> None:
        super().__init__(config, capacity, learned)
        self.came_in = self.claimed = self.held = 0
        self._sharers: dict[tuple[str, str], tuple[int, int]] = {}
        """By type: how many members share a prefix, and the blocks that it is counted with."""
        self._away: Heap[ProgramRow] = Heap()
        """Members without calls that are held, by when they are held no longer."""
        self._absent: dict[ProgramRow, None] = {}
        """All members without calls, the one that has been without for the longest first."""
        self._growth = self._absent_growth = 0
        """Blocks that members with calls, and those without, claim for calls not made yet."""
        self._look_again = math.inf
        """When contexts of absent members may have become worth less than a free slot."""
        self._due: dict[ProgramRow, None] = {}
        """Members that are held no longer: they leave when that makes room for another."""
        self._by_age: Heap[QueuedCall] = Heap()
        """The calls outside, the one that has waited the longest first."""
        self._full_at: int | None = None
        """How many calls ran when `let_in` last let nobody in; None once something has changed."""
        self._waits_until = math.inf
        """When the first of those that the idle engine keeps out for a tool comes in anyway."""

    # -- events ------------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        row = call.program
        self._not_away(row)
        usual, beside = self.learned.usual(row.kind), len(row.queued) > 1
        usual.beside.add(beside)
        if not (row.finished_calls or row.member or beside):
            row.shared_tokens = int(usual.shared.value)
        row.context_tokens = max(row.context_tokens, call.known_tokens)
        call.holds = self._adds(call, max(call.beside_tokens, row.shared_tokens))
        call.adds = self._adds(call, call.known_tokens)
        self._reckon(row)

    def call_began(self, call: QueuedCall, now: float) -> None:
        row, cached = call.program, call.cached_tokens or 0
        self._join(row)  # it may have waited in a queue of vLLM's that nobody is kept out of
        if call.preemptions:
            return
        # One that found nothing says nothing: what others had there may have been evicted.
        if cached and not row.finished_calls and len(row.queued) == 1:
            self.learned.usual(row.kind).shared.add(cached)
        adds = self._adds(call, cached)
        if adds < call.adds:
            row.context_tokens = max(row.context_tokens, cached)
            call.adds = adds
            self._reckon(row)

    def call_preempted(self, call: QueuedCall, now: float, *, for_memory: bool) -> None:
        if for_memory and len(call.program.queued) <= 1 < len(self.members):
            self._expel(call.program)

    def call_ended(self, call: QueuedCall, now: float) -> None:
        row, tokens = call.program, call.computed_tokens
        if tokens >= call.prompt_tokens:  # else it was cancelled before any output
            if row.turned_at is not None and not row.queued:
                usual = self.learned.usual(row.kind)
                usual.grown.add(max(tokens - row.context_tokens, 0))
                usual.turn_s.add(now - row.turned_at - call.waited_s)
            row.turned_at = now
        row.context_tokens = max(row.context_tokens, tokens)
        self._reckon(row)
        self._goes_away(row, now)

    def interrupt_began(self, row: ProgramRow, kind: str, name: str, now: float) -> None:
        self._goes_away(row, now)

    def interrupt_ended(self, row: ProgramRow, now: float) -> None:
        self._full_at = None  # nobody waits for its tool any more

    def program_ended(self, row: ProgramRow, now: float) -> None:
        self._full_at = None  # its calls that wait outside claim nothing any more
        if row.service_s and not row.queued:  # else it is heard of again when they have ended
            self.learned.usual(row.kind).calls.add(row.finished_calls)
        self._expel(row)

    def _goes_away(self, row: ProgramRow, now: float) -> None:
        """A member has no call any more: until when it is held at the least.

        For as long as computing the whole cache takes: after that, its share of the cache has cost
        more than its context (the rule of renting skis). If it is expected back later, not at all.
        """
        if row.queued or not row.member or row.cached is None:
            return
        chance, seconds = returns(self.learned, row.cached, now)
        held_s = self._compute_s(self.capacity.blocks)
        self._due.pop(row, None)
        self._away.put(row, now if seconds > chance * held_s else now + held_s)
        self._absent.pop(row, None)
        self._absent[row] = None
        self._full_at = None

    # -- who goes on -------------------------------------------------------------------

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        # Who comes back from a tool goes before new ones of its own level.
        level, order, seq = call.key
        return (level, not call.program.was_member, order, seq)

    def goes_on(self, call: QueuedCall) -> bool:
        row = call.program
        if not row.member:
            return False
        if len(row.queued) > 1:
            return True
        room = self.capacity.blocks
        outgrown = self._busy > room and len(self.members) > 1
        if outgrown or self._gives_way(row, call):
            self._expel(row)
        return row.member

    def _gives_way(self, row: ProgramRow, call: QueuedCall) -> bool:
        """Whether a program between two calls leaves for the first of those outside.

        The switch costs the time to compute its context, for each member that stands still for it.
        """
        rival = self.first()
        if rival is None or row.by_age or self._fits(rival.program):
            return False
        if not (self._oldest_is_next or rival.level < call.level):
            return False
        beside = min(len(self.members), self.capacity.slots)
        reload_s = row.context_tokens * self.learned.costs.token_s
        return row.attained_s - row.attained_before_s >= _TURN * reload_s * beside

    # -- who comes in ------------------------------------------------------------------

    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        row = call.program
        if (
            self._overdue(call, now)
            or self._make_room(row, now)
            or self._fills_batch(row, running)
            or self._use_free_slot(row, now, running)
            or not (running or self._waits_for_a_tool(row, now))
        ):
            row.by_age = self._oldest_is_next
            self._join(row)
        return row.member

    def _make_room(self, row: ProgramRow, now: float) -> bool:
        """Whether it fits, once those whose time is up have left: no more of them than it takes."""
        while (until := self._away.first_key()) is not None and until <= now:
            self._due[self._away.pop()] = None
        if self._fits(row):  # most often, and without a look at each that could leave
            return True
        due = sum(member.claim for member in self._due)
        if self.claimed - due + self._needs(row) > self.capacity.blocks:
            return False
        while self._due and not self._fits(row):
            self._expel(next(iter(self._due)))
        return self._fits(row)

    def _fills_batch(self, row: ProgramRow, running: int) -> bool:
        """Whether a program comes in without room, since little of the batch is taken.

        Only if its type branches: most branches end soon, and what it evicts is mostly of branches
        that have ended. A chain comes back for all that it had, and would evict others each time.
        """
        few = running < _FILLED * self.capacity.slots
        return few and self.learned.usual(row.kind).branches

    def _use_free_slot(self, row: ProgramRow, now: float, running: int) -> bool:
        """Whether a free slot is worth more than the contexts that the program would evict.

        A batch of b calls computes a token of each in a step, so one call more gives 1/(b + 1) of
        a second of work for each second in which the slot would be empty. An absent member's
        context costs what computing it again takes, times the chance that it returns. Its room is
        of use for as long as the waiting call is expected to run, or until the member returns.
        Room that members claim for calls that they have not made yet costs what computing so many
        blocks takes.

        Members leave, the longest absent first, only if the program then fits. Past `_CONSIDERED`
        whose contexts are worth more, no others are looked at.
        """
        calls = [call for call in row.queued.values() if call.state is OUTSIDE]
        slots = min(self.capacity.slots - running, len(calls))
        needs = self._needs(row)
        if slots <= 0 or self._busy + needs - row.growth > self.capacity.blocks:
            return False
        costs = self.learned.costs
        work_s = max(self.learned.output(row.kind), 1) * costs.decode_s
        block_s = self._compute_s(1)
        worth = slots / ((running + slots) * needs)  # of a block of room, for each second
        short = self.claimed + needs - self.capacity.blocks
        growth = self._growth + self._absent_growth + row.growth
        leaving: list[ProgramRow] = []
        stay = 0
        for member in self._absent:
            if short <= 0 or stay == _CONSIDERED:
                break
            assert member.cached is not None
            chance, seconds = returns(self.learned, member.cached, now)
            use_s = chance * min(seconds, work_s) + (1.0 - chance) * work_s
            if chance * block_s <= worth * use_s:
                leaving.append(member)
                short -= member.claim
                growth -= member.growth
                continue
            stay += 1
            if member.cached.since < now:
                self._look_again = min(self._look_again, 2.0 * now - member.cached.since)
        if short > 0 and (short > growth or block_s > worth * work_s):
            return False
        for member in leaving:
            self._expel(member)
        return True

    def _waits_for_a_tool(self, row: ProgramRow, now: float) -> bool:
        """Whether the idle engine waits for a member's tool rather than let in one without room.

        Let in, the program would evict the member's blocks, which would evict its own when it is
        back. It waits once, for as long as its own prompt takes to compute at the most, and only
        for a tool that is known to run and is expected to end sooner.
        """
        if row.idle_until is None:
            calls = row.queued.values()
            tokens = sum(max(call.prompt_tokens - call.known_tokens, 0) for call in calls)
            row.idle_until = now + tokens * self.learned.costs.token_s
        if row.idle_until <= now:
            return False
        left_s = row.idle_until - now
        for member in islice(self._absent, _CONSIDERED):
            if member.tools and member.cached is not None:
                forecast = returns(self.learned, member.cached, now)
                if forecast.seconds <= left_s:
                    self._waits_until = min(self._waits_until, row.idle_until)
                    row.idle_for = member.program_id
                    return True
        return False

    def _overdue(self, call: QueuedCall, now: float) -> bool:
        target, since = self.config.ttft_target, call.since
        return target is not None and since is not None and now >= since + target

    # -- those outside -----------------------------------------------------------------

    @property
    def _oldest_is_next(self) -> bool:
        return self.came_in % OLDEST_EVERY == OLDEST_EVERY - 1

    def wait(self, call: QueuedCall) -> None:
        super().wait(call)
        self._full_at = None
        self._by_age.put(call, call.since)

    def leave(self, call: QueuedCall) -> None:
        super().leave(call)
        self._full_at = None
        self._by_age.discard(call)

    def first(self) -> QueuedCall | None:
        """The call outside that is next to be let in."""
        return (self._by_age if self._oldest_is_next else self._outside).first()

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        if running == self._full_at and now < self.next_moment():
            return []
        self._waits_until = self._look_again = math.inf
        calls = super().let_in(now, running)
        self._full_at = None if calls else running
        return calls

    def asked(self, now: float, running: int) -> Iterable[QueuedCall]:
        oldest = self._by_age.first()
        if oldest is not None and (self._oldest_is_next or self._overdue(oldest, now)):
            return (oldest,)
        # What waits for more room than there is does not hold up a free slot.
        several = SCANNED if running < self.capacity.slots else 1
        return islice(self._outside, several)

    def next_moment(self) -> float:
        until = self._away.first_key()
        moment = min(self._waits_until, self._look_again, math.inf if until is None else until)
        target, oldest = self.config.ttft_target, self._by_age.first()
        if target is not None and oldest is not None:
            moment = min(moment, (oldest.since or 0.0) + target)
        return moment

    # -- the set and its claims --------------------------------------------------------

    def _adds(self, call: QueuedCall, found: int) -> int:
        # On its way, a call has half of its output on average.
        return max(call.prompt_tokens - found, 0) + self.learned.output(call.program.kind) // 2

    def _compute_s(self, blocks: int) -> float:
        """Seconds to compute so many blocks."""
        return blocks * self.capacity.block_size * self.learned.costs.token_s

    @property
    def _busy(self) -> int:
        """Blocks that members with calls claim for these calls."""
        return self.claimed - self.held - self._growth

    def _fits(self, row: ProgramRow) -> bool:
        """Whether a program that is no member has room beside the members."""
        return self.claimed + self._needs(row) <= self.capacity.blocks

    def _needs(self, row: ProgramRow) -> int:
        """The blocks that it would bring: its claim, and its type's prefix where that is not in."""
        if row.shared_tokens and row.kind not in self._sharers:
            return row.claim + self._blocks(row.shared_tokens)
        return row.claim

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_size)

    def _reckon(self, row: ProgramRow) -> None:
        """Claim anew what a program takes of the cache, beside what its type shares.

        A chain goes on from its context, and grows for as long as holding room for that costs less
        than computing again what has to leave for it. Branches have contexts of their own, and each
        that has a call is counted; one that waits for a tool is not.
        """
        calls = [*row.queued.values()]
        tokens, growth = row.context_tokens - row.shared_tokens, 0
        if len(calls) <= 1:
            tokens += sum(call.adds for call in calls)
            held_s = self._compute_s(self.capacity.blocks)
            growth = self.learned.usual(row.kind).growth(tokens, held_s)
        else:
            tokens = max(tokens, sum(call.holds for call in calls))
        without = min(self._blocks(max(tokens, 0)) + len(calls), self.capacity.blocks)
        claim = min(self._blocks(max(tokens + growth, 0)) + len(calls), self.capacity.blocks)
        if row.member:
            self.claimed += claim - row.claim
        row.claim, row.growth = claim, claim - without
        self._changed(row)

    def _changed(self, row: ProgramRow) -> None:
        """It claims something else, or came in or left."""
        self._full_at = None
        held = row.claim if row.member and not row.queued else 0
        self.held += held - row.held
        row.held = held
        growth = row.growth if row.member else 0
        growing, absent = (growth, 0) if row.queued else (0, growth)
        self._growth += growing - row.growing
        self._absent_growth += absent - row.growing_absent
        row.growing, row.growing_absent = growing, absent

    def _join(self, row: ProgramRow) -> None:
        if row.member:
            return
        self._set_member(row, True)
        row.attained_before_s = row.attained_s
        self.came_in += 1
        self.claimed += row.claim
        if row.shared_tokens:
            sharers, blocks = self._sharers.get(row.kind, (0, self._blocks(row.shared_tokens)))
            self.claimed += 0 if sharers else blocks
            self._sharers[row.kind] = sharers + 1, blocks
        self._changed(row)

    def _not_away(self, row: ProgramRow) -> None:
        self._away.discard(row)
        self._due.pop(row, None)
        self._absent.pop(row, None)

    def _expel(self, row: ProgramRow) -> None:
        self._not_away(row)
        if not row.member:
            return
        self._set_member(row, False)
        row.was_member = True
        self._changed(row)
        self.claimed -= row.claim
        if row.shared_tokens:
            sharers, blocks = self._sharers.pop(row.kind)
            if sharers > 1:
                self._sharers[row.kind] = sharers - 1, blocks
            else:
                self.claimed -= blocks
