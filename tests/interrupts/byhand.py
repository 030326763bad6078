"""A source of events in the test's own hands."""

from __future__ import annotations

import asyncio

from agentrt.interrupts.events import Event, EventSource, Subscription


class ByHand(EventSource):
    """What is put into ``live`` comes to all who are subscribed; topics are not looked at."""

    name = "hand"

    def __init__(self, *first: Event) -> None:
        self.first = first
        self.live: list[Held] = []
        self.is_open = False
        self.asked, self.closing, self.may_close = (asyncio.Event() for _ in range(3))
        self.may_close.set()
        self.refused: list[tuple[Event, str, str, str]] = []

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def subscribe(self, topic: str, tenant: str = "default") -> Held:
        self.asked.set()
        return Held(self)

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        self.refused.append((event, why, program, tenant))


class Held(Subscription):
    def __init__(self, source: ByHand) -> None:
        super().__init__(ahead=3)
        self._source = source
        source.live.append(self)
        for event in source.first:
            self.put(event)

    async def close(self) -> None:
        self._source.closing.set()
        await self._source.may_close.wait()
        self._source.live.remove(self)
