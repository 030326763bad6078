"""Which replica holds which blocks: one index over all, from block hash to replicas.

A block's hash stands for all tokens of its prompt up to its end, so blocks form a prefix
tree, and a table from hash to holders is that tree, each node reached in one step. Engines
give up a chain of blocks from its end: what a replica holds of a prompt is its beginning, and
its length is found by bisection, for all replicas at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrt.errors import InvariantError


class CachedBlocks:
    """Blocks by their hashes (64 bits each), with the set of their holders as a bitmask."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._replicas = 0

    def __len__(self) -> int:
        """How many different blocks are known to be held."""
        return len(self._holders)

    def join(self) -> int:
        """A new replica, which holds nothing yet. Its number, from 0 up."""
        self._replicas += 1
        return self._replicas - 1

    # -- what engines tell -------------------------------------------------------------

    def store(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica holds these blocks now."""
        bit = 1 << replica
        new = dict.fromkeys(hashes, bit)
        table = self._holders
        for value in table.keys() & new.keys():
            new[value] |= table[value]
        table.update(new)

    def remove(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica does not hold these blocks any more."""
        table, bit = self._holders, 1 << replica
        take = table.pop
        for value in hashes:
            holders = take(value, 0)
            if holders & ~bit:
                table[value] = holders & ~bit

    def replace(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica holds these blocks, and no others."""
        self.clear(replica)
        self.store(replica, hashes)

    def clear(self, replica: int) -> None:
        """Forget all that the replica holds. Takes time by the size of the whole index."""
        self.remove(replica, self.blocks(replica))

    def blocks(self, replica: int) -> set[int]:
        """All blocks that the replica is known to hold."""
        bit = 1 << replica
        return {value for value, holders in self._holders.items() if holders & bit}

    # -- the question ------------------------------------------------------------------

    def match(self, hashes: Sequence[int], size: int = 1, most: int | None = None) -> list[int]:
        """The leading part of a prompt that each replica holds, in blocks of ``size`` tokens.

        No more than ``most``. Exact as long as replicas hold beginnings of chains; a hole within
        one may be overlooked, and then the answer is too high.
        """
        everybody = (1 << self._replicas) - 1
        ends = self._ends(hashes, everybody) if hashes else [(everybody, 0)]
        limit = len(hashes) * size if most is None else most
        # Nearly all hold equally much, such as what is common to all programs: those at once.
        usual, length = max(ends, key=_count)
        lengths = [min(length * size, limit)] * self._replicas
        for replicas, length in ends:
            if replicas is not usual:
                _set(lengths, replicas, min(length * size, limit))
        return lengths

    def _ends(self, hashes: Sequence[int], everybody: int) -> list[tuple[int, int]]:
        """Who holds so many leading blocks, and no more; each replica once."""
        holders_of = self._holders.get
        ends = []
        # Between two places, with who holds the blocks at each; nobody holds what is no block.
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
        """For tests. Raises `InvariantError` for an entry that nobody holds."""
        everybody = (1 << self._replicas) - 1
        for value, holders in self._holders.items():
            if not holders or holders & ~everybody:
                raise InvariantError(f"block {value:x} is held by {holders:b}")


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading blocks two prompts have in common; equal at a place means so before."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _set(lengths: list[int], replicas: int, length: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        lengths[lowest.bit_length() - 1] = length
        replicas ^= lowest


def _count(end: tuple[int, int]) -> int:
    return end[0].bit_count()
