"""The KV events of an engine: batches of stored and removed blocks, and the reader that puts the
batches in order.

Batches are numbered. If a batch is missing, the reader's data is no longer correct, so a snapshot
is needed: a batch that replaces all earlier data. The reader handles batches that arrive late,
twice or in another order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KV_EVENTS = "agentrt_kv_events"
"""The key of a batch in the data that an engine sends with a call's last output."""

_WAITING = 64
"""Maximum number of batches that are kept while an earlier batch is missing."""


@dataclass(frozen=True, slots=True)
class KVEventBatch:
    """The blocks that an engine has stored and removed since its last batch. A block is identified
    by 64 bits of its hash.

    A ``whole`` batch is a snapshot: its stored blocks are all blocks in the cache.
    """

    number: int
    stored: array[int]
    removed: array[int]
    whole: bool = False

    @classmethod
    def of(
        cls, number: int, stored: Iterable[int], removed: Iterable[int] = (), *, whole: bool = False
    ) -> KVEventBatch:
        """Make a batch from the hashes of blocks."""
        return cls(number, array("Q", stored), array("Q", removed), whole)

    def to_wire(self) -> dict[str, Any]:
        """Return the batch as values for a message, with eight bytes for each block."""
        return {
            "number": self.number,
            "stored": self.stored.tobytes(),
            "removed": self.removed.tobytes(),
            "whole": self.whole,
        }

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> KVEventBatch:
        """Make a batch from the result of `to_wire`."""
        stored, removed = array("Q"), array("Q")
        stored.frombytes(values["stored"])
        removed.frombytes(values["removed"])
        return cls(values["number"], stored, removed, values["whole"])


class KVEventStream:
    """A reader that puts the batches of one engine in order. It first needs a snapshot."""

    def __init__(self) -> None:
        self.number = -1
        """The number of the last batch that was returned by `take`; -1 before the first batch."""
        self._early: dict[int, KVEventBatch] = {}

    @property
    def gap(self) -> bool:
        """Whether a batch is missing, so that a snapshot is needed."""
        return self.number < 0 or bool(self._early)

    def take(self, batch: KVEventBatch) -> list[KVEventBatch]:
        """Add a batch, and return the batches that can be applied now, in order."""
        ready = []
        if batch.whole and batch.number >= self.number:
            self.number = batch.number
            ready = [batch]
        elif batch.number > self.number:
            self._early[batch.number] = batch
        return ready + self._follow()

    def _follow(self) -> list[KVEventBatch]:
        ready = []
        self._early = {n: batch for n, batch in self._early.items() if n > self.number}
        while self.number >= 0 and self.number + 1 in self._early:
            self.number += 1
            ready.append(self._early.pop(self.number))
        while len(self._early) > _WAITING:
            self._early.pop(min(self._early))
        return ready

    def forget(self) -> None:
        """Start again, because the engine died and the new engine numbers its batches from 0."""
        self.number = -1
        self._early.clear()


def short(block_hash: bytes) -> int:
    """Return the 64 bits of a block's hash by which routers identify the block."""
    return int.from_bytes(block_hash[:8])
