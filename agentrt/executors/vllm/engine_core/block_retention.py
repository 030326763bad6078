"""Keeps programs' blocks in the prefix cache between their calls, and remembers these blocks.

`BlockRetention` connects the scheduler with vLLM's queue of free blocks. With retention ``lru`` it
only remembers which blocks calls have computed, and leaves vLLM's queue unchanged.

The blocks that a program's calls have computed are remembered as chains of hashes. A chain has the
hashes of the blocks that a call has computed, in order, a few bytes for each. A block's hash covers
all tokens up to the block's end, so the common prefix of a new prompt and a chain is found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from agentrt.executors.vllm._compat.offloading import keys_of, policy_of
from agentrt.executors.vllm._compat.pool import all_blocks, cached_blocks, find_cached, free_queue
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.executors.vllm.engine_core.free_queue import ProtectedFreeQueue
from agentrt.executors.vllm.engine_core.host_tier import ProgramCachePolicy
from agentrt.scheduler.events import CallEvent, CallFinished, CallPreempted
from agentrt.scheduler.learned import KINDS, SCANNED
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.records import CachedBlocks, EngineProgram, QueuedCall
from agentrt.scheduler.retention import EvictionOrder, Retention

# -- chains of blocks --------------------------------------------------------------------


_BYTES = 8
"""Number of bytes of a block's hash that are kept."""

_Chains = deque[bytearray]
"""The chains of the last few calls of a program or session.

There are several, because parallel branches continue different calls.
"""


def _known_blocks(chains: _Chains, hashes: Sequence[bytes]) -> int:
    """Return how many leading blocks of a prompt with these hashes were computed before."""
    return max([_common(chain, hashes) for chain in chains], default=0)


def _note_blocks(chains: _Chains, hashes: Sequence[bytes], computed: int) -> None:
    """Note that a call, which has ended, computed the first ``computed`` of these blocks."""
    if computed <= 0:
        return
    at, common = -1, 0
    for index, chain in enumerate(chains):
        shared = _common(chain, hashes)
        if shared > common:
            at, common = index, shared
    common = min(common, computed)
    if common and len(chains[at]) == common * _BYTES:  # the call continues this chain
        chain = chains[at]
        del chains[at]
    else:
        chain = chains[at][: common * _BYTES] if common else bytearray()
    chain += b"".join([value[:_BYTES] for value in hashes[common:computed]])
    chains.append(chain)


def _most_in_common(hashes: Sequence[bytes], others: Iterable[Sequence[bytes]]) -> int:
    """Return how many leading blocks ``hashes`` shares with the most similar of ``others``."""
    return max([_leading(hashes, other) for other in others], default=0)


def _leading(hashes: Sequence[bytes], others: Sequence[bytes]) -> int:
    both = range(min(len(hashes), len(others)))
    return bisect_left(both, True, key=lambda at: hashes[at] != others[at])


def _common(chain: bytearray, hashes: Sequence[bytes]) -> int:
    """Return the number of common leading blocks. Hashes that are equal have equal predecessors."""
    low, high = 0, min(len(chain) // _BYTES, len(hashes))
    index = high - 1  # try the end first: mostly a call continues its program's last call
    while low < high:
        if hashes[index].startswith(chain[index * _BYTES : (index + 1) * _BYTES]):
            low = index + 1
        else:
            high = index
        index = (low + high) // 2
    return low


# -- retention ---------------------------------------------------------------------------


class BlockRetention:
    """Protects programs' free blocks by a retention ``policy``, and notes what calls have computed.

    ``queue`` is the queue with protected blocks. It is None with retention ``lru`` (``policy``
    None) and without prefix caching. ``host`` is the policy of host memory. It is None if ``queue``
    is None, without offloading, and if the user has chosen another policy.
    """

    def __init__(
        self, scheduler: AsyncScheduler, owners: BlockOwners, policy: Retention | None
    ) -> None:
        self._scheduler, self._owners = scheduler, owners
        self._block_size = hash_block_size(scheduler)
        self._computed: OrderedDict[str, tuple[Sequence[bytes], int]] = OrderedDict()
        """For the ids of the last `KINDS` ended calls: the hashes of the call's blocks, and how
        many of these it had computed. Empty if ``queue`` is None.
        """
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
        """Number of free blocks that are protected."""
        return 0 if self.queue is None else self.queue.protected

    def close(self) -> None:
        """Restore vLLM's own queue of free blocks, and vLLM's order of eviction in host memory."""
        if self.queue is not None:
            self.queue.leave()
            self.queue = None
        if self.host is not None:
            self.host.bind(None, None)
            self.host = None

    def _changed(self, blocks: CachedBlocks) -> None:
        """Update the order of an owner's blocks in the engine's memory and in host memory."""
        if self.queue is not None:
            self.queue.changed(blocks)
        if self.host is not None:
            self.host.changed(blocks)

    def at(self, now: float) -> None:
        """Set the time to ``now`` (seconds, the scheduler's clock)."""
        self.now = now
        if self.queue is not None:
            self.queue.now = now
        if self.host is not None:
            self.host.now = now

    # -- calls -------------------------------------------------------------------------

    def arriving(self, call: QueuedCall) -> None:
        """Store in a call that is about to arrive how much of its prompt was computed before, and
        how much it shares with another of its program's latest calls in the engine.

        The last token of a prompt is always computed again, even if the whole prompt is known.
        """
        request, row, size = call.item, call.program, self._block_size
        hashes = request.block_hashes
        known = _known_blocks(self._owners.own(row).chains, hashes)
        call.known_tokens = min(known, (request.num_prompt_tokens - 1) // size) * size
        latest = islice(reversed(row.queued.values()), SCANNED)
        beside = _most_in_common(hashes, (other.item.block_hashes for other in latest))
        call.beside_tokens = beside * size
        if self.host is not None and row.cached is not None:
            self.host.call_arrived(request.request_id, row.cached)

    def hear(self, event: CallEvent) -> None:
        """Note the owner of a call's blocks before the call ends or is preempted."""
        if isinstance(event, CallPreempted):
            self._stopped(event.call)
        elif isinstance(event, CallFinished):
            self._stopped(event.call)
            self._finished(event.call)

    def _stopped(self, call: QueuedCall) -> None:
        """Note the owner of a call's blocks, which are about to be freed.

        A call without a program becomes the owner of no block. But if it has used blocks of a
        program, these get the owner of shared blocks (`BlockOwners.shared`).
        """
        row = call.program
        if self.queue is None or (row.ended and not row.lone):  # the blocks are not used again
            return
        blocks = cached_blocks(self._scheduler, call.item)
        self.queue.mark(blocks, row.cached, lambda: self._owners.shared(row.type))

    def _finished(self, call: QueuedCall) -> None:
        """Note which blocks an ended call has computed, under the call id that the client sent."""
        call_id: str = call.identity.call_id
        request, owner = call.item, call.program.cached
        computed = min(call.computed_tokens // self._block_size, len(request.block_hashes))
        if owner is not None:
            _note_blocks(owner.chains, request.block_hashes, computed)
        if self.queue is not None and call_id:
            self._computed[call_id] = request.block_hashes, computed
            if len(self._computed) > KINDS:
                self._computed.popitem(last=False)

    def drop(self, row: EngineProgram, call_id: str, kept: int = 0) -> None:
        """Stop protecting a call's blocks, except those of its first ``kept`` tokens."""
        owner, (hashes, computed) = row.cached, self._computed.get(call_id, ((), 0))
        if owner is None or self.queue is None:
            return
        # A block that has both kept tokens and others is dropped.
        lost = hashes[kept // self._block_size : computed]
        self.queue.give_up(find_cached(self._scheduler, lost)[::-1], owner)
        if self.host is not None:
            self.host.give_up(keys_of(self._scheduler, lost), owner)
        self._changed(owner)

    def cache_emptied(self, rows: Any) -> None:
        """Forget all blocks after the prefix cache was emptied. Calls do not count these blocks as
        lost.
        """
        self._owners.forget_chains(rows)
        if self.queue is not None:
            self.queue.release_all()
