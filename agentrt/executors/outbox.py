"""Notifications to an engine elsewhere, which nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Notification

_LOG = logging.getLogger(__name__)


class Outbox:
    """Takes notes at once, and sends them in batches. What is for a dead engine is lost with it.

    One message is under way at a time, with all notes that came up during the one before:
    a busy engine is not flooded, and an idle one gets a note at once.
    """

    def __init__(self, send: Callable[[list[Notification]], Awaitable[object]]) -> None:
        self._send = send
        self._notes: list[Notification] = []
        self._under_way: asyncio.Task[None] | None = None

    def post(self, note: Notification) -> None:
        """Send a note on its way. Only on a running loop."""
        self._notes.append(note)
        if self._under_way is None or self._under_way.done():
            with tracking.outside():  # it is nobody's own
                self._under_way = asyncio.create_task(self._deliver(), name="agentrt/outbox")

    async def close(self) -> None:
        """Drop what has not been sent."""
        self._notes.clear()
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _deliver(self) -> None:
        while self._notes:
            notes, self._notes = self._notes, []
            try:
                await self._send(notes)
            except EngineDiedError:
                return
            except Exception as error:  # whatever the core's answer is, nobody waits for it
                _LOG.warning("an engine did not take a note: %s", error)
