"""What `Context.event` gives: one event to await, or all of a topic to iterate over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

from agentrt.interrupts.events import Event, Feed


class Events:
    """The events of a topic. Awaited, it gives the next one and is over.

    ``async for`` gives each in turn, and none is lost between two. It is subscribed until the
    program ends, or the block that ``async with`` begins.
    """

    def __init__(self, topic: str, wait: Callable[[Feed], Awaitable[Event]]) -> None:
        self._feed = Feed(topic)
        self._wait = wait

    def __await__(self) -> Generator[Any, None, Event]:
        return self._one().__await__()

    async def _one(self) -> Event:
        async with self:
            return await self._wait(self._feed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._wait(self._feed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._feed.close()
