"""The index of the KV blocks that the replicas have cached, from a block's hash to the replicas.

A block's hash covers all tokens of the prompt up to the end of the block. So blocks form a prefix
tree, and a table from hashes to replicas gives access to each node of the tree in one step. Engines
usually evict a chain of blocks from its end, so the cached blocks of a prompt are the first blocks
of the prompt. The number of these blocks is found by bisection, for all replicas at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from agentrt.errors import InvariantError


class ReplicaBlockIndex:
    """An index from block hashes (64 bits) to the replicas that have the block, as a bitmask."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._replicas = 0

    def __len__(self) -> int:
        """Return the number of different blocks that are known to be cached."""
        return len(self._holders)

    def join(self) -> int:
        """Add a replica with an empty cache, and return its number, from 0 on."""
        self._replicas += 1
        return self._replicas - 1

    # -- KV events ---------------------------------------------------------------------

    def store(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has stored these blocks."""
        bit = 1 << replica
        new = dict.fromkeys(hashes, bit)
        table = self._holders
        for value in table.keys() & new.keys():
            new[value] |= table[value]
        table.update(new)

    def remove(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has evicted these blocks."""
        table, bit = self._holders, 1 << replica
        take = table.pop
        for value in hashes:
            holders = take(value, 0)
            if holders & ~bit:
                table[value] = holders & ~bit

    def replace(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has exactly these blocks."""
        self.clear(replica)
        self.store(replica, hashes)

    def clear(self, replica: int) -> None:
        """Record that the replica has no blocks. Takes time proportional to the whole index."""
        self.remove(replica, self.blocks(replica))

    def blocks(self, replica: int) -> set[int]:
        """Return all blocks that the replica is known to have."""
        bit = 1 << replica
        return {value for value, holders in self._holders.items() if holders & bit}

    # -- queries -----------------------------------------------------------------------

    def match(self, hashes: Sequence[int], size: int = 1, most: int | None = None) -> list[int]:
        """Return, for each replica, the number of a prompt's leading tokens that the replica has
        cached. ``hashes`` are the prompt's blocks of ``size`` tokens each. The numbers are at most
        ``most``.

        The numbers are exact if each replica has cached the first blocks of the prompt without a
        gap. If a block in the middle is missing, the number may be too high.
        """
        everybody = (1 << self._replicas) - 1
        ends = self._ends(hashes, everybody)
        limit = len(hashes) * size if most is None else most
        # Set the most common length for all replicas first. In most cases it is the length of the
        # prefix that all programs share.
        usual, length = max(ends, key=lambda end: end[0].bit_count())
        lengths = [min(length * size, limit)] * self._replicas
        for replicas, length in ends:
            if replicas is not usual:
                _set(lengths, replicas, min(length * size, limit))
        return lengths

    def _ends(self, hashes: Sequence[int], everybody: int) -> list[tuple[int, int]]:
        """Return groups of replicas that have the same number of leading blocks, as pairs of the
        group's bitmask and this number. Each replica is in one group.
        """
        holders_of = self._holders.get
        ends = []
        # Intervals of positions, with the replicas that have the blocks at both ends. All replicas
        # have the position before the first block, and none has the position after the last.
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
        """Raise `InvariantError` for an entry without a valid replica. For tests."""
        everybody = (1 << self._replicas) - 1
        for value, holders in self._holders.items():
            if not holders or holders & ~everybody:
                raise InvariantError(
                    f"block {value:x} has the replica mask {holders:#b}; it must have at least "
                    f"one bit, and only the bits of the {self._replicas} replicas"
                )


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of leading blocks that two prompts share. If the hashes at a position are
    equal, the hashes at all earlier positions must be equal, too.
    """
    most = min(len(first), len(second))
    return bisect_left(range(most), True, key=lambda at: first[at] != second[at])


def _set(lengths: list[int], replicas: int, length: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        lengths[lowest.bit_length() - 1] = length
        replicas ^= lowest
