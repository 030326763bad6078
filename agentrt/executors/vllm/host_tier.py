"""Whose blocks leave host memory first, where vLLM offloads its cache: the order of retention.

vLLM's `OffloadingConnector` copies blocks to host memory as they are computed, and asks a policy,
which it loads by name, which of them to give up. `options` names this one where retention is
``ttl`` or ``cost``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from typing_extensions import override

from agentrt.executors.vllm._compat.offloading import (
    CachePolicy,
    ChunkStatus,
    OffloadKey,
    ReqContext,
    in_prefix_order,
)
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.records import CachedBlocks
from agentrt.scheduler.retention import EvictionOrder


class ProgramCachePolicy(CachePolicy):
    """Evicts what nobody comes back for, then the chunks of owners in their `EvictionOrder`.

    Of one owner the end of its prompt goes before the beginning. Until a `BlockRetention` has bound
    its owners, all chunks are nobody's, and go as in vLLM's ``lru``.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.now = 0.0
        self._owners: BlockOwners | None = None
        self._order: EvictionOrder | None = None
        self._calls: dict[str, CachedBlocks] = {}
        self._coming: dict[OffloadKey, CachedBlocks] = {}
        self._forget()

    def _forget(self) -> None:
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._owner: dict[OffloadKey, CachedBlocks | None] = {}
        self._evictable: set[OffloadKey] = set()
        # Of each owner, and of nobody, the least recently used first.
        self._lists: dict[CachedBlocks | None, OrderedDict[OffloadKey, None]] = {
            None: OrderedDict()
        }
        if self._order is not None:
            self._order.clear()

    # -- whose chunks ------------------------------------------------------------------

    def bind(self, owners: BlockOwners | None, order: EvictionOrder | None) -> None:
        """Order by these owners from now on; what was of others is nobody's."""
        for owner in [one for one in self._lists if one is not None]:
            self._release(owner)
        self._owners, self._order = owners, order
        self._calls.clear()
        self._coming.clear()

    def call_arrived(self, request_id: str, owner: CachedBlocks) -> None:
        """What this request stores and uses is of ``owner``."""
        self._calls[request_id] = owner

    def changed(self, owner: CachedBlocks) -> None:
        """Something happened to an owner: it stands elsewhere, or nobody comes back for it."""
        if owner not in self._lists:
            return
        if owner.released:
            self._release(owner)
        elif self._order is not None:
            self._order.put(owner)

    def give_up(self, keys: Iterable[OffloadKey], owner: CachedBlocks) -> None:
        """Nobody comes back for these chunks of an owner."""
        for key in keys:
            if self._owner.get(key) is owner:
                self._own(key, None)
                self._lists[None].move_to_end(key, last=False)

    def _release(self, owner: CachedBlocks) -> None:
        """An owner's chunks are the first to go."""
        for key in reversed(list(self._lists[owner])):
            self._own(key, None)
            self._lists[None].move_to_end(key, last=False)

    def _use(self, key: OffloadKey, user: CachedBlocks | None) -> None:
        """``user`` has used a chunk; what another has used before, they share."""
        owner = self._owner[key]
        if owner is None:
            owner = user
        elif user is not None and owner is not user and not owner.shared:
            assert self._owners is not None
            owner = self._owners.shared(user.type)
        self._own(key, owner)

    def _own(self, key: OffloadKey, owner: CachedBlocks | None) -> None:
        """Put a chunk at the end of an owner's list."""
        if owner is not None and owner.released:
            owner = None
        self._leave(key)
        self._owner[key] = owner
        if owner not in self._lists:
            assert owner is not None
            assert self._order is not None
            self._lists[owner] = OrderedDict()
            self._order.put(owner)
        self._lists[owner][key] = None

    def _leave(self, key: OffloadKey) -> None:
        if key not in self._owner:
            return
        owner = self._owner.pop(key)
        own = self._lists[owner]
        del own[key]
        if owner is not None and not own:
            del self._lists[owner]
            if self._order is not None:
                self._order.discard(owner)

    # -- vLLM's own operations ---------------------------------------------------------

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    @override
    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:  # vLLM 0.33 says whose it is, 0.32 only that its chunks are missed
        self._chunks[key] = chunk
        self._own(key, self._coming.pop(key, None))
        if chunk.ref_cnt == 0:
            self._evictable.add(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._taken(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        user = self._calls.get(req_context.req_id)
        for key in reversed(list(keys)):
            if key in self._chunks:
                self._use(key, user)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        user = self._calls.get(req_context.req_id)
        if user is not None:
            self._coming |= dict.fromkeys(keys, user)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        keys = in_prefix_order(key_groups, req_context)
        self.touch(keys, req_context)
        for key in keys:  # what could not be stored
            self._coming.pop(key, None)
        self._calls.pop(req_context.req_id, None)

    @override
    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        keys = list(islice((key for key in self._in_order() if key not in protected), n))
        return [(key, self._taken(key)) for key in keys] if len(keys) == n else None

    def _in_order(self) -> Iterator[OffloadKey]:
        """All chunks that may go, the first to go first; not to be changed meanwhile."""
        for owner in self._losers():
            yield from (key for key in self._lists[owner] if key in self._evictable)

    def _losers(self) -> Iterator[CachedBlocks | None]:
        yield None
        if self._order is None:
            return
        # Mostly the first has enough, and finding it is cheaper than sorting all.
        first = self._order.first(self.now)
        if first is not None:
            yield first
            yield from (one for one in self._order.in_order(self.now) if one is not first)

    def _taken(self, key: OffloadKey) -> ChunkStatus:
        self._leave(key)
        self._evictable.discard(key)
        return self._chunks.pop(key)

    @override
    def clear(self) -> None:
        self._forget()

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._evictable.add(key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._evictable.discard(key)
