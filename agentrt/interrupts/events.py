"""Events that programs wait for, and the seam behind which they come from: MQTT, or anything."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentrt.errors import ConfigError, InterruptExpiredError
from agentrt.steady import SteadyClock

log = logging.getLogger(__name__)
_AHEAD = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``payload`` is a JSON value, a text if it is none, bytes if it is
    no text either. ``dropped`` events came before it that had no room to wait in.
    """

    topic: str
    payload: Any
    dropped: int = 0


class Subscription:
    """Events on their way to one program, in their order: up to ``ahead`` wait for it. Beyond,
    the oldest is dropped, and the next event says so.
    """

    def __init__(self, ahead: int = _AHEAD) -> None:
        self._box: deque[Event] = deque()
        self._ahead = ahead
        self._dropped = 0
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """An event came."""
        if len(self._box) == self._ahead:
            self._box.popleft()
            self._dropped += 1
        self._box.append(event)
        self._arrived.set()

    def drop(self) -> None:
        """An event came that cannot be handed on."""
        self._dropped += 1

    async def next(self) -> Event:
        """The next event."""
        while not self._box:
            self._arrived.clear()
            await self._arrived.wait()
        event = replace(self._box.popleft(), dropped=self._dropped)
        self._dropped = 0
        return event

    async def close(self) -> None:
        """No more events."""


class EventSource(ABC):
    """Where events come from. All methods belong to one event loop. ``name`` is for the DAG."""

    name: str = "event"

    async def open(self) -> None:  # noqa: B027 - nothing to open is a good default
        """Get ready. Who sends events may come later, and go: that is no error here."""

    async def close(self) -> None:  # noqa: B027
        """Leave no task and no subscription behind. Idempotent."""

    @abstractmethod
    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        """Events of this topic from now on, for a program of this tenant.

        Raises `ConfigError` for a topic that cannot be, and `ToolUnavailableError`.
        """

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        """An event that was to start a program came to nothing: keep it for people, if that can
        be.
        """
        log.warning("the event on %s came to nothing: %s", event.topic, why)


class NoEvents(EventSource):
    """Nothing ever happens."""

    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        raise ConfigError(f"nothing sends events here, and {topic!r} is waited for: give --broker")


@dataclass(slots=True, eq=False)
class Feed:
    """The events of one topic for one program; it subscribes when the first one is asked for."""

    topic: str
    subscription: Subscription | None = None

    async def next(
        self, source: EventSource, tenant: str, timeout: float | None, clock: SteadyClock
    ) -> Event:
        """The next event, within so many seconds of the ``clock``. Raises
        `InterruptExpiredError`.
        """
        bound, alarm = asyncio.timeout(None), None
        try:
            async with bound:
                if timeout is not None:
                    alarm = clock.call_later(timeout, partial(bound.reschedule, 0.0))
                if self.subscription is None:
                    self.subscription = await source.subscribe(self.topic, tenant)
                return await self.subscription.next()
        except TimeoutError as error:
            if not bound.expired():
                raise
            message = f"no event came on {self.topic!r} within {timeout:g} s"
            raise InterruptExpiredError(message, name=self.topic) from error
        finally:
            if alarm is not None:
                alarm.cancel()

    async def close(self) -> None:
        """No more events. Idempotent."""
        ended, self.subscription = self.subscription, None
        if ended is not None:
            await ended.close()
