"""Reports which blocks an engine's prefix cache has, using vLLM's own KV events.

vLLM reports after each step which blocks were stored and removed. If two blocks have the same
content, vLLM reports both, so after one of them is removed, the hash is still cached. Therefore an
event only marks a block's hash as changed. A *note* lists the changes since the last note; whether
a changed hash is cached is looked up when the note is made. Notes are sent with the outputs of
calls that end. A reader that misses a note asks for a snapshot.
`docs/adr/0008-kv-events-ride-on-outputs.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrt.executors.identity import VLLM_KEY
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
    """The changes of an engine's prefix cache since the last note, kept in the engine core.

    The log is bounded: when the changes that nobody has read are more than twice the cache's
    blocks, they are dropped, and a reader has to ask for a snapshot.
    """

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self.number = 0
        """The number of the last note."""
        self._changed: dict[bytes, None] = {}
        self._cleared = False
        self._limit = 2 * all_blocks(scheduler)

    @classmethod
    def of(cls, scheduler: AsyncScheduler) -> KVEventLog | None:
        """Return a log of a scheduler's events; None if vLLM makes no KV events."""
        log = cls(scheduler)
        return log if on_events(scheduler, log.publish) else None

    def publish(self, events: Iterable[Any]) -> None:
        """Record the KV events of one engine step, until `take` returns them."""
        changed = self._changed
        for event in events:
            keys = event_blocks(event)
            if keys is None:
                changed.clear()
                self._cleared = True
            else:
                changed.update(dict.fromkeys(keys))
        if len(changed) > self._limit:
            self.number += 1  # readers notice the missing note, and ask for a snapshot
            changed.clear()

    def take(self) -> dict[str, Any] | None:
        """Return a note of all changes since the last note, as plain values; None if nothing has
        changed. If the cache was emptied, the note is a `snapshot`.
        """
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
        """Return all blocks that the cache has now, and their size in tokens.

        Changes since the last note (the last message that `attach` added to an output) are in the
        snapshot, and not in the next note. If there were such changes, the snapshot takes the
        number of a note, so that a reader that gets only notes sees a gap in the numbers.
        """
        if self._changed or self._cleared:
            self.number += 1
        self._changed.clear()
        self._cleared = False
        blocks = map(short, cached_keys(self._scheduler))
        size = hash_block_size(self._scheduler)
        return KVEventBatch.of(self.number, blocks, whole=True).to_wire() | {"block_size": size}

    def attach(self, outputs: Mapping[int, Any]) -> Mapping[int, Any]:
        """Add a note of the cache's changes to a step's ``outputs`` (by client), and return them.

        The note is added to the first output that is the last of its call and has agentrt's report,
        which not all clients request. Without such an output, the changes wait for a later step.
        """
        for output in (output for client in outputs.values() for output in client.outputs):
            params = output.kv_transfer_params
            if output.finish_reason is not None and params and VLLM_KEY in params:
                note = self.take()
                if note is not None:
                    params[KV_EVENTS] = note
                break
        return outputs
