"""Notes to the engine core that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentrt.executors.boundary import Boundary


class Mail:
    """Takes notes at once, and sends them in batches.

    One message is under way at a time, with all notes that came up during the one before:
    a busy engine is not flooded, and an idle one is told at once.
    """

    def __init__(self, send: Callable[[list[Boundary]], Awaitable[object]]) -> None:
        self._send = send
        self._notes: list[Boundary] = []
        self._under_way: asyncio.Task[None] | None = None

    def post(self, note: Boundary) -> None:
        """Send a note on its way. Only on a running loop."""
        self._notes.append(note)
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._deliver(), name="agentrt/mail")

    async def close(self) -> None:
        """Drop what has not been sent."""
        self._notes.clear()
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _deliver(self) -> None:
        while self._notes:
            notes, self._notes = self._notes, []
            await self._send(notes)
