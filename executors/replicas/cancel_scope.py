"""Ends the waits for an engine once somebody knows that nothing will come.

An engine that was killed fails its calls itself. One that hangs does not: whoever finds that
out cuts its cancel_scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentrt.errors import EngineDiedError

T = TypeVar("T")


class CancelScope:
    """What those who wait for one engine hold on to."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()
        self._why: str | None = None

    def cut(self, why: str) -> None:
        """The engine is gone: every wait, now and later, raises `EngineDiedError`.

        Who is told later gets the first reason.
        """
        self._why = self._why or why
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    async def hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work()`` gives, if the engine lives that long."""
        if self._why is not None:
            raise EngineDiedError(self._why)
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    return await work()
                finally:
                    self._waits.discard(wait)
        except TimeoutError as error:
            if self._why is None:
                raise
            raise EngineDiedError(self._why) from error
