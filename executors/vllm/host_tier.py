"""Whose blocks leave host memory first, where vLLM offloads its cache: the order of retention.

vLLM's `OffloadingConnector` copies blocks to host memory as they are computed, and asks a policy,
which it loads by name, which of them to give up. `options` names this one where retention is
``ttl`` or ``cost``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from agentrt.executors.vllm._compat.offloading import (
    CachePolicy,
    ChunkStatus,
    OffloadKey,
    ReqContext,
    in_prefix_order,
)
from agentrt.scheduler.retention import Context, Contexts, Ranking


class ProgramCachePolicy(CachePolicy):
    """Evicts what nobody comes back for, then what the ranking of contexts gives up first.

    Within a context the end of its prompt goes before the beginning. Until a `Retainer` has bound
    its contexts, all chunks are nobody's, and go as in vLLM's ``lru``.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.now = 0.0
        self._contexts: Contexts | None = None
        self._calls: dict[str, Context] = {}
        self._coming: dict[OffloadKey, Context] = {}
        self._forget()

    def _forget(self) -> None:
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self._owner: dict[OffloadKey, Context | None] = {}
        self._evictable: set[OffloadKey] = set()
        # Of each context, and of nobody, the least recently used first.
        self._lists: dict[Context | None, OrderedDict[OffloadKey, None]] = {None: OrderedDict()}
        self._ranking = Ranking(self._rank)

    def _rank(self, context: Context, now: float) -> tuple[float, ...]:
        assert self._contexts is not None
        return self._contexts.rank(context, now)

    # -- whose chunks ------------------------------------------------------------------

    def bind(self, contexts: Contexts | None) -> None:
        """Order by these contexts from now on; what was of others is nobody's."""
        for context in [one for one in self._lists if one is not None]:
            self._release(context)
        self._contexts = contexts
        self._calls.clear()
        self._coming.clear()

    def call_arrived(self, request_id: str, context: Context) -> None:
        """What this request stores and uses is of ``context``."""
        self._calls[request_id] = context

    def changed(self, context: Context) -> None:
        """Something happened to a context: it stands elsewhere, or nobody comes back for it."""
        if context not in self._lists:
            return
        if context.released:
            self._release(context)
        else:
            self._ranking.put(context)

    def give_up(self, keys: Iterable[OffloadKey], context: Context) -> None:
        """Nobody comes back for these chunks of a context."""
        for key in keys:
            if self._owner.get(key) is context:
                self._own(key, None)
                self._lists[None].move_to_end(key, last=False)

    def _release(self, context: Context) -> None:
        """A context's chunks are the first to go."""
        for key in reversed(list(self._lists[context])):
            self._own(key, None)
            self._lists[None].move_to_end(key, last=False)

    def _use(self, key: OffloadKey, context: Context | None) -> None:
        """``context`` has used a chunk; what another has used before, they share."""
        owner = self._owner[key]
        if owner is None:
            owner = context
        elif context is not None and owner is not context and not owner.shared:
            assert self._contexts is not None
            owner = self._contexts.shared(context.type)
        self._own(key, owner)

    def _own(self, key: OffloadKey, context: Context | None) -> None:
        """Put a chunk at the end of a context's list."""
        if context is not None and context.released:
            context = None
        self._leave(key)
        self._owner[key] = context
        if context not in self._lists:
            assert context is not None
            self._lists[context] = OrderedDict()
            self._ranking.put(context)
        self._lists[context][key] = None

    def _leave(self, key: OffloadKey) -> None:
        if key not in self._owner:
            return
        owner = self._owner.pop(key)
        own = self._lists[owner]
        del own[key]
        if owner is not None and not own:
            del self._lists[owner]
            self._ranking.discard(owner)

    # -- vLLM's own operations ---------------------------------------------------------

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:  # vLLM 0.33 says whose it is, 0.32 only that its chunks are missed
        self._chunks[key] = chunk
        self._own(key, self._coming.pop(key, None))
        if chunk.ref_cnt == 0:
            self._evictable.add(key)

    def remove(self, key: OffloadKey) -> None:
        self._taken(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        context = self._calls.get(req_context.req_id)
        for key in reversed(list(keys)):
            if key in self._chunks:
                self._use(key, context)

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        context = self._calls.get(req_context.req_id)
        if context is not None:
            self._coming |= dict.fromkeys(keys, context)

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

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        keys = list(islice((key for key in self._in_order() if key not in protected), n))
        return [(key, self._taken(key)) for key in keys] if len(keys) == n else None

    def _in_order(self) -> Iterator[OffloadKey]:
        """All chunks that may go, the first to go first; not to be changed meanwhile."""
        for context in self._losers():
            yield from (key for key in self._lists[context] if key in self._evictable)

    def _losers(self) -> Iterator[Context | None]:
        yield None
        # Mostly the first has enough, and finding it is cheaper than sorting all.
        first = self._ranking.first(self.now)
        if first is not None:
            yield first
            yield from (one for one in self._ranking.in_order(self.now) if one is not first)

    def _taken(self, key: OffloadKey) -> ChunkStatus:
        self._leave(key)
        self._evictable.discard(key)
        return self._chunks.pop(key)

    def clear(self) -> None:
        self._forget()

    def mark_evictable(self, key: OffloadKey) -> None:
        self._evictable.add(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._evictable.discard(key)
