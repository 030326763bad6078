"""Keeps programs' blocks in the prefix cache while they are away, and knows what they had there.

`BlockRetention` stands between the scheduler and vLLM's free blocks. With retention ``lru`` it
only keeps count: nothing of vLLM's is replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any

from agentrt.executors.vllm._compat.offloading import keys_of, policy_of
from agentrt.executors.vllm._compat.pool import all_blocks, cached_blocks, find_cached, free_queue
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.executors.vllm.free_queue import ProtectedFreeQueue
from agentrt.executors.vllm.host_tier import ProgramCachePolicy
from agentrt.executors.vllm.prefix_history import known_blocks, most_in_common, note_blocks
from agentrt.scheduler.events import CallEvent, CallFinished, CallPreempted
from agentrt.scheduler.learned import KINDS, SCANNED
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.records import CachedBlocks, EngineProgram, QueuedCall
from agentrt.scheduler.retention import EvictionOrder, Retention


class BlockRetention:
    """The free queue that protects blocks, if a ``policy`` says which; and what calls computed.

    ``queue`` is None with retention ``lru``, and where prefixes are not cached at all.
    """

    def __init__(
        self, scheduler: AsyncScheduler, owners: BlockOwners, policy: Retention | None
    ) -> None:
        self._scheduler, self._owners = scheduler, owners
        self._block_size = hash_block_size(scheduler)
        self._computed: OrderedDict[str, tuple[Sequence[bytes], int]] = OrderedDict()
        """By call that ended: the hashes of its blocks, and how many of them it had computed."""
        self.now = 0.0
        self.queue: ProtectedFreeQueue | None = None
        self.host: ProgramCachePolicy | None = None
        if policy is None or not caches_prefixes(scheduler):
            return
        self.queue = ProtectedFreeQueue.adopt(
            free_queue(scheduler), all_blocks(scheduler), EvictionOrder(policy, owners.sharers)
        )
        host = policy_of(scheduler)
        if isinstance(host, ProgramCachePolicy):
            self.host = host
            host.bind(owners, EvictionOrder(policy, owners.sharers))
        owners.changed = self.queue.changed if self.host is None else self._changed

    @property
    def protected(self) -> int:
        """Free blocks that are given away last."""
        return 0 if self.queue is None else self.queue.protected

    def close(self) -> None:
        """Give vLLM its queue back."""
        if self.queue is not None:
            self.queue.leave()
            self.queue = None
        if self.host is not None:
            self.host.bind(None, None)
            self.host = None

    def _changed(self, blocks: CachedBlocks) -> None:
        """These stand elsewhere in the order, in the engine's memory and in the host's."""
        if self.queue is not None:
            self.queue.changed(blocks)
        if self.host is not None:
            self.host.changed(blocks)

    def at(self, now: float) -> None:
        """It is ``now`` (seconds, the scheduler's clock)."""
        self.now = now
        if self.queue is not None:
            self.queue.now = now
        if self.host is not None:
            self.host.now = now

    # -- calls -------------------------------------------------------------------------

    def arriving(self, call: QueuedCall) -> None:
        """A program's call is about to arrive: fill in what of its prompt was computed before.

        Of a prompt that is known in whole the last token is computed again in any case.
        """
        request, row, size = call.item, call.program, self._block_size
        hashes = request.block_hashes
        known = known_blocks(self._owners.own(row).chains, hashes)
        call.known_tokens = min(known, (request.num_prompt_tokens - 1) // size) * size
        latest = islice(reversed(row.queued.values()), SCANNED)
        beside = most_in_common(hashes, (other.item.block_hashes for other in latest))
        call.beside_tokens = beside * size
        if self.host is not None and row.cached is not None:
            self.host.call_arrived(request.request_id, row.cached)

    def hear(self, event: CallEvent) -> None:
        """Mark the blocks of a call that is about to lose them."""
        if isinstance(event, CallPreempted):
            self._stopped(event.call)
        elif isinstance(event, CallFinished):
            self._stopped(event.call)
            self._finished(event.call)

    def _stopped(self, call: QueuedCall) -> None:
        """A call's blocks are about to be freed, as it ends or is preempted.

        One without a program protects nothing; what it shares with one is shared.
        """
        row = call.program
        if self.queue is None or (row.ended and not row.lone):  # nobody comes back for them
            return
        blocks = cached_blocks(self._scheduler, call.item)
        self.queue.mark(blocks, row.cached, lambda: self._owners.shared(row.type))

    def _finished(self, call: QueuedCall) -> None:
        """A call ends: note what it had computed, under the name that its client has for it."""
        call_id: str = call.identity.call_id
        request, owner = call.item, call.program.cached
        computed = min(call.computed_tokens // self._block_size, len(request.block_hashes))
        if owner is not None:
            note_blocks(owner.chains, request.block_hashes, computed)
        if self.queue is not None and call_id:
            self._computed[call_id] = request.block_hashes, computed
            if len(self._computed) > KINDS:
                self._computed.popitem(last=False)

    def drop(self, row: EngineProgram, call_id: str, kept: int = 0) -> None:
        """What a program's call had computed after its first tokens, no one will come back for."""
        owner, (hashes, computed) = row.cached, self._computed.get(call_id, ((), 0))
        if owner is None or self.queue is None:
            return
        lost = hashes[kept // self._block_size : computed]  # a block with more is its own
        self.queue.give_up(find_cached(self._scheduler, lost)[::-1], owner)
        if self.host is not None:
            self.host.give_up(keys_of(self._scheduler, lost), owner)
        self._changed(owner)

    def cache_emptied(self, rows: Any) -> None:
        """The prefix cache was reset: there is nothing to protect, and nothing was lost."""
        self._owners.forget_chains(rows)
        if self.queue is not None:
            self.queue.release_all()
