"""Notes what happens to each call in an engine core, and which programs cause its waits.

`agentrt.scheduler.account` turns the notes into an account of the call's time. vLLM does not say
for which request it evicts a block or preempts another request. This module infers it from the
blocks that each request gets in the same step.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import islice

from agentrt.executors.vllm._compat.pool import all_blocks, log_evictions
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, SchedulerOutput, new_blocks
from agentrt.request.spans import FEW
from agentrt.scheduler.account import NoteKind, Plain, note
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import (
    CallAdmitted,
    CallArrived,
    CallEvent,
    CallFinished,
    CallLoaded,
    CallLoading,
    CallPreempted,
    CallReranked,
    CallStarted,
    FirstToken,
    PreemptionReason,
)
from agentrt.scheduler.state import NOT_ADMITTED, RUNNING, QueuedCall

_BYTES = 8
"""Number of bytes of a block's hash that are kept."""
_LEAST = 4096
"""Minimum number of evicted blocks that are remembered. If the engine has many blocks, four times
their number are remembered.
"""
_LOOKED_AT = 64
"""Approximate number of a call's evicted blocks that are looked up, spread evenly."""
EMPTIED: Plain = ["(prefix cache emptied)", 0, 0.0]


class CallNotes:
    """A listener of ``core`` that notes what happens to the calls of ``scheduler``."""

    def __init__(self, scheduler: AsyncScheduler, core: SchedulerCore) -> None:
        self._scheduler, self._core = scheduler, core
        self._block_size = hash_block_size(scheduler)
        self._takers: dict[bytes, Plain] = {}
        self._before: dict[bytes, Plain] = {}
        self._most = max(_LEAST, 4 * all_blocks(scheduler))
        self._starts: deque[tuple[float, Plain]] = deque(maxlen=FEW)
        """The times of the latest starts of calls, each with the call as a cause."""
        self._emptied_at = -math.inf
        self._evicted: list[tuple[bytes, int]] = []
        """Blocks that were evicted from the prefix cache in this step: (old key, block id)."""
        self._preempted: list[list[Plain]] = []
        """For each call that vLLM preempted in this step: the causes, which `settle` fills in."""
        self._caches = caches_prefixes(scheduler)
        if self._caches:
            log_evictions(scheduler, self._evicted)

    # -- what happens ------------------------------------------------------------------

    def hear(self, event: CallEvent) -> None:
        """Add a note of an event to the notes of the event's call."""
        match event:
            case CallArrived(call, now):
                ahead = self._ahead()
                note(call, NoteKind.ARRIVED, now, ahead, [] if ahead else self._kept_out_by(call))
            case CallAdmitted(call, now):
                kept_out_by = self._kept_out_by(call)
                note(call, NoteKind.ADMITTED, now, list(self._starts), kept_out_by, self._ahead())
            case CallLoading(call, now, cached_tokens, tokens):
                lost_to = self._takers_of(call, cached_tokens, cached_tokens + tokens)
                note(call, NoteKind.LOADS, now, list(self._starts), tokens, lost_to)
            case CallLoaded(call, now, failed):
                note(call, NoteKind.LOADED, now, failed, self._ahead())
            case CallStarted(call, now, cached_tokens):
                self._started(call, now, cached_tokens or 0)
            case FirstToken(call, now):
                note(call, NoteKind.FIRST_TOKEN, now)
            case CallReranked(call, now):
                if call.level != call.notes[-1][2] and call.state is RUNNING:
                    note(call, NoteKind.RERANKED, now, call.item.num_output_tokens)
            case CallPreempted(call, now, reason, better):
                by = self._preempted_for(reason, better)
                counts = call.item.num_computed_tokens, call.item.num_output_tokens
                note(call, NoteKind.STOPPED, now, *counts, by)
            case CallFinished(call, now):
                self._finished(call, now)

    def _started(self, call: QueuedCall, now: float, cached: int) -> None:
        request, attained_s = call.item, call.program.attained_s
        known = call.computed_tokens if call.preemptions else call.known_tokens
        lost_to = self._takers_of(call, cached, known) if known > cached else []
        counts = cached, request.num_tokens, request.num_output_tokens, known
        note(call, NoteKind.STARTED, now, list(self._starts), *counts, lost_to)
        call.cause = cause = [call.program.program_id, call.level, attained_s]
        self._starts.append((now, cause))

    def _preempted_for(self, reason: PreemptionReason, better: QueuedCall | None) -> list[Plain]:
        if better is not None:
            return [_cause_of(better)]
        if reason is PreemptionReason.RESET:
            return [EMPTIED]
        by: list[Plain] = []  # vLLM gives the call's blocks to others in this step: see `settle`
        self._preempted.append(by)
        return by

    def _finished(self, call: QueuedCall, now: float) -> None:
        counts = call.item.num_computed_tokens, call.item.num_output_tokens
        if call.state is RUNNING:
            note(call, NoteKind.ENDED, now, *counts)
            return
        not_admitted = call.state is NOT_ADMITTED
        by = self._kept_out_by(call) if not_admitted else []
        note(call, NoteKind.ENDED, now, *counts, list(self._starts), not_admitted, by)

    def emptied(self, now: float) -> None:
        """Note that the prefix cache was emptied at ``now`` (seconds, the scheduler's clock)."""
        self._emptied_at = now
        if self._caches:
            log_evictions(self._scheduler, self._evicted)

    def settle(self, output: SchedulerOutput) -> None:
        """Note which programs got the blocks and slots that other programs lost in this step."""
        if not (self._evicted or self._preempted):
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
        if lost or self._preempted:
            causes = [*served.values()][:FEW] or self._ahead()
            for by in self._preempted:
                by.extend(causes)
            # If a request got blocks and was preempted in the same step, vLLM does not report its
            # blocks: attribute the remaining lost blocks to the first cause.
            takers.update(dict.fromkeys(lost.values(), next(iter(causes), EMPTIED)))
        self._preempted.clear()
        self._evicted.clear()
        if len(takers) > self._most:
            self._before, self._takers = takers, {}

    # -- causes of waits ---------------------------------------------------------------

    def _ahead(self) -> list[Plain]:
        """Return the programs of up to `FEW` running calls, beginning with the last call of vLLM's
        list of running requests.
        """
        calls = self._core.calls
        running = self._scheduler.running[: -FEW - 1 : -1]
        return [_cause_of(calls[request.request_id]) for request in running]

    def _kept_out_by(self, call: QueuedCall) -> list[Plain]:
        """Return the resident programs that keep a call from being admitted: up to `FEW` programs,
        the most recently admitted program first.

        If the idle engine waits for a tool of another program, this wait is the only cause that is
        returned.
        """
        if (admission := self._core.admission) is None:
            return []
        if tool_of := call.program.tool_wait_for:
            return [[f"(the idle engine waited for a tool of {tool_of})", 0, 0.0]]
        latest = islice(reversed(admission.residents), FEW + 1)
        rows = [row for row in latest if row != call.program]
        return [[row.program_id, 0, row.attained_s] for row in rows[:FEW]]

    def _takers_of(self, call: QueuedCall, cached: int, known: int) -> list[Plain]:
        """Return up to `FEW` programs that took blocks of a call, the program that took the most
        blocks first. If no program is known, but the prefix cache was emptied since the call
        arrived, return `EMPTIED`.

        The blocks are those of the tokens from ``cached`` to ``known``, which were computed before.
        Of many blocks, about `_LOOKED_AT` are looked up.
        """
        size = self._block_size
        hashes = call.item.block_hashes[cached // size : known // size]
        causes: dict[str, Plain] = {}
        taken: Counter[str] = Counter()
        for value in hashes[:: 1 + len(hashes) // _LOOKED_AT]:
            key = value[:_BYTES]
            if (cause := self._takers.get(key) or self._before.get(key)) is not None:
                taken[cause[0]] += 1
                causes.setdefault(cause[0], cause)
        if not causes and self._emptied_at >= call.arrived_at:
            return [EMPTIED]
        return [causes[name] for name, _ in taken.most_common(FEW)]


def _cause_of(call: QueuedCall) -> Plain:
    """Return a call's program as a cause of other calls' waits: [id, level, attained seconds]."""
    return call.cause or [call.program.program_id, call.level, call.program.attained_s]
