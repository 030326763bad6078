"""The KV cache of a text, in the form of transformers' caches, and a store of such KV caches, from
which later calls take the common beginning of their prompts.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrt.contexts.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache


@dataclass(slots=True, eq=False)
class TextCache:
    """The cached keys and values of a text.

    ``ids`` are all tokens of the text, and ``positions`` are the positions of the tokens whose keys
    and values are cached. ``calls`` are the ids of the calls that have computed these keys and
    values.
    """

    ids: list[int]
    positions: list[int]
    layers: DynamicCache
    attention: Attention | None = None
    calls: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether all tokens are cached, so that the text can be shortened."""
        return len(self.positions) == len(self.ids)

    @property
    def size(self) -> int:
        """The size of keys and values in bytes."""
        states = [(layer.keys, layer.values) for layer in self.layers.layers]
        return sum(part.nbytes for pair in states for part in pair if part is not None)

    def first(self, count: int) -> TextCache:
        """Return a copy with the first ``count`` tokens.

        If ``count`` is less than the length of the text, the text must be `whole`.
        """
        from transformers import DynamicCache

        states = [
            (layer.keys[:, :, :count], layer.values[:, :, :count]) for layer in self.layers.layers
        ]
        layers = DynamicCache(states)
        return replace(self, ids=self.ids[:count], positions=self.positions[:count], layers=layers)

    def forget(self, before: int) -> None:
        """Drop the keys and values of the tokens to which no later token attends.

        ``before`` is the number of tokens that the text had at the last call of this method.
        """
        assert self.attention is not None
        lengths = before, len(self.ids)
        start, end = (bisect(self.positions, n - self.attention.window) for n in lengths)
        kept = [at for at in range(start, end) if self.attention.keeps(self.positions[at])]
        if len(kept) < end - start:
            self._keep(start, kept, end)

    def _keep(self, start: int, kept: list[int], end: int) -> None:
        """Drop the cached entries from ``start`` to ``end`` except those with the indices
        ``kept``.
        """
        import torch

        self.positions[start:end] = [self.positions[at] for at in kept]

        def left(states: Tensor) -> Tensor:
            parts = [states[:, :, :start], states[:, :, end:]]
            if kept:
                parts.insert(1, states[:, :, kept])
            return torch.cat(parts, dim=2) if start or kept else parts[1]

        for layer in self.layers.layers:
            layer.keys, layer.values = left(layer.keys), left(layer.values)


Sharing = tuple[str | None, Attention | None]
"""A cache salt and an attention: calls share cached texts if both are equal."""


class PrefixCache:
    """The caches of the texts that were used last, up to ``budget`` bytes together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.entries: list[tuple[Sharing, TextCache]] = []

    def longest(self, sharing: Sharing, ids: Sequence[int], most: int) -> TextCache | None:
        """Return a copy of the cache of the longest cached prefix of ``ids``; None if no
        prefix is cached.

        The copy has at most ``most`` tokens. Only caches that were made with the same ``sharing``
        are used.
        """
        best, count = None, 0
        for entry in self.entries:
            common = min(_common(entry[1].ids, ids), most)
            if entry[0] != sharing or (common < len(entry[1].ids) and not entry[1].whole):
                continue
            if common > count:
                best, count = entry, common
        if best is None:
            return None
        self.entries.remove(best)
        self.entries.append(best)
        return best[1].first(count)

    def put(self, sharing: Sharing, cache: TextCache) -> None:
        """Keep a cache, which must not be changed any more."""
        within = [entry for entry in self.entries if _within(entry, sharing, cache)]
        cache.calls = cache.calls.union(*(kept.calls for _, kept in within))
        self.entries = [entry for entry in self.entries if entry not in within]
        self.entries.append((sharing, cache))
        while sum(kept.size for _, kept in self.entries) > self.budget:
            del self.entries[0]

    def drop(self, call: str, shared: int) -> None:
        """Drop what a call has computed after the first ``shared`` tokens.

        If ``shared`` is 0, or a text cannot be shortened, the text stays in the cache, but is the
        first to be dropped when room is needed.
        """
        for entry in [entry for entry in self.entries if call in entry[1].calls]:
            sharing, cache = entry
            self.entries.remove(entry)
            if shared and cache.whole:
                rest = cache.first(shared)
                rest.calls -= {call}
                self.entries.append((sharing, rest))
            else:
                self.entries.insert(0, entry)


def _within(entry: tuple[Sharing, TextCache], sharing: Sharing, cache: TextCache) -> bool:
    """Return whether an entry is a prefix that `TextCache.first` can copy from ``cache``."""
    _, kept = entry
    same = kept.ids == cache.ids[: len(kept.ids)]
    return entry[0] == sharing and same and (cache.whole or len(kept.ids) == len(cache.ids))


def _common(ids: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(ids, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(other)))
