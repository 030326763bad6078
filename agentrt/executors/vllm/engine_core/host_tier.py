"""The eviction policy for the host memory to which vLLM offloads its KV cache. Blocks are evicted
in the order of the retention policy.

vLLM's `OffloadingConnector` copies blocks to host memory as they are computed, and asks a cache
policy which of the copies to evict. vLLM loads the policy by name. `options` sets the policy of
this module if retention is ``ttl`` or ``cost``.
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
from agentrt.scheduler.retention import EvictionOrder
from agentrt.scheduler.state import CachedBlocks


class ProgramCachePolicy(CachePolicy):
    """Evicts chunks without an owner first, then the chunks of owners in their `EvictionOrder`.

    The chunks of an owner are evicted from the end of its prompt. Until a `BlockRetention` binds
    its owners, no chunk has an owner, and chunks are evicted as with vLLM's ``lru``.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.now = 0.0
        self._owners: BlockOwners | None = None
        self._order: EvictionOrder | None = None
        self._calls: dict[str, CachedBlocks] = {}
        self._cleared: set[str] = set()
        """Requests in ``_calls`` that had not ended when the memory was cleared."""
        self._coming: dict[OffloadKey, CachedBlocks] = {}
        self._forget()

    def _forget(self) -> None:
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._owner: dict[OffloadKey, CachedBlocks | None] = {}
        self._evictable: set[OffloadKey] = set()
        # The chunks of each owner, and those without an owner; the least recently used first.
        self._lists: dict[CachedBlocks | None, OrderedDict[OffloadKey, None]] = {
            None: OrderedDict()
        }
        if self._order is not None:
            self._order.clear()

    # -- owners of chunks --------------------------------------------------------------

    def bind(self, owners: BlockOwners | None, order: EvictionOrder | None) -> None:
        """Use these owners and this order from now on. All present chunks lose their owners."""
        for owner in [owner for owner in self._lists if owner is not None]:
            self._release(owner)
        self._owners, self._order = owners, order
        self._calls.clear()
        self._cleared.clear()
        self._coming.clear()

    def call_arrived(self, request_id: str, owner: CachedBlocks) -> None:
        """Note the owner of the chunks that a request stores and uses."""
        self._calls[request_id] = owner

    def call_ended(self, request_id: str) -> None:
        """Forget the owner of a request's chunks if the memory was cleared while the request was
        in the engine, because vLLM may not report the end of such a request. The owner of another
        request is still needed: vLLM stores its last chunks after its end.
        """
        if request_id in self._cleared:
            self._cleared.discard(request_id)
            self._calls.pop(request_id, None)

    def changed(self, owner: CachedBlocks) -> None:
        """Update the lists after an owner's rank has changed or its blocks were released."""
        if owner not in self._lists:
            return
        if owner.released:
            self._release(owner)
        elif self._order is not None:
            self._order.put(owner)

    def give_up(self, keys: Iterable[OffloadKey], owner: CachedBlocks) -> None:
        """Let these chunks of an owner be evicted before all others, because they will not be used
        again.
        """
        for key in keys:
            if self._owner.get(key) is owner:
                self._own(key, None)
                self._lists[None].move_to_end(key, last=False)

    def _release(self, owner: CachedBlocks) -> None:
        """Let all chunks of an owner be evicted before all others."""
        for key in reversed(list(self._lists[owner])):
            self._own(key, None)
            self._lists[None].move_to_end(key, last=False)

    def _use(self, key: OffloadKey, user: CachedBlocks | None) -> None:
        """Note that ``user`` has used a chunk. A chunk that already has another owner becomes
        shared.
        """
        owner = self._owner[key]
        if owner is None:
            owner = user
        elif user is not None and owner is not user and not owner.shared:
            assert self._owners is not None
            owner = self._owners.shared(user.type)
        self._own(key, owner)

    def _own(self, key: OffloadKey, owner: CachedBlocks | None) -> None:
        """Move a chunk to the end of an owner's list. If ``owner`` is None or released, move the
        chunk to the end of the list of chunks that have no owner.
        """
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
    ) -> None:  # only vLLM 0.33 passes req_context; `on_store_miss` has noted the owner already
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
        for key in keys:  # keys that could not be stored
            self._coming.pop(key, None)
        self._calls.pop(req_context.req_id, None)

    @override
    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        keys = list(islice((key for key in self._in_order() if key not in protected), n))
        return [(key, self._taken(key)) for key in keys] if len(keys) == n else None

    def _in_order(self) -> Iterator[OffloadKey]:
        """Yield all evictable chunks, in the order of eviction. Do not change the lists
        meanwhile.
        """
        for owner in self._losers():
            yield from (key for key in self._lists[owner] if key in self._evictable)

    def _losers(self) -> Iterator[CachedBlocks | None]:
        yield None
        if self._order is None:
            return
        # Mostly the first owner has enough chunks, and finding it is cheaper than sorting all.
        first = self._order.first(self.now)
        if first is not None:
            yield first
            yield from (owner for owner in self._order.in_order(self.now) if owner is not first)

    def _taken(self, key: OffloadKey) -> ChunkStatus:
        self._leave(key)
        self._evictable.discard(key)
        return self._chunks.pop(key)

    @override
    def clear(self) -> None:
        self._forget()
        self._coming.clear()
        self._cleared.update(self._calls)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._evictable.add(key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._evictable.discard(key)
