"""``memory``: as many programs at a time as fit into the KV cache with their contexts.

A program claims blocks for its context and for what its calls are expected to add, learned per
type; what all of a type share is counted once. It comes in, in the order of the policy, when
its claim fits beside those of the members, or when half of the batch is free and programs of its
type branch. Where the first does not come in though a slot is free, a few after it are looked at.
Where nothing runs, the first comes in whatever it needs, but not before a member had the time to
come back. It leaves when it ends, when a human is asked, when it is in a tool for longer than its
blocks are worth and others want in, and between two calls when those that have calls have outgrown
the cache, or when one of a better level waits and it had its turn.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.admission.away import Away
from agentrt.scheduler.admission.base import Admission, Capacity, Rank
from agentrt.scheduler.admission.claims import Claims, Own, Program
from agentrt.scheduler.admission.learned import Growth, StepCost
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_HEADROOM = 0.05
"""Share of the cache that nobody is let in for: what the members will add goes there."""
_OUTPUT = 0.5
"""Of the calls' expected output so much is claimed: on the way, each has half of it on average."""
_TURN = 8.0
"""A member is served for so many times what its context takes to compute before it gives way."""
FIFO_EVERY = 32
"""Every so manieth program that comes in is the one that has waited the longest.

So a program is passed by at most so many others for each that waited before it, and for itself.
"""
LOOKED_AT = 8
"""Programs that are asked whether they have room, the first in the order among them."""
_FILLED = 0.5
"""Programs that branch come in without room as long as less of the batch is taken."""
_SLACK = 64
_STILL = 2.0
"""The engine stands still for a member at most so many times what the newcomer takes to compute."""


class WorkingSet(Admission):
    """The members' claims stay within the KV cache, up to what they outgrow it by.

    ``came_in`` counts the programs that ever became members.
    """

    name: ClassVar[str] = "memory"
    lined: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, capacity: Capacity) -> None:
        super().__init__(config, capacity)
        self.growth = Growth()
        self.costs = StepCost()
        self.came_in = 0
        self._claims = Claims(int(capacity.blocks * (1.0 - _HEADROOM)), capacity.block_size)
        self._programs: dict[str, Program] = {}
        self._away = Away()
        self._line: list[tuple[float, int, QueuedCall]] = []
        self._serial = 0
        self._nobody_at: int | None = None
        """So many calls ran when nobody could come in, and nothing has changed since."""
        self._still_since: float | None = None
        """Since when nothing runs though somebody waits outside."""
        self._looks_at = math.inf
        """When the first of them has been kept waiting for long enough."""

    @property
    def members(self) -> int:
        """How many programs are in the set."""
        return len(self._claims.members)

    @property
    def claimed(self) -> int:
        """The blocks that the members claim."""
        return self._claims.claimed

    @property
    def in_use(self) -> int:
        """The blocks that members with calls claim."""
        return self._claims.in_use

    def has(self, program_id: str) -> bool:
        """Whether a program is in the set."""
        return (found := self._programs.get(program_id)) is not None and found.member

    # -- calls -------------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, known: int, beside: int, now: float) -> None:
        program = self._program(call.program)
        program.away += 1
        program.context = max(program.context, known)
        self.growth.call_arrived(program.kind, beside=bool(program.own))
        holds = self._adds(program, call, max(beside, program.shared))
        program.own[call.call_id] = Own(self._adds(program, call, known), holds)
        self._reckon(program)

    def call_began(self, call: QueuedCall, cached: int, now: float) -> None:
        program = self._program(call.program)
        if not program.member:  # it waited in a queue of vLLM's that nobody is kept out of
            self._join(program)
        if call.preemptions:
            return
        if not call.program.finished_calls and len(program.own) == 1:
            self.growth.first_call(program.kind, cached)
        own, adds = program.own.get(call.call_id), self._adds(program, call, cached)
        if own is not None and adds < own.adds:
            program.context = max(program.context, cached)
            program.own[call.call_id] = own._replace(adds=adds)
            self._reckon(program)

    def call_preempted(self, call: QueuedCall, now: float) -> None:
        program = self._program(call.program)
        if len(program.own) <= 1 < self.members:
            self._leave(program)

    def call_ended(self, call: QueuedCall, tokens: int, now: float) -> None:
        program = self._programs.get(call.program.program_id)
        if program is None or program.own.pop(call.call_id, None) is None:
            return
        program.context = max(program.context, tokens)
        self.growth.call_ended(program.kind, max(tokens - call.prompt_tokens, 0))
        self._reckon(program)
        self._goes_away(program, None, now)

    def _adds(self, program: Program, call: QueuedCall, found: int) -> int:
        return max(call.prompt_tokens - found, 0) + int(_OUTPUT * self.growth.output(program.kind))

    # -- programs ----------------------------------------------------------------------

    def interrupt_began(
        self, program_id: str, what: str, seconds: float | None, now: float
    ) -> None:
        program = self._programs.get(program_id)
        if program is None:
            return
        if what == "human" and not program.own and not program.tools:
            self._leave(program)
            return
        program.tools += what == "tool"
        self._goes_away(program, seconds, now)

    def interrupt_ended(self, program_id: str, what: str, now: float) -> None:
        program = self._programs.get(program_id)
        if program is not None and what == "tool" and program.tools:
            program.tools -= 1

    def program_ended(self, program_id: str, now: float) -> None:
        program = self._programs.pop(program_id, None)
        self._nobody_at = None  # calls of it that wait outside claim nothing any more
        if program is not None:
            self._leave(program)

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        self.costs.step(seconds, tokens, calls)

    def _goes_away(self, program: Program, seconds: float | None, now: float) -> None:
        """It waits for something else than a call: until when its blocks are kept at the least.

        Kept, they cost as much as computing them again once the whole cache could have been
        computed anew in that time: until then it is not known better, unless it is expected to
        take longer (the rule of renting skis).
        """
        if program.own or not program.member:
            return
        worth_s = self.capacity.blocks * self.capacity.block_size * self.costs.token_s
        until = now if seconds is not None and seconds > worth_s else now + worth_s
        self._away.add(program, until)

    # -- what is asked -----------------------------------------------------------------

    def rank(self, call: QueuedCall) -> Rank:
        # Who comes back from a tool goes before new ones of its own level.
        program = self._programs.get(call.program.program_id)
        level, order, seq = call.key
        return (level - (0.5 if program is not None and program.returned else 0.0), order, seq)

    def goes_on(self, call: QueuedCall, now: float) -> bool:
        program = self._program(call.program)
        if not program.member:
            return False
        if len(program.own) > 1 or self.members == 1:
            return True
        if self.in_use > self.capacity.blocks or self._gives_way(program, call):
            self._leave(program)
        return program.member

    def _gives_way(self, program: Program, call: QueuedCall) -> bool:
        """Whether a program between two calls leaves for the first of those outside."""
        rival = self.first()
        if rival is None or program.fifo or self._claims.fits(self._program(rival.program)):
            return False
        if not (self._for_age or rival.level < call.level):
            return False
        beside = min(self.members, self.capacity.slots)
        reload_s = program.context * self.costs.token_s
        return program.row.attained_s - program.served_s >= _TURN * reload_s * beside

    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        program = self._program(call.program)
        if (
            self._overdue(call, now)
            or self._has_room(program, now)
            or self._fills_slot(program, running)
            or not (running or self._stands_still(program, now))
        ):
            program.fifo = self._for_age
            self._join(program)
        return program.member

    def _fills_slot(self, program: Program, running: int) -> bool:
        """Whether a program without room comes in, since few slots of the batch are taken.

        One that branches does: most of its branches end soon, and what they push out is not missed.
        Others come back for all that they had, and would push it out again at each other's turns.
        """
        few = running < _FILLED * self.capacity.slots
        return few and self.growth.branches(program.kind)

    def _stands_still(self, program: Program, now: float) -> bool:
        """Whether nothing runs yet, though the program has no room, for who comes back in a moment.

        Let in, it would push out a member, which would push out another when it is back: each would
        be computed again at every turn. Nobody is waited for longer than `_STILL` times what the
        newcomer takes to compute, nor when the members' times in their tools are up.
        """
        still_s = (
            _STILL * self._claims.needs(program) * self.capacity.block_size * self.costs.token_s
        )
        until = (now if self._still_since is None else self._still_since) + still_s
        if until <= now or self._away.next_moment() == math.inf:
            return False
        self._looks_at = min(self._looks_at, until)
        return True

    def _has_room(self, program: Program, now: float) -> bool:
        while not self._claims.fits(program):
            if (other := self._away.due(now)) is None:
                return False
            self._leave(other)
        return True

    def _overdue(self, call: QueuedCall, now: float) -> bool:
        target, since = self.config.ttft_target, call.since
        return target is not None and since is not None and now >= since + target

    # -- those outside -----------------------------------------------------------------

    @property
    def _for_age(self) -> bool:
        return self.came_in % FIFO_EVERY == FIFO_EVERY - 1

    def wait(self, call: QueuedCall) -> None:
        super().wait(call)
        self._nobody_at = None
        self._serial += 1
        heapq.heappush(self._line, (call.since or 0.0, self._serial, call))
        if len(self._line) > 2 * self.held + _SLACK:
            self._line = [entry for entry in self._line if entry[2].held]
            heapq.heapify(self._line)

    def leave(self, call: QueuedCall) -> None:
        super().leave(call)
        self._nobody_at = None

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        if running == self._nobody_at and now < self.next_moment():
            return []
        if running or not self.held:
            self._still_since = None
        elif self._still_since is None:
            self._still_since = now
        self._looks_at = math.inf
        calls = self._look(now, running)
        self._nobody_at = None if calls else running
        return calls

    def _look(self, now: float, running: int) -> list[QueuedCall]:
        oldest = self._oldest()
        if oldest is not None and self._overdue(oldest, now):
            self.admits(oldest, now, running)
            return self.take(oldest.program.program_id)
        if self._for_age:
            return super().let_in(now, running)
        return self._let_in_of_several(now, running)

    def _let_in_of_several(self, now: float, running: int) -> list[QueuedCall]:
        """The first of a few that has room: what waits for more does not hold up a free slot."""
        looked_at = LOOKED_AT if running < self.capacity.slots else 1
        passed: list[tuple[Rank, int, QueuedCall]] = []
        let_in: list[QueuedCall] = []
        while (call := self.first()) is not None:
            if self.admits(call, now, running):
                let_in = self.take(call.program.program_id)
            if let_in or len(passed) + 1 == looked_at:
                break
            passed.append(heapq.heappop(self._heap))
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return let_in

    def next_moment(self) -> float:
        moment, target = min(self._looks_at, self._away.next_moment()), self.config.ttft_target
        if target is not None and (oldest := self._oldest()) is not None:
            moment = min(moment, (oldest.since or 0.0) + target)
        return moment

    def first(self) -> QueuedCall | None:
        return self._oldest() if self._for_age else super().first()

    def _oldest(self) -> QueuedCall | None:
        while self._line and not self._line[0][2].held:
            heapq.heappop(self._line)
        return self._line[0][2] if self._line else None

    # -- the set -----------------------------------------------------------------------

    def _program(self, row: ProgramRow) -> Program:
        program = self._programs.get(row.program_id)
        if program is None:
            kind = (row.tenant, row.type)
            program = Program(row, kind, self.growth.shared(kind))
            self._programs[row.program_id] = program
        return program

    def _reckon(self, program: Program) -> None:
        self._nobody_at = None
        self._claims.reckon(program)

    def _join(self, program: Program) -> None:
        if program.member:
            return
        self._nobody_at = None
        self._claims.add(program)
        self.came_in += 1
        self.changed[program.row.program_id] = True

    def _leave(self, program: Program) -> None:
        if not program.member:
            return
        self._nobody_at = None
        self._claims.remove(program)
        self.changed[program.row.program_id] = False
