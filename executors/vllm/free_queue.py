"""vLLM's queue of free blocks, with protected lists: blocks that are free, but go last.

vLLM hands out free blocks from the head of one list, whoever they belong to. Here a free
block that a program may come back for is on a list of its context's instead. Every block
still counts as free, and is handed out when no other is left, in the order of the ranking:
capacity never shrinks, so no call ever waits for a protected block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from agentrt.errors import InvariantError
from agentrt.executors.vllm._compat.pool import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    first_free_block,
)
from agentrt.scheduler.retention import Context, Ranking, Retention


class ProtectedFreeQueue(FreeKVCacheBlockQueue):
    """Takes the place of vLLM's queue by becoming its class: see `adopt`, and `leave`.

    The list that vLLM made is the plain one; a protected list is another queue of vLLM's class.
    """

    ranking: Ranking
    retention: Retention
    now: float
    yielded: int
    """Protected blocks that were handed out, since nothing else was free."""
    _protected: int
    _owner: list[Context | None]
    _listed: list[Context | None]
    _used: list[float]
    _lists: dict[Context, FreeKVCacheBlockQueue]
    _asked: tuple[float, int, int] | None
    _worth: bool
    _least: tuple[float, Context] | None
    """Whose blocks went last, and when: those that are left go next, while nothing changes."""

    @classmethod
    def adopt(
        cls, queue: FreeKVCacheBlockQueue, blocks: int, ranking: Ranking, retention: Retention
    ) -> ProtectedFreeQueue:
        """Make ``queue``, of an engine with so many ``blocks``, one with protected lists."""
        # The block pool and others hold the object: it stays, and changes its class.
        queue.__class__ = cls
        assert isinstance(queue, cls)
        queue.ranking, queue.retention, queue.now = ranking, retention, 0.0
        queue.yielded = queue._protected = 0
        queue._owner, queue._listed = [None] * blocks, [None] * blocks
        queue._used, queue._lists = [0.0] * blocks, {}
        queue._asked, queue._worth, queue._least = None, False, None
        return queue

    def leave(self) -> None:
        """Be vLLM's queue again, with all free blocks in its list."""
        self.release_all()
        # Deleting the state as well would leave nothing to look at when something is wrong.
        self.__class__ = FreeKVCacheBlockQueue

    # -- whose blocks ------------------------------------------------------------------

    def mark(
        self,
        blocks: Sequence[KVCacheBlock],
        context: Context | None,
        shared: Callable[[], Context],
    ) -> None:
        """``context`` used these cached blocks; what another used before, ``shared()`` holds."""
        self._least = None
        owners, used, now = self._owner, self._used, self.now
        for block in blocks:
            at = block.block_id
            owner = owners[at]
            if owner is None:
                owners[at] = context
            elif owner is not context and not owner.shared:
                owners[at] = shared()
            used[at] = now

    def changed(self, context: Context) -> None:
        """Something happened to a context: it stands elsewhere, or its blocks are released."""
        self._asked = self._least = None
        if context.released:
            self.release(context)
        elif context in self._lists:
            self.ranking.put(context)

    def release(self, context: Context) -> None:
        """Protect a context's free blocks no longer; they are the next after the unused."""
        self._least = None
        own = self._lists.pop(context, None)
        if own is None:
            return
        self.ranking.discard(context)
        blocks = own.get_all_free_blocks()
        for block in blocks:
            self._listed[block.block_id] = None
        self._protected -= len(blocks)
        self.num_free_blocks -= len(blocks)
        super().append_n(blocks)

    def give_up(self, blocks: Sequence[KVCacheBlock], context: Context) -> None:
        """Protect these blocks of a context no longer, nor when they become free."""
        for block in blocks:
            if self._owner[block.block_id] is not context:
                continue  # another has come to use it
            self._owner[block.block_id] = None
            if self._listed[block.block_id] is context:
                self.remove(block)
                self.append(block)

    def release_all(self) -> None:
        """Protect nothing any more, and forget who used what: the cache was emptied."""
        for context in list(self._lists):
            self.release(context)
        self._owner = [None] * len(self._owner)

    @property
    def protected(self) -> int:
        """Free blocks that are on a protected list."""
        return self._protected

    @property
    def unprotected(self) -> int:
        """Free blocks that are on no protected list."""
        return int(self.num_free_blocks - self._protected)

    def worth_waiting_for(self) -> bool:
        """Whether even the context that is worth the least is expected back soon."""
        # Many calls may ask in one step: between changes of the free blocks, once is enough.
        state = (self.now, self.num_free_blocks, self._protected)
        if self._asked != state:
            least = self.ranking.first(self.now)
            self._worth = least is not None and self.retention.expects(least, self.now)
            self._asked = state
        return self._worth

    # -- vLLM's own operations ---------------------------------------------------------

    def popleft(self) -> KVCacheBlock:
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        assert self.num_free_blocks >= n
        if self.retention.expires:
            self._release_expired()
        plain = min(n, self.num_free_blocks - self._protected)
        taken: list[KVCacheBlock] = super().popleft_n(plain) if plain else []
        while len(taken) < n:
            taken += self._yield_blocks(n - len(taken))
        owner = self._owner
        for block in taken:
            owner[block.block_id] = None
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        context = self._listed[block.block_id]
        if context is None:
            super().remove(block)
            return
        self._listed[block.block_id] = None
        own = self._lists[context]
        own.remove(block)
        self._took(context, own, 1)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

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

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = super().get_all_free_blocks()
        for context in self.ranking.in_order(self.now):
            blocks += self._lists[context].get_all_free_blocks()
        return blocks

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """In the order of eviction, over all lists; costs O(n), unlike vLLM's own."""
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        yield from blocks

    # -- protected lists -----------------------------------------------------------------------

    def _protect(self, blocks: list[KVCacheBlock], context: Context) -> None:
        own = self._lists.get(context)
        if own is None:
            own = self._lists[context] = FreeKVCacheBlockQueue([])
        own.append_n(blocks)
        listed = self._listed
        for block in blocks:
            listed[block.block_id] = context
        self._protected += len(blocks)
        self.num_free_blocks += len(blocks)
        if own.num_free_blocks == len(blocks):
            self._age(context, own)
            self.ranking.put(context)

    def _yield_blocks(self, n: int) -> list[KVCacheBlock]:
        """Up to ``n`` blocks of the context that is worth the least."""
        if self._least is None or self._least[0] != self.now:
            first = self.ranking.first(self.now)
            if first is None:
                raise InvariantError(f"{self._protected} blocks are protected, and not ranked")
            self._least = self.now, first
        _, context = self._least
        own = self._lists[context]
        blocks: list[KVCacheBlock] = own.popleft_n(min(n, own.num_free_blocks))
        for block in blocks:
            self._listed[block.block_id] = None
        self.yielded += len(blocks)
        self._took(context, own, len(blocks))
        return blocks

    def _took(self, context: Context, own: FreeKVCacheBlockQueue, blocks: int) -> None:
        self._protected -= blocks
        self.num_free_blocks -= blocks
        if not own.num_free_blocks:
            del self._lists[context]
            self.ranking.discard(context)
            self._least = None
        elif context.shared or context.branches:
            self._age(context, own)
            self._least = None

    def _age(self, context: Context, own: FreeKVCacheBlockQueue) -> None:
        """A context's oldest block is the one that it loses first; a shared one is as old."""
        context.oldest = self._used[first_free_block(own)]
        if context.shared:
            context.since = context.oldest

    def _release_expired(self) -> None:
        while (context := self.ranking.first(self.now)) is not None:
            if not self.retention.expired(context, self.now):
                return
            self.release(context)
