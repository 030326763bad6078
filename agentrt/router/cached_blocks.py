"""Which replica has which KV blocks in its cache: one index, from block hash to replicas.

A block's hash stands for all tokens of its prompt up to its end, so blocks form a prefix
tree, and a table from hash to replicas is that tree, each node reached in one step. Engines
evict a chain of blocks from its end: what a replica has of a prompt is its beginning, and
its length is found by bisection, for all replicas at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from agentrt.errors import InvariantError


class CachedBlocks:
    """Block hashes (64 bits each), each with the replicas that have it as a bitmask."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._replicas = 0

    def __len__(self) -> int:
        """How many different blocks are known to be cached."""
        return len(self._holders)

    def join(self) -> int:
        """A new replica with an empty cache. Its number, from 0 up."""
        self._replicas += 1
        return self._replicas - 1

    # -- KV events ---------------------------------------------------------------------

    def store(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica has these blocks now."""
        bit = 1 << replica
        new = dict.fromkeys(hashes, bit)
        table = self._holders
        for value in table.keys() & new.keys():
            new[value] |= table[value]
        table.update(new)

    def remove(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica has evicted these blocks."""
        table, bit = self._holders, 1 << replica
        take = table.pop
        for value in hashes:
            holders = take(value, 0)
            if holders & ~bit:
                table[value] = holders & ~bit

    def replace(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica has these blocks, and no others."""
        self.clear(replica)
        self.store(replica, hashes)

    def clear(self, replica: int) -> None:
        """The replica has no block. Takes time by the size of the whole index."""
        self.remove(replica, self.blocks(replica))

    def blocks(self, replica: int) -> set[int]:
        """All blocks that the replica is known to have."""
        bit = 1 << replica
        return {value for value, holders in self._holders.items() if holders & bit}

    # -- the question ------------------------------------------------------------------

    def match(self, hashes: Sequence[int], size: int = 1, most: int | None = None) -> list[int]:
        """The tokens of a prompt's leading blocks, of ``size`` each, that each replica has cached.

        No more than ``most``. Exact as long as caches have beginnings of chains; a hole within
        one may be overlooked, and then the answer is too high.
        """
        everybody = (1 << self._replicas) - 1
        ends = self._ends(hashes, everybody)
        limit = len(hashes) * size if most is None else most
        # Nearly all have equally much, such as what is common to all programs: those at once.
        usual, length = max(ends, key=lambda end: end[0].bit_count())
        lengths = [min(length * size, limit)] * self._replicas
        for replicas, length in ends:
            if replicas is not usual:
                _set(lengths, replicas, min(length * size, limit))
        return lengths

    def _ends(self, hashes: Sequence[int], everybody: int) -> list[tuple[int, int]]:
        """Who has so many leading blocks, and no more; each replica once."""
        holders_of = self._holders.get
        ends = []
        # Between two places, with who has the blocks at each; nobody has what is no block.
        spans = [(-1, len(hashes), everybody, 0)]
        while spans:
            low, high, first, last = spans.pop()
            while high - low > 1:
                middle = (low + high) // 2
                here = holders_of(hashes[middle], 0) & first | last
                if here == first:
                    low = middle
                elif here == last:
                    high = middle
                else:
                    spans.append((middle, high, here, last))
                    high, last = middle, here
            ends.append((first & ~last, high))
        return ends

    def check_integrity(self) -> None:
        """For tests. Raises `InvariantError` for an entry without a replica."""
        everybody = (1 << self._replicas) - 1
        for value, holders in self._holders.items():
            if not holders or holders & ~everybody:
                raise InvariantError(f"block {value:x} is on replicas {holders:b}")


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading blocks two prompts have in common; equal at a place means so before."""
    most = min(len(one), len(other))
    return bisect_left(range(most), True, key=lambda at: one[at] != other[at])


def _set(lengths: list[int], replicas: int, length: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        lengths[lowest.bit_length() - 1] = length
        replicas ^= lowest
