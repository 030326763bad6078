"""What an engine tells of its prefix cache, batch by batch, and how a reader stays right.

Batches are numbered. A reader that misses one cannot trust what it has: it asks for a snapshot,
which is a batch that replaces everything, and goes on from there. Batches that come late, twice
or in another order do no harm.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KV_EVENTS = "agentrt_kv_events"
"""The key of a batch among what an engine sends with a call's last output."""

_WAITING = 64
"""Batches that are kept while an earlier one is missing."""


@dataclass(frozen=True, slots=True)
class KVEventBatch:
    """Blocks that an engine stored and removed since its last batch, by 64 bits of their hash.

    A ``whole`` one is a snapshot: what it stored is all that is in its cache.
    """

    number: int
    stored: array[int]
    removed: array[int]
    whole: bool = False

    @classmethod
    def of(
        cls, number: int, stored: Iterable[int], removed: Iterable[int] = (), *, whole: bool = False
    ) -> KVEventBatch:
        """From the blocks' hashes."""
        return cls(number, array("Q", stored), array("Q", removed), whole)

    def to_wire(self) -> dict[str, Any]:
        """As values that any message can carry: eight bytes a block."""
        return {
            "number": self.number,
            "stored": self.stored.tobytes(),
            "removed": self.removed.tobytes(),
            "whole": self.whole,
        }

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> KVEventBatch:
        """What `to_wire` made."""
        stored, removed = array("Q"), array("Q")
        stored.frombytes(values["stored"])
        removed.frombytes(values["removed"])
        return cls(values["number"], stored, removed, values["whole"])


class KVEventStream:
    """Puts the batches of one engine into order. At first it has missed everything."""

    def __init__(self) -> None:
        self.number = -1
        """That of the last batch in order; -1 where nothing is known."""
        self._early: dict[int, KVEventBatch] = {}

    @property
    def gap(self) -> bool:
        """Whether a batch is missing, so that a snapshot is needed."""
        return self.number < 0 or bool(self._early)

    def take(self, batch: KVEventBatch) -> list[KVEventBatch]:
        """The batches that can be applied now, in order."""
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
        """The engine died: its successor begins anew."""
        self.number = -1
        self._early.clear()


def short(block_hash: bytes) -> int:
    """The 64 bits of a block's hash that routers know it by."""
    return int.from_bytes(block_hash[:8])
