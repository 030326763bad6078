"""A priority queue whose items can be moved and removed. The scheduler uses it for all queues that
are sorted by a key.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class PriorityQueue(Generic[Item]):
    """A priority queue: the item with the smallest key comes first; with equal keys, the item that
    was put first.

    The queue is a sorted list. Adding, moving or removing an item takes O(log n) comparisons, and
    shifts the entries behind the item, which takes about a microsecond for 10,000 items. A heap
    would shift no entries. But the old entries of moved and removed items would stay in it and
    gather at its front, where the scheduler looks at several items in each step.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        """The items in order. The number tells entries with equal keys apart, so that items are
        never compared.
        """
        self._entry: dict[Item, tuple[Any, int, Item]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entry

    def put(self, item: Item, key: Any) -> None:
        """Add an item with a key, or change the key of an item that is in the queue."""
        entries = self._entries
        if item in self._entry:
            del entries[bisect_left(entries, self._entry[item])]
        self._puts += 1
        self._entry[item] = entry = (key, self._puts, item)
        insort(entries, entry)

    def discard(self, item: Item) -> bool:
        """Remove an item from any position. Return False if it is not in the queue."""
        entry = self._entry.pop(item, None)
        if entry is None:
            return False
        del self._entries[bisect_left(self._entries, entry)]
        return True

    def first(self) -> Item | None:
        """Return the item with the smallest key; None if the queue is empty."""
        return self._entries[0][2] if self._entries else None

    def first_key(self) -> Any:
        """Return the smallest key; None if the queue is empty."""
        return self._entries[0][0] if self._entries else None

    def pop(self) -> Item:
        """Remove and return the first item. The queue must not be empty."""
        item = self._entries.pop(0)[2]
        del self._entry[item]
        return item

    def __iter__(self) -> Iterator[Item]:
        """Yield the items in order of their keys. The queue must not change during the
        iteration.
        """
        for _, _, item in self._entries:
            yield item
