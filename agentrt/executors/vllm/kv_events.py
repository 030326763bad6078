"""Tells which blocks the engine's prefix cache holds, from vLLM's own KV events.

vLLM says of each step which blocks were stored and removed. A block can be there twice, and
is then reported twice; so an event only marks a block as changed, and whether it is cached is
asked of the cache itself when a note is made. Notes ride on the outputs of calls that end;
who misses one asks for a snapshot. `docs/adr/0008-kv-events-ride-on-outputs.md` says why so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrt.executors.vllm._compat.pool import all_blocks
from agentrt.executors.vllm._compat.prefixes import (
    cached_keys,
    event_blocks,
    hash_block_size,
    is_cached,
    on_events,
)
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch, short


class KVEventLog:
    """The changes of one engine's prefix cache since its last note. In the engine core.

    Nothing is kept for those who do not listen: it begins with the first snapshot, and a log
    that nobody has read for as many blocks as the cache has starts over.
    """

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self.number = 0
        """That of the last note."""
        self._changed: dict[bytes, None] = {}
        self._cleared = False
        self._limit = 2 * all_blocks(scheduler)

    @classmethod
    def of(cls, scheduler: AsyncScheduler) -> KVEventLog | None:
        """The log of a scheduler, or None where vLLM makes no KV events."""
        log = cls(scheduler)
        return log if on_events(scheduler, log.publish) else None

    def publish(self, events: Iterable[Any]) -> None:
        """A step's events."""
        changed = self._changed
        for event in events:
            keys = event_blocks(event)
            if keys is None:
                changed.clear()
                self._cleared = True
            else:
                changed.update(dict.fromkeys(keys))
        if len(changed) > self._limit:
            self.number += 1  # whoever still reads misses this one, and asks
            changed.clear()

    def take(self) -> dict[str, Any] | None:
        """A note of all changes since the last, as plain values; None if there are none."""
        if self._cleared:
            return self.snapshot()
        if not self._changed:
            return None
        stored: list[int] = []
        removed: list[int] = []
        for key in self._changed:
            (stored if is_cached(self._scheduler, key) else removed).append(short(key))
        self._changed.clear()
        self.number += 1
        return KVEventBatch.of(self.number, stored, removed).to_wire()

    def snapshot(self) -> dict[str, Any]:
        """All blocks that the cache holds now, and their size. Notes go on from here.

        What changed since the last note counts as told: another reader has missed it.
        """
        if self._changed or self._cleared:
            self.number += 1
        self._changed.clear()
        self._cleared = False
        blocks = map(short, cached_keys(self._scheduler))
        size = hash_block_size(self._scheduler)
        return KVEventBatch.of(self.number, blocks, whole=True).to_wire() | {"block_size": size}

    def attach(self, outputs: Mapping[int, Any]) -> Mapping[int, Any]:
        """Put a note on the first of a step's outputs, by client, that ends a call of ours."""
        for output in (output for client in outputs.values() for output in client.outputs):
            params = output.kv_transfer_params
            if output.finish_reason is not None and params and "agentrt" in params:
                note = self.take()
                if note is not None:
                    params[KV_EVENTS] = note
                break
        return outputs
