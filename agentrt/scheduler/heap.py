"""A priority queue whose items can move and leave: the one heap that the scheduler uses."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Heap(Generic[Item]):
    """Items by key, the least first; of equal keys the one that was put first.

    An item that was put again or discarded leaves its old entry in the heap, where it is dropped
    when it comes up. Old entries never outnumber the items by more than two to one, so every
    operation costs O(log n), amortised.
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
        """Add an item, or move it."""
        self._puts += 1
        self._current[item] = entry = (key, self._puts, item)
        heapq.heappush(self._entries, entry)
        if len(self._entries) > 3 * len(self._current):
            self._tidy()

    def discard(self, item: Item) -> bool:
        """Take an item out wherever it stands; False if it is not here."""
        if self._current.pop(item, None) is None:
            return False
        if len(self._entries) > 3 * len(self._current):
            self._tidy()
        return True

    def first(self) -> Item | None:
        """The item with the least key; None where there is none."""
        entries, current = self._entries, self._current
        while entries:
            entry = entries[0]
            if current.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(entries)
        return None

    def first_key(self) -> Any:
        """Its key; None where there is no item."""
        return None if self.first() is None else self._entries[0][0]

    def pop(self) -> Item:
        """Take the first item out; there must be one."""
        item = self.first()
        assert item is not None
        heapq.heappop(self._entries)
        del self._current[item]
        return item

    def __iter__(self) -> Iterator[Item]:
        """The items, the first first. O(k log k) for the first k; nothing may change meanwhile."""
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
