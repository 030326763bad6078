"""Notes of each call in one engine core, of which `agentrt.scheduler.account` makes its account.

vLLM does not say for whom it takes a block or preempts; what a step has given to whom does.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import islice

from agentrt.executors.vllm._compat.pool import all_blocks, log_evictions
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, SchedulerOutput, new_blocks
from agentrt.request.spans import FEW
from agentrt.scheduler.account import (
    ARRIVED,
    BEGAN,
    CAME_IN,
    ENDED,
    FIRST,
    MOVED,
    STOPPED,
    Plain,
    note,
)
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.records import CallState, QueuedCall

_BYTES = 8
"""Bytes of a block's hash that are kept."""
_LEAST = 4096
"""So many evicted blocks at least are remembered, and four for each block that there is."""
_LOOKED_AT = 64
"""So many of a call's lost blocks are looked up, spread over all."""
EMPTIED: Plain = ["(prefix cache emptied)", 0, 0.0]


class CallNotes:
    """Notes what happens to the calls of ``scheduler``, which are in ``queues``.

    ``prefilling`` are the calls that run and have put out nothing since they began, with as much as
    they had put out then. It is ``in_step`` while vLLM schedules; after that it has to `settle` the
    step if there are ``evicted`` blocks, or calls that ``gave_way`` to vLLM.
    """

    def __init__(self, scheduler: AsyncScheduler, queues: LevelQueues) -> None:
        self._scheduler, self._queues = scheduler, queues
        self._block_size = hash_block_size(scheduler)
        self._takers: dict[bytes, Plain] = {}
        self._before: dict[bytes, Plain] = {}
        self._most = max(_LEAST, 4 * all_blocks(scheduler))
        self._begun: deque[tuple[float, Plain]] = deque(maxlen=FEW)
        self._emptied_at = -math.inf
        self.prefilling: dict[QueuedCall, int] = {}
        self.evicted: list[tuple[bytes, int]] = []
        self.gave_way: list[list[Plain]] = []
        self.in_step = False
        self._caches = caches_prefixes(scheduler)
        if self._caches:
            log_evictions(scheduler, self.evicted)

    # -- what happens ------------------------------------------------------------------

    def arrived(self, call: QueuedCall, now: float) -> None:
        """A call waits from now on."""
        ahead = self._ahead()
        note(call, ARRIVED, now, ahead, [] if ahead else self._holders(call))

    def let_in(self, call: QueuedCall, now: float) -> None:
        """It was kept out until now, and still waits."""
        note(call, CAME_IN, now, list(self._begun), self._holders(call), self._ahead())

    def began(self, call: QueuedCall, now: float, cached: int) -> None:
        """It runs from now on, with so many tokens in place, and is still what it was before."""
        request, attained_s = call.item, call.program.attained_s
        known = call.computed_tokens if call.preemptions else call.known_tokens
        lost_to = self._took(call, cached, known) if known > cached else []
        outputs = request.num_output_tokens
        counts = cached, request.num_tokens, outputs, known
        note(call, BEGAN, now, list(self._begun), *counts, lost_to)
        call.cause = cause = [call.program.program_id, call.level, attained_s]
        self._begun.append((now, cause))
        self.prefilling[call] = outputs

    def first_tokens(self, now: float) -> None:
        """A step has ended: those calls decode from now on that have put out more."""
        for call, before in list(self.prefilling.items()):
            if call.item.num_output_tokens > before:
                del self.prefilling[call]
                self._queues.first_token(call)
                note(call, FIRST, now)

    def moved(self, call: QueuedCall, now: float) -> None:
        """It may have another level now."""
        if (
            call.level != call.notes[-1][2]
            and call.state is CallState.RUNNING
            and call not in self.prefilling
        ):
            note(call, MOVED, now, call.item.num_output_tokens)

    def stopped(self, call: QueuedCall, now: float, better: QueuedCall | None) -> None:
        """It stops for a ``better`` one; None for vLLM, which needs its memory in this step."""
        if better is not None:
            by = [_cause_of(better)]
        elif self.in_step:
            self.gave_way.append(by := [])
        else:
            by = [EMPTIED]
        self.prefilling.pop(call, None)
        note(call, STOPPED, now, call.item.num_computed_tokens, call.item.num_output_tokens, by)

    def ended(self, call: QueuedCall, now: float) -> None:
        """It ends, in whatever state; it is not out of it yet."""
        self.prefilling.pop(call, None)
        counts = call.item.num_computed_tokens, call.item.num_output_tokens
        if call.state is CallState.RUNNING:
            note(call, ENDED, now, *counts)
            return
        outside = call.state is CallState.OUTSIDE
        by = self._holders(call) if outside else []
        note(call, ENDED, now, *counts, list(self._begun), outside, by)

    def emptied(self, now: float) -> None:
        """The prefix cache was emptied."""
        self._emptied_at = now
        if self._caches:
            log_evictions(self._scheduler, self.evicted)

    def settle(self, output: SchedulerOutput) -> None:
        """Say who was given what others lost in this step."""
        calls, takers = self._queues.calls, self._takers
        lost = {block: key[:_BYTES] for key, block in self.evicted}
        served: dict[str, Plain] = {}
        for name, groups in new_blocks(output):
            if (call := calls.get(name)) is None:
                continue
            served[name] = cause = call.cause or _cause_of(call)
            for ids in groups:
                for block in ids:
                    if block in lost:
                        takers[lost.pop(block)] = cause
        if lost or self.gave_way:
            some = [*served.values()][:FEW] or self._ahead()
            for by in self.gave_way:
                by.extend(some)
            # Of one that was preempted in the same step, vLLM does not say what it was given.
            takers.update(dict.fromkeys(lost.values(), next(iter(some), EMPTIED)))
        self.gave_way.clear()
        self.evicted.clear()
        if len(takers) > self._most:
            self._before, self._takers = takers, {}

    # -- because of whom ---------------------------------------------------------------

    def _ahead(self) -> list[Plain]:
        """A few of the programs that run now, those with the worst place first."""
        calls = self._queues.calls
        running = self._scheduler.running[: -FEW - 1 : -1]
        return [_cause_of(calls[request.request_id]) for request in running]

    def _holders(self, call: QueuedCall) -> list[Plain]:
        """A few of the programs that may keep a call out, the last to come in first."""
        if (admission := self._queues.admission) is None:
            return []
        if call.program.idle_for:
            return [[f"(the idle engine waited for a tool of {call.program.idle_for})", 0, 0.0]]
        rows = [row for row in islice(reversed(admission.members), FEW + 1) if row != call.program]
        return [[row.program_id, 0, row.attained_s] for row in rows[:FEW]]

    def _took(self, call: QueuedCall, cached: int, known: int) -> list[Plain]:
        """Who took the blocks of a call's tokens between these two numbers, the most first."""
        size = self._block_size
        hashes = call.item.block_hashes[cached // size : known // size]
        found: dict[str, Plain] = {}
        taken: Counter[str] = Counter()
        for value in hashes[:: 1 + len(hashes) // _LOOKED_AT]:
            key = value[:_BYTES]
            if (cause := self._takers.get(key) or self._before.get(key)) is not None:
                taken[cause[0]] += 1
                found.setdefault(cause[0], cause)
        if not found and self._emptied_at >= call.arrived_at:
            return [EMPTIED]
        return [found[name] for name, _ in taken.most_common(FEW)]


def _cause_of(call: QueuedCall) -> Plain:
    """A call's program, as that for which others wait."""
    return call.cause or [call.program.program_id, call.level, call.program.attained_s]
