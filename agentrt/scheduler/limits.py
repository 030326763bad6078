"""Limits on the memory and the time of the scheduler, however many programs there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

MOST_KINDS = 2048
"""Maximum number of kinds that are kept; the least recently used kind is dropped first."""
SCANNED = 8
"""Maximum number of entries of a list that are considered, where considering all would cost too
much. The lists are the calls of a program, the calls that wait for admission, and the chains of
blocks that a program may continue.
"""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """A mapping that creates missing values, and keeps at most `MOST_KINDS` keys: the least
    recently used key is dropped first.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        super().__init__()
        self._make = make

    def of(self, key: Key) -> Value:
        """Return the value of a key, creating it if needed, and mark the key as used."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
            return value
        value = self[key] = self._make()
        if len(self) > MOST_KINDS:
            self.popitem(last=False)
        return value
