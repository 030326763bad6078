"""Keeps programs' blocks in the prefix cache between their calls, and remembers these blocks.

vLLM hands out free blocks from the head of a single list. In a `ProtectedFreeQueue`, a free block
that a program may use again is on a separate list of its owner (`CachedBlocks`). A protected block
still counts as free. Protected blocks are handed out in the `EvictionOrder`, when no other block is
left. So the capacity never shrinks, and no call ever waits because blocks are protected.

`BlockRetention` connects the scheduler with this queue. With retention ``lru`` it only remembers
which blocks calls have computed, and leaves vLLM's own queue unchanged.

The blocks that a program's calls have computed are remembered as chains of hashes. A chain has the
hashes of the blocks that a call has computed, in order, a few bytes for each. A block's hash covers
all tokens up to the block's end, so the common prefix of a new prompt and a chain is found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from typing_extensions import override

from agentrt.errors import InvariantError
from agentrt.executors.vllm._compat.offloading import keys_of, policy_of
from agentrt.executors.vllm._compat.pool import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    all_blocks,
    cached_blocks,
    find_cached,
    first_free_block,
    free_queue,
)
from agentrt.executors.vllm._compat.prefixes import (
    caches_prefixes,
    hash_block_size,
    readable_tokens,
)
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.executors.vllm.engine_core.host_tier import ProgramCachePolicy
from agentrt.executors.vllm.logprobs import COMPUTE_FROM
from agentrt.scheduler.events import CallEvent, CallFinished, CallPreempted
from agentrt.scheduler.limits import MOST_KINDS, SCANNED
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.retention import EvictionOrder, Retention
from agentrt.scheduler.state import CachedBlocks, EngineProgram, QueuedCall

# -- the queue of free blocks --------------------------------------------------------------


class ProtectedFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's queue of free blocks with protected lists.

    `adopt` turns vLLM's queue into such a queue, and `leave` turns it back.

    The list of vLLM's own queue has the unprotected blocks. Each protected list is another queue of
    vLLM's class.
    """

    order: EvictionOrder
    now: float
    yielded: int
    """Number of protected blocks that were handed out because no other block was free."""
    _protected: int
    _owner: list[CachedBlocks | None]
    _listed: list[CachedBlocks | None]
    _used: list[float]
    _lists: dict[CachedBlocks, FreeKVCacheBlockQueue]
    _least: tuple[float, CachedBlocks] | None
    """The time and owner of the last protected block that was handed out.

    While nothing changes, the owner's other blocks are handed out next.
    """

    @classmethod
    def adopt(
        cls, queue: FreeKVCacheBlockQueue, blocks: int, order: EvictionOrder
    ) -> ProtectedFreeQueue:
        """Turn vLLM's ``queue`` into a `ProtectedFreeQueue`, and return it.

        ``blocks`` is the total number of the engine's blocks, free and used.
        """
        # Other objects of vLLM refer to this queue, so it changes its class and stays in place.
        queue.__class__ = cls
        assert isinstance(queue, cls)
        queue.order, queue.now = order, 0.0
        queue.yielded = queue._protected = 0
        queue._owner, queue._listed = [None] * blocks, [None] * blocks
        queue._used, queue._lists = [0.0] * blocks, {}
        queue._least = None
        return queue

    def leave(self) -> None:
        """Turn this back into vLLM's queue, with all free blocks in its list."""
        self.release_all()
        # The attributes stay, for debugging.
        queue: FreeKVCacheBlockQueue = self
        queue.__class__ = FreeKVCacheBlockQueue

    # -- owners of blocks --------------------------------------------------------------

    def mark(
        self,
        blocks: Sequence[KVCacheBlock],
        user: CachedBlocks | None,
        shared: Callable[[], CachedBlocks],
    ) -> None:
        """Note that ``user`` has used these cached blocks.

        A block that has another owner already becomes a shared block, owned by ``shared()``.
        """
        self._least = None
        owners, used, now = self._owner, self._used, self.now
        for block in blocks:
            at = block.block_id
            owner = owners[at]
            if owner is None:
                owners[at] = user
            elif owner is not user and not owner.shared:
                owners[at] = shared()
            used[at] = now

    def changed(self, owner: CachedBlocks) -> None:
        """Update the lists after an owner's rank has changed or its blocks were released."""
        self._least = None
        if owner.released:
            self.release(owner)
        elif owner in self._lists:
            self.order.put(owner)

    def release(self, owner: CachedBlocks) -> None:
        """Stop protecting an owner's free blocks: move them to the end of vLLM's list."""
        self._least = None
        own = self._lists.pop(owner, None)
        if own is None:
            return
        self.order.discard(owner)
        blocks = own.get_all_free_blocks()
        for block in blocks:
            self._listed[block.block_id] = None
        self._protected -= len(blocks)
        self.num_free_blocks -= len(blocks)
        super().append_n(blocks)

    def give_up(self, blocks: Sequence[KVCacheBlock], owner: CachedBlocks) -> None:
        """Stop protecting these blocks of an owner, including blocks that are in use."""
        for block in blocks:
            if self._owner[block.block_id] is not owner:
                continue  # another owner uses it by now
            self._owner[block.block_id] = None
            if self._listed[block.block_id] is owner:
                self.remove(block)
                self.append(block)

    def release_all(self) -> None:
        """Stop protecting all blocks, and forget their owners."""
        for owner in list(self._lists):
            self.release(owner)
        self._owner = [None] * len(self._owner)

    @property
    def protected(self) -> int:
        """Number of free blocks that are on a protected list."""
        return self._protected

    @property
    def unprotected(self) -> int:
        """Number of free blocks that are on no protected list."""
        return int(self.num_free_blocks - self._protected)

    def protected_of(self, owner: CachedBlocks | None) -> int:
        """Return the number of free blocks on an owner's protected list."""
        own = None if owner is None else self._lists.get(owner)
        return 0 if own is None else int(own.num_free_blocks)

    # -- vLLM's own operations ---------------------------------------------------------

    @override
    def popleft(self) -> KVCacheBlock:
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    @override
    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        assert self.num_free_blocks >= n
        if self.order.retention.expires:
            self._release_expired()
        plain = min(n, self.num_free_blocks - self._protected)
        taken: list[KVCacheBlock] = super().popleft_n(plain) if plain else []
        while len(taken) < n:
            taken += self._yield_blocks(n - len(taken))
        owner = self._owner
        for block in taken:
            owner[block.block_id] = None
        return taken

    @override
    def remove(self, block: KVCacheBlock) -> None:
        owner = self._listed[block.block_id]
        if owner is None:
            super().remove(block)
            return
        self._listed[block.block_id] = None
        own = self._lists[owner]
        own.remove(block)
        self._took(owner, own, 1)

    @override
    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    @override
    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        self._least = None
        plain: list[KVCacheBlock] = []
        owners = [self._owner[block.block_id] for block in blocks]
        end = 0
        for owner, group in groupby(owners):
            start, end = end, end + len(list(group))
            if owner is None or owner.released:
                plain += blocks[start:end]
            else:
                self._protect(blocks[start:end], owner)
        super().append_n(plain)

    @override
    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = super().get_all_free_blocks()
        for owner in self.order.in_order(self.now):
            blocks += self._lists[owner].get_all_free_blocks()
        return blocks

    @override
    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Yield the free blocks that are evicted after ``cursor`` (all free blocks if it is None),
        in the order of eviction. This always reads all lists, unlike vLLM's method.
        """
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        yield from blocks

    # -- protected lists -----------------------------------------------------------------------

    def _protect(self, blocks: list[KVCacheBlock], owner: CachedBlocks) -> None:
        own = self._lists.get(owner)
        if own is None:
            own = self._lists[owner] = FreeKVCacheBlockQueue([])
        own.append_n(blocks)
        listed = self._listed
        for block in blocks:
            listed[block.block_id] = owner
        self._protected += len(blocks)
        self.num_free_blocks += len(blocks)
        if own.num_free_blocks == len(blocks):
            self._age(owner, own)
            self.order.put(owner)

    def _yield_blocks(self, n: int) -> list[KVCacheBlock]:
        """Hand out up to ``n`` blocks of the owner that is first in the `EvictionOrder`."""
        if self._least is None or self._least[0] != self.now:
            first = self.order.first(self.now)
            if first is None:
                raise InvariantError(
                    f"{self._protected} blocks are protected, but the eviction order has no owner"
                )
            self._least = self.now, first
        _, owner = self._least
        own = self._lists[owner]
        blocks: list[KVCacheBlock] = own.popleft_n(min(n, own.num_free_blocks))
        for block in blocks:
            self._listed[block.block_id] = None
        self.yielded += len(blocks)
        self._took(owner, own, len(blocks))
        return blocks

    def _took(self, owner: CachedBlocks, own: FreeKVCacheBlockQueue, blocks: int) -> None:
        self._protected -= blocks
        self.num_free_blocks -= blocks
        if not own.num_free_blocks:
            del self._lists[owner]
            self.order.discard(owner)
            self._least = None
        elif owner.shared or owner.branches:
            self._age(owner, own)
            self._least = None

    def _age(self, owner: CachedBlocks, own: FreeKVCacheBlockQueue) -> None:
        """Set the age of an owner to the age of the block that the owner would lose first."""
        owner.oldest = self._used[first_free_block(own)]
        if owner.shared:
            owner.since = owner.oldest

    def _release_expired(self) -> None:
        while (owner := self.order.first(self.now)) is not None:
            if not self.order.retention.expired(owner, self.now):
                return
            self.release(owner)


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
        """For the ids of the last `MOST_KINDS` ended calls: the hashes of the call's blocks, and
        how many of these it had computed. Empty if ``queue`` is None.
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

        Tokens that the call may not read from the cache are not lost, and do not count. The last
        token of a prompt is always such a token.
        """
        request, row, size = call.item, call.program, self._block_size
        hashes = request.block_hashes
        known = _known_blocks(self._owners.own(row).chains, hashes)
        call.known_tokens = min(known, readable_tokens(request, COMPUTE_FROM) // size) * size
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

        A call without a program becomes the owner of no block. But if the call has used blocks that
        a program owns, their owner becomes that of shared blocks (`BlockOwners.shared`).
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
        if self.host is not None:
            self.host.call_ended(request.request_id)
        computed = min(call.computed_tokens // self._block_size, len(request.block_hashes))
        if owner is not None:
            _note_blocks(owner.chains, request.block_hashes, computed)
        if self.queue is not None and call_id:
            self._computed[call_id] = request.block_hashes, computed
            if len(self._computed) > MOST_KINDS:
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
