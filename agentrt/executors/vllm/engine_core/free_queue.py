"""vLLM's queue of free blocks, with protected lists of blocks that are handed out last.

vLLM hands out free blocks from the head of a single list. Here, a free block that a program may use
again is on a separate list of its owner (`CachedBlocks`). A protected block still counts as free.
Protected blocks are handed out in the `EvictionOrder`, when no other block is left. So the capacity
never shrinks, and no call ever waits because blocks are protected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from typing_extensions import override

from agentrt.errors import InvariantError
from agentrt.executors.vllm._compat.pool import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    first_free_block,
)
from agentrt.scheduler.records import CachedBlocks
from agentrt.scheduler.retention import EvictionOrder


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
