"""A priority queue whose items can be moved and removed. The scheduler uses it for all its
queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Heap(Generic[Item]):
    """A priority queue: the item with the smallest key comes first; with equal keys, the item that
    was put first.

    When an item is moved or removed, its old entry stays in the heap until it reaches the top, or
    until there are more than two old entries per item. So every operation costs O(log n),
    amortised.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        self._current: dict[Item, tuple[Any, int, Item]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, item: object) -> bool:
        return item in self._current

    def put(self, item: Item, key: Any) -> None:
        """Add an item with a key, or change the key of an item that is in the heap."""
        self._puts += 1
        self._current[item] = entry = (key, self._puts, item)
        heapq.heappush(self._entries, entry)
        if len(self._entries) > 3 * len(self._current):
            self._tidy()

    def discard(self, item: Item) -> bool:
        """Remove an item from any position. Return False if it is not in the heap."""
        if self._current.pop(item, None) is None:
            return False
        if len(self._entries) > 3 * len(self._current):
            self._tidy()
        return True

    def first(self) -> Item | None:
        """Return the item with the smallest key; None if the heap is empty."""
        entries, current = self._entries, self._current
        while entries:
            entry = entries[0]
            if current.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(entries)
        return None

    def first_key(self) -> Any:
        """Return the smallest key; None if the heap is empty."""
        return None if self.first() is None else self._entries[0][0]

    def pop(self) -> Item:
        """Remove and return the first item. The heap must not be empty."""
        item = self.first()
        assert item is not None
        heapq.heappop(self._entries)
        del self._current[item]
        return item

    def __iter__(self) -> Iterator[Item]:
        """Yield the items in order of their keys. The first k items cost O(k log k). The heap must
        not change during the iteration.
        """
        entries, current = self._entries, self._current
        front = [(entries[0], 0)] if entries else []
        while front:
            entry, at = heapq.heappop(front)
            if current.get(entry[2]) is entry:
                yield entry[2]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(entries):
                    heapq.heappush(front, (entries[child], child))

    def _tidy(self) -> None:
        self._entries = list(self._current.values())
        heapq.heapify(self._entries)
