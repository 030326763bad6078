"""Which replica holds which blocks: one index over all, from block hash to replicas.

A block's hash stands for all tokens of its prompt up to its end, so blocks form a prefix
tree, and a table from hash to holders is that tree, each node reached in one step. Engines
give up a chain of blocks from its end: what a replica holds of a prompt is its beginning, and
its length is found by bisection, for all replicas at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrt.errors import InvariantError


class Holdings:
    """Blocks by their hashes (64 bits each), with the set of their holders as a bitmask.

    ``certain`` holders have told that they store a block. Guesses, of blocks that a call under
    way is about to store, are kept apart, and end with the call.
    """

    def __init__(self) -> None:
        self._certain: dict[int, int] = {}
        self._guessed: dict[int, int] = {}
        self._replicas = 0

    def __len__(self) -> int:
        """How many different blocks are known to be held."""
        return len(self._certain)

    def join(self) -> int:
        """A new replica, which holds nothing yet. Its number, from 0 up."""
        self._replicas += 1
        return self._replicas - 1

    # -- what engines tell -------------------------------------------------------------

    def store(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica holds these blocks now."""
        table, bit = self._certain, 1 << replica
        for value in hashes:
            table[value] = table.get(value, 0) | bit

    def remove(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica does not hold these blocks any more."""
        _take(self._certain, 1 << replica, hashes)

    def replace(self, replica: int, hashes: Iterable[int]) -> None:
        """The replica holds these blocks, and no others. Guesses stay."""
        self.remove(replica, self.blocks(replica))
        self.store(replica, hashes)

    def clear(self, replica: int) -> None:
        """Forget all that the replica holds. Takes time by the size of the whole index."""
        bit = 1 << replica
        for table in (self._certain, self._guessed):
            _take(table, bit, [value for value, holders in table.items() if holders & bit])

    def blocks(self, replica: int) -> set[int]:
        """All blocks that the replica is known to hold. For tests and snapshots."""
        bit = 1 << replica
        return {value for value, holders in self._certain.items() if holders & bit}

    # -- what is only likely -----------------------------------------------------------

    def guess(self, replica: int, hashes: Iterable[int]) -> None:
        """A call that will store these blocks was sent to the replica."""
        table, bit = self._guessed, 1 << replica
        for value in hashes:
            table[value] = table.get(value, 0) | bit

    def unguess(self, replica: int, hashes: Iterable[int]) -> None:
        """That call has ended: what it stored, its engine has told."""
        _take(self._guessed, 1 << replica, hashes)

    def guessed(self, replica: int, value: int) -> bool:
        """Whether that the replica holds the block is no more than a guess."""
        bit = 1 << replica
        return bool(self._guessed.get(value, 0) & ~self._certain.get(value, 0) & bit)

    # -- the question ------------------------------------------------------------------

    def match(self, hashes: Sequence[int]) -> list[int]:
        """How many leading blocks of a prompt each replica holds.

        Exact as long as replicas hold beginnings of chains; a hole within one may be
        overlooked, and then the answer is too high.
        """
        lengths = [0] * self._replicas
        certain, guessed = self._certain.get, self._guessed.get
        # Between two places, with who holds the blocks at each; nobody holds what is no block.
        spans = [(-1, len(hashes), (1 << self._replicas) - 1, 0)]
        while spans:
            low, high, first, last = spans.pop()
            if high - low == 1:
                _set(lengths, first & ~last, high)
                continue
            middle = (low + high) // 2
            value = hashes[middle]
            here = (certain(value, 0) | guessed(value, 0)) & first | last
            if here != first:
                spans.append((low, middle, first, here))
            if here != last:
                spans.append((middle, high, here, last))
        return lengths

    def check_integrity(self) -> None:
        """For tests. Raises `InvariantError` for an entry that nobody holds."""
        everybody = (1 << self._replicas) - 1
        for table in (self._certain, self._guessed):
            for value, holders in table.items():
                if not holders or holders & ~everybody:
                    raise InvariantError(f"block {value:x} is held by {holders:b}")


def _take(table: dict[int, int], bit: int, hashes: Iterable[int]) -> None:
    for value in hashes:
        holders = table.get(value, 0) & ~bit
        if holders:
            table[value] = holders
        else:
            table.pop(value, None)


def _set(lengths: list[int], replicas: int, length: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        lengths[lowest.bit_length() - 1] = length
        replicas ^= lowest
