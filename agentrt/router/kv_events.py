"""What an engine tells of its prefix cache, note by note, and how a reader stays right.

Each note has the number after the one before it. A reader that misses one cannot trust what it
has: it asks for a snapshot, which is a note that replaces everything, and goes on from there.
Notes that come late, twice or in another order do no harm.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KV_EVENTS = "agentrt_held"
"""Where a note lies among what an engine sends with a call's last output."""

_WAITING = 64
"""Notes that are kept while an earlier one is missing."""


@dataclass(frozen=True, slots=True)
class KVEventBatch:
    """Blocks that an engine stored and removed since its note before, by 64 bits of their hash.

    A ``whole`` one is a snapshot: what it stored is all that it holds.
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
    """Puts the notes of one engine into order. At first it has missed everything."""

    def __init__(self) -> None:
        self.number = -1
        """That of the last note in order; -1 where nothing is known."""
        self._early: dict[int, KVEventBatch] = {}

    @property
    def gap(self) -> bool:
        """Whether a note is missing, so that a snapshot is needed."""
        return self.number < 0 or bool(self._early)

    def take(self, note: KVEventBatch) -> list[KVEventBatch]:
        """The notes that can be applied now, in order."""
        ready = []
        if note.whole and note.number >= self.number:
            self.number = note.number
            ready = [note]
        elif note.number > self.number:
            self._early[note.number] = note
        return ready + self._follow()

    def _follow(self) -> list[KVEventBatch]:
        ready = []
        self._early = {n: note for n, note in self._early.items() if n > self.number}
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
