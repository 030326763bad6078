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
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import (
    CallAdmitted,
    CallArrived,
    CallEvent,
    CallFinished,
    CallPreempted,
    CallReranked,
    CallStarted,
    FirstToken,
    PreemptionReason,
)
from agentrt.scheduler.records import NOT_ADMITTED, RUNNING, QueuedCall

_BYTES = 8
"""Bytes of a block's hash that are kept."""
_LEAST = 4096
"""So many evicted blocks at least are remembered, and four for each block that there is."""
_LOOKED_AT = 64
"""So many of a call's lost blocks are looked up, spread over all."""
EMPTIED: Plain = ["(prefix cache emptied)", 0, 0.0]


class CallNotes:
    """Notes what happens to the calls of ``scheduler``: a listener of its ``core``."""

    def __init__(self, scheduler: AsyncScheduler, core: SchedulerCore) -> None:
        self._scheduler, self._core = scheduler, core
        self._block_size = hash_block_size(scheduler)
        self._takers: dict[bytes, Plain] = {}
        self._before: dict[bytes, Plain] = {}
        self._most = max(_LEAST, 4 * all_blocks(scheduler))
        self._begun: deque[tuple[float, Plain]] = deque(maxlen=FEW)
        self._emptied_at = -math.inf
        self._evicted: list[tuple[bytes, int]] = []
        """Blocks that were given to others in this step: their old keys, and their ids."""
        self._gave_way: list[list[Plain]] = []
        """For each call that vLLM preempted in this step: because of whom, as yet unknown."""
        self._caches = caches_prefixes(scheduler)
        if self._caches:
            log_evictions(scheduler, self._evicted)

    # -- what happens ------------------------------------------------------------------

    def hear(self, event: CallEvent) -> None:
        """Note an event in its call."""
        match event:
            case CallArrived(call, now):
                ahead = self._ahead()
                note(call, ARRIVED, now, ahead, [] if ahead else self._holders(call))
            case CallAdmitted(call, now):
                note(call, CAME_IN, now, list(self._begun), self._holders(call), self._ahead())
            case CallStarted(call, now, cached_tokens):
                self._started(call, now, cached_tokens or 0)
            case FirstToken(call, now):
                note(call, FIRST, now)
            case CallReranked(call, now):
                if call.level != call.notes[-1][2] and call.state is RUNNING:
                    note(call, MOVED, now, call.item.num_output_tokens)
            case CallPreempted(call, now, reason, better):
                by = self._preempted_for(reason, better)
                counts = call.item.num_computed_tokens, call.item.num_output_tokens
                note(call, STOPPED, now, *counts, by)
            case CallFinished(call, now):
                self._finished(call, now)

    def _started(self, call: QueuedCall, now: float, cached: int) -> None:
        request, attained_s = call.item, call.program.attained_s
        known = call.computed_tokens if call.preemptions else call.known_tokens
        lost_to = self._took(call, cached, known) if known > cached else []
        counts = cached, request.num_tokens, request.num_output_tokens, known
        note(call, BEGAN, now, list(self._begun), *counts, lost_to)
        call.cause = cause = [call.program.program_id, call.level, attained_s]
        self._begun.append((now, cause))

    def _preempted_for(self, reason: PreemptionReason, better: QueuedCall | None) -> list[Plain]:
        if better is not None:
            return [_cause_of(better)]
        if reason is PreemptionReason.RESET:
            return [EMPTIED]
        by: list[Plain] = []  # vLLM needs its memory in this step: see `settle`
        self._gave_way.append(by)
        return by

    def _finished(self, call: QueuedCall, now: float) -> None:
        counts = call.item.num_computed_tokens, call.item.num_output_tokens
        if call.state is RUNNING:
            note(call, ENDED, now, *counts)
            return
        not_admitted = call.state is NOT_ADMITTED
        by = self._holders(call) if not_admitted else []
        note(call, ENDED, now, *counts, list(self._begun), not_admitted, by)

    def emptied(self, now: float) -> None:
        """The prefix cache was emptied."""
        self._emptied_at = now
        if self._caches:
            log_evictions(self._scheduler, self._evicted)

    def settle(self, output: SchedulerOutput) -> None:
        """Note who was given the blocks and the slots that others lost in this step."""
        if not (self._evicted or self._gave_way):
            return
        calls, takers = self._core.calls, self._takers
        lost = {block: key[:_BYTES] for key, block in self._evicted}
        served: dict[str, Plain] = {}
        for name, groups in new_blocks(output):
            if (call := calls.get(name)) is None:
                continue
            served[name] = cause = call.cause or _cause_of(call)
            for ids in groups:
                for block in ids:
                    if block in lost:
                        takers[lost.pop(block)] = cause
        if lost or self._gave_way:
            some = [*served.values()][:FEW] or self._ahead()
            for by in self._gave_way:
                by.extend(some)
            # Of one that was preempted in the same step, vLLM does not say what it was given.
            takers.update(dict.fromkeys(lost.values(), next(iter(some), EMPTIED)))
        self._gave_way.clear()
        self._evicted.clear()
        if len(takers) > self._most:
            self._before, self._takers = takers, {}

    # -- because of whom ---------------------------------------------------------------

    def _ahead(self) -> list[Plain]:
        """A few of the programs that run now, those with the worst place first."""
        calls = self._core.calls
        running = self._scheduler.running[: -FEW - 1 : -1]
        return [_cause_of(calls[request.request_id]) for request in running]

    def _holders(self, call: QueuedCall) -> list[Plain]:
        """A few of the programs that may keep a call out, the last to come in first."""
        if (admission := self._core.admission) is None:
            return []
        if tool_of := call.program.tool_wait_for:
            return [[f"(the idle engine waited for a tool of {tool_of})", 0, 0.0]]
        latest = islice(reversed(admission.residents), FEW + 1)
        rows = [row for row in latest if row != call.program]
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
