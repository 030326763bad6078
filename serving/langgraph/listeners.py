"""Those who listen to a thread, and not to one run: they hear each of its runs that begins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agentrt.serving.langgraph.execution import Live

_AHEAD = 256
"""So many runs of a thread may begin while a listener reads one; more are not told."""


class Listeners:
    """By thread."""

    def __init__(self) -> None:
        self._queues: dict[str, list[asyncio.Queue[Live]]] = {}

    @contextmanager
    def to(self, thread: str) -> Iterator[asyncio.Queue[Live]]:
        """The thread's runs, as they begin."""
        queue: asyncio.Queue[Live] = asyncio.Queue(_AHEAD)
        self._queues.setdefault(thread, []).append(queue)
        try:
            yield queue
        finally:
            self._queues[thread].remove(queue)
            if not self._queues[thread]:
                del self._queues[thread]

    def began(self, live: Live) -> None:
        """A run of its thread begins."""
        for queue in self._queues.get(live.record.thread_id, ()):
            if not queue.full():
                queue.put_nowait(live)
