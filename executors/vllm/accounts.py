"""The accounts of the calls of one engine core: `Account`, told by vLLM's scheduler what it needs.

vLLM does not say for whom it takes a block or preempts; what a step has given to whom does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from agentrt.executors.vllm._compat.pool import all_blocks, on_eviction
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import (
    AsyncScheduler,
    SchedulerOutput,
    new_blocks,
)
from agentrt.scheduler.account import FEW, Account, Plain, cause_of, few
from agentrt.scheduler.learned import SCANNED
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.records import QueuedCall

_BYTES = 8
"""Bytes of a block's hash that are kept."""
_LOOKED_AT = 64
"""So many of a call's lost blocks are looked up, spread over all."""
EMPTIED: Plain = ["(prefix cache emptied)", 0, 0.0]


class EngineAccount:
    """Tells an `Account` what happens in ``scheduler``, whose calls are in ``queues``."""

    def __init__(self, scheduler: AsyncScheduler, queues: LevelQueues) -> None:
        self._scheduler, self._queues = scheduler, queues
        self._account = Account(_counts, self._holders)
        self.moved, self.ended = self._account.moved, self._account.ended
        self._block_size = hash_block_size(scheduler)
        self._takers: dict[bytes, Plain] = {}
        self._before: dict[bytes, Plain] = {}
        self._most = 2 * all_blocks(scheduler)
        self._evicted: list[tuple[bytes, int]] = []
        self._gave_way: list[list[Plain]] = []
        self._in_step, self._emptied_at = False, -math.inf
        if caches_prefixes(scheduler):
            on_eviction(scheduler, lambda key, block: self._evicted.append((key, block)))

    def arrived(self, call: QueuedCall, now: float) -> None:
        """A call came."""
        self._account.arrived(call, self._ahead(), now)

    def let_in(self, calls: Sequence[QueuedCall], now: float) -> None:
        """These were kept out until now."""
        ahead = self._ahead()
        for call in calls:
            self._account.let_in(call, ahead, now)

    def began(self, call: QueuedCall, now: float, cached: int) -> None:
        """It begins to run, with so many tokens in place, and is still what it was before."""
        again = call.preemptions > 0
        known = call.computed_tokens if again else call.known_tokens
        self._account.began(
            call, now, cached, max(0, known - cached), lambda: self._took(call, cached, known)
        )

    def preempted(self, call: QueuedCall, now: float, by: QueuedCall | None) -> None:
        """It stops for ``by``; None for vLLM, which takes its memory for what this step serves."""
        causes = [] if by is None else [cause_of(by)]
        if by is None and self._in_step:
            self._gave_way.append(causes)
        self._account.preempted(call, now, causes if by or self._in_step else [EMPTIED])

    def emptied(self, now: float) -> None:
        """The prefix cache was emptied."""
        self._emptied_at = now

    # -- a step ------------------------------------------------------------------------

    def begin_step(self) -> None:
        """vLLM's own scheduling begins."""
        self._in_step = True

    def scheduled(self, output: SchedulerOutput) -> None:
        """It is over."""
        self._in_step = False
        if self._evicted or self._gave_way:
            self._settle(output)

    def stepped(self, now: float) -> None:
        """A step's output is in."""
        if self._account.prefilling:
            self._account.first_tokens(now)

    def _settle(self, output: SchedulerOutput) -> None:
        """Say who was given what others lost in this step."""
        calls, given = self._queues.calls, dict[str, Plain]()
        of_block: dict[int, Plain] = {}
        for name, block in new_blocks(output):
            if name not in given and name in calls:
                given[name] = cause_of(calls[name])
            if name in given:
                of_block[block] = given[name]
        some = [*{cause[0]: cause for cause in given.values()}.values()][:FEW] or self._ahead()
        for causes in self._gave_way:
            causes.extend(some)
        self._gave_way.clear()
        for key, block in self._evicted:
            if (taker := of_block.get(block) or next(iter(some), None)) is not None:
                self._takers[key[:_BYTES]] = taker
        self._evicted.clear()
        if len(self._takers) > self._most:
            self._before, self._takers = self._takers, {}

    # -- who -----------------------------------------------------------------------------------

    def _ahead(self) -> list[Plain]:
        """A few of the programs that run now, those with the worst place first."""
        calls, running = self._queues.calls, self._scheduler.running
        names = (request.request_id for request in islice(reversed(running), SCANNED))
        return few(calls[name] for name in names if name in calls)

    def _holders(self) -> list[Plain]:
        """A few of the programs that are members, the last to come in first."""
        admission = self._queues.admission
        rows = islice(reversed({} if admission is None else admission.inside), FEW + 1)
        return [[row.program_id, 0, round(row.attained_s, 6)] for row in rows]

    def _took(self, call: QueuedCall, cached: int, known: int) -> list[Plain]:
        """Who was given the blocks that a call lost, from those that took the most on."""
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


def _counts(call: QueuedCall) -> tuple[int, int, int]:
    request = call.item
    return request.num_computed_tokens, request.num_tokens, request.num_output_tokens
