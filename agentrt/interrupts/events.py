"""Events that programs wait for, and the interface of their sources, such as MQTT."""

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
    """An event on a topic.

    ``payload`` is the message's JSON value; text if the message is not valid JSON; or bytes if the
    message is not valid UTF-8. ``dropped`` is the number of events that were dropped before this
    event, because too many events were waiting, or because they could not be delivered.
    """

    topic: str
    payload: Any
    dropped: int = 0


class Subscription:
    """The events of a topic for a program, in order.

    At most ``ahead`` events wait for the program. If there are more, the oldest event is dropped,
    and is counted in ``dropped`` of the next event.
    """

    def __init__(self, ahead: int = _AHEAD) -> None:
        self._box: deque[Event] = deque()
        self._ahead = ahead
        self._dropped = 0
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event."""
        if len(self._box) == self._ahead:
            self._box.popleft()
            self._dropped += 1
        self._box.append(event)
        self._arrived.set()

    def drop(self) -> None:
        """Count an event as dropped, because it cannot be delivered."""
        self._dropped += 1

    async def next(self) -> Event:
        """Wait for the next event, and return it."""
        while not self._box:
            self._arrived.clear()
            await self._arrived.wait()
        event = replace(self._box.popleft(), dropped=self._dropped)
        self._dropped = 0
        return event

    async def close(self) -> None:
        """End the subscription."""


class EventSource(ABC):
    """A source of events. All methods must be called from the same event loop.

    ``name`` is the name of the source in the DAG.
    """

    name: str = "event"

    async def open(self) -> None:  # noqa: B027 - nothing to open is a good default
        """Open the source. This succeeds even if the sender of events cannot be reached yet."""

    async def close(self) -> None:  # noqa: B027
        """Close the source, and leave no task or subscription behind. Idempotent."""

    @abstractmethod
    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        """Subscribe to a topic for a program of ``tenant``.

        Raises `ConfigError` for an invalid topic, and `ToolUnavailableError` if the source cannot
        be reached.
        """

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        """Report an event that could not start its program, or whose program did not succeed.
        ``why`` is the reason.

        If the source can store events, it stores the event, so that people can look at it.
        """
        log.warning("the event on %s was not handled: %s", event.topic, why)


class NoEvents(EventSource):
    """A source without events, for a runtime that has no other source."""

    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        raise ConfigError(
            f"the program waits for an event on {topic!r}, but there is no source of events; "
            "name an MQTT broker with --broker URL"
        )


@dataclass(slots=True, eq=False)
class Feed:
    """The events of a topic for a program. The first call of `next` starts the subscription."""

    topic: str
    subscription: Subscription | None = None

    async def next(
        self, source: EventSource, tenant: str, timeout: float | None, clock: SteadyClock
    ) -> Event:
        """Return the next event.

        Raises `InterruptExpiredError` if no event arrives within ``timeout`` seconds of ``clock``,
        and the errors of `EventSource.subscribe`.
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
            message = f"no event arrived on {self.topic!r} within {timeout:g} s"
            raise InterruptExpiredError(message, name=self.topic) from error
        finally:
            if alarm is not None:
                alarm.cancel()

    async def close(self) -> None:
        """End the subscription. Idempotent."""
        ended, self.subscription = self.subscription, None
        if ended is not None:
            await ended.close()
