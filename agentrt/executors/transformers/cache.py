"""Keys and values of texts, in transformers' own caches, and those that are kept between calls."""

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
    """What a model remembers of a text's first tokens, ``ids``: those at ``positions``.

    ``calls`` are the ids of those that have computed it.
    """

    ids: list[int]
    positions: list[int]
    layers: DynamicCache
    attention: Attention | None = None
    calls: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether it has each token, so that it can be cut."""
        return len(self.positions) == len(self.ids)

    @property
    def size(self) -> int:
        """Bytes."""
        states = [(layer.keys, layer.values) for layer in self.layers.layers]
        return sum(part.nbytes for pair in states for part in pair if part is not None)

    def first(self, count: int) -> TextCache:
        """A copy for the first ``count`` tokens; less than all of them only if it is `whole`."""
        from transformers import DynamicCache

        states = [
            (layer.keys[:, :, :count], layer.values[:, :, :count]) for layer in self.layers.layers
        ]
        layers = DynamicCache(states)
        return replace(self, ids=self.ids[:count], positions=self.positions[:count], layers=layers)

    def forget(self, before: int) -> None:
        """Drop what no later token sees. It did so when the text had ``before`` tokens."""
        assert self.attention is not None
        lengths = before, len(self.ids)
        start, end = (bisect(self.positions, n - self.attention.window) for n in lengths)
        kept = [at for at in range(start, end) if self.attention.keeps(self.positions[at])]
        if len(kept) < end - start:
            self._keep(start, kept, end)

    def _keep(self, start: int, kept: list[int], end: int) -> None:
        """Keep of what is cached from ``start`` to ``end`` the places ``kept`` alone."""
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
"""Calls share what is cached if they have the same salt, and see alike."""


class PrefixCache:
    """The last texts' caches, of ``budget`` bytes together: those used last stay."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.entries: list[tuple[Sharing, TextCache]] = []

    def longest(self, sharing: Sharing, ids: Sequence[int], most: int) -> TextCache | None:
        """A copy of the cache of the longest beginning of ``ids``, of at most ``most`` tokens."""
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
        """Keep a cache, which nobody changes any more."""
        within = [one for one in self.entries if _within(one, sharing, cache)]
        cache.calls = cache.calls.union(*(kept.calls for _, kept in within))
        self.entries = [one for one in self.entries if one not in within]
        self.entries.append((sharing, cache))
        while sum(kept.size for _, kept in self.entries) > self.budget:
            del self.entries[0]

    def drop(self, call: str, shared: int) -> None:
        """What a call has computed is given up, but for its first ``shared`` tokens."""
        for entry in [one for one in self.entries if call in one[1].calls]:
            sharing, cache = entry
            self.entries.remove(entry)
            if shared and cache.whole:
                rest = cache.first(shared)
                rest.calls -= {call}
                self.entries.append((sharing, rest))
            else:
                self.entries.insert(0, entry)


def _within(entry: tuple[Sharing, TextCache], sharing: Sharing, cache: TextCache) -> bool:
    """Whether an entry is no more than a beginning of what can be cut out of ``cache``."""
    _, kept = entry
    same = kept.ids == cache.ids[: len(kept.ids)]
    return entry[0] == sharing and same and (cache.whole or len(kept.ids) == len(cache.ids))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
