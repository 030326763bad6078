"""Sends notifications to an engine in another process, without waiting for an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Notification

_LOG = logging.getLogger(__name__)


class Outbox:
    """Takes notifications without waiting, and sends them in batches.

    Only one message is in flight at a time. Each message has all notifications that were posted
    while the message before it was in flight. So a busy engine does not get too many messages, and
    an idle engine gets a notification at once. Notifications for a dead engine are dropped.
    """

    def __init__(self, send: Callable[[list[Notification]], Awaitable[object]]) -> None:
        self._send = send
        self._notes: list[Notification] = []
        self._delivering: asyncio.Task[None] | None = None

    def post(self, note: Notification) -> None:
        """Send a notification. This needs a running event loop."""
        self._notes.append(note)
        if self._delivering is None or self._delivering.done():
            with tracking.outside():  # the task belongs to no program
                self._delivering = asyncio.create_task(self._deliver(), name="agentrt/outbox")

    async def close(self) -> None:
        """Drop notifications that have not been sent."""
        self._notes.clear()
        if self._delivering is not None:
            self._delivering.cancel()
            await asyncio.wait([self._delivering])

    async def _deliver(self) -> None:
        while self._notes:
            notes, self._notes = self._notes, []
            try:
                await self._send(notes)
            except EngineDiedError:
                return
            except Exception as error:  # no caller waits for the answer
                _LOG.warning("an engine refused notifications of programs: %s", error)
