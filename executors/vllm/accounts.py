"""The accounts of the calls of one engine core: what `Account` has to know of vLLM's scheduler.

vLLM does not say for whom it takes a block or preempts; what a step has given to whom does.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

from agentrt.executors.vllm._compat.pool import all_blocks, log_evictions
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, SchedulerOutput, new_blocks
from agentrt.scheduler.account import FEW, Account, Plain, cause_of
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.records import QueuedCall

_BYTES = 8
"""Bytes of a block's hash that are kept."""
_LOOKED_AT = 64
"""So many of a call's lost blocks are looked up, spread over all."""
EMPTIED: Plain = ["(prefix cache emptied)", 0, 0.0]


class EngineAccount(Account):
    """The account of ``scheduler``, whose calls are in ``queues``.

    It is ``in_step`` while vLLM schedules; after that it has to `settle` the step if there are
    ``evicted`` blocks, or calls that ``gave_way`` to vLLM.
    """

    def __init__(self, scheduler: AsyncScheduler, queues: LevelQueues) -> None:
        super().__init__()
        self._scheduler, self._queues = scheduler, queues
        self._block_size = hash_block_size(scheduler)
        self._takers: dict[bytes, Plain] = {}
        self._before: dict[bytes, Plain] = {}
        self._most = 2 * all_blocks(scheduler)
        self._emptied_at = -math.inf
        self.evicted: list[tuple[bytes, int]] = []
        self.gave_way: list[list[Plain]] = []
        self.in_step = False
        if caches_prefixes(scheduler):
            log_evictions(scheduler, self.evicted)

    def stopped(self, call: QueuedCall, now: float, better: QueuedCall | None) -> None:
        """It stops for a ``better`` one; None for vLLM, which needs its memory in this step."""
        if better is not None:
            by = [cause_of(better)]
        elif self.in_step:
            self.gave_way.append(by := [])
        else:
            by = [EMPTIED]
        self.preempted(call, now, by)

    def emptied(self, now: float) -> None:
        """The prefix cache was emptied."""
        self._emptied_at = now
        log_evictions(self._scheduler, self.evicted)

    def settle(self, output: SchedulerOutput) -> None:
        """Say who was given what others lost in this step."""
        calls = self._queues.calls
        taker: dict[int, str] = {}
        for name, groups in new_blocks(output):
            for ids in groups:
                taker.update(dict.fromkeys(ids, name))
        served = {name: calls[name] for name in set(taker.values()) if name in calls}
        causes = {name: call.account.cause or cause_of(call) for name, call in served.items()}
        some = list({cause[0]: cause for cause in causes.values()}.values())[:FEW] or self.ahead()
        for by in self.gave_way:
            by.extend(some)
        self.gave_way.clear()
        for key, block in self.evicted:
            # Of one that was preempted in the same step, vLLM does not say what it was given.
            if cause := causes.get(taker.get(block, "")) or next(iter(some), None):
                self._takers[key[:_BYTES]] = cause
        self.evicted.clear()
        if len(self._takers) > self._most:
            self._before, self._takers = self._takers, {}

    # -- what it has to know -----------------------------------------------------------

    def counts(self, call: QueuedCall) -> tuple[int, int, int]:
        request = call.item
        return request.num_computed_tokens, request.num_tokens, request.num_output_tokens

    def ahead(self) -> list[Plain]:
        calls = self._queues.calls
        named: dict[str, Plain] = {}
        for request in self._scheduler.running[: -FEW - 1 : -1]:  # those with the worst place
            cause = calls[request.request_id].account.cause
            named[cause[0]] = cause
        return list(named.values())

    def holders(self) -> list[Plain]:
        admission = self._queues.admission
        rows = islice(reversed({} if admission is None else admission.inside), FEW + 1)
        return [[row.program_id, 0, round(row.attained_s, 6)] for row in rows]

    def took(self, call: QueuedCall, cached: int, known: int) -> list[Plain]:
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
