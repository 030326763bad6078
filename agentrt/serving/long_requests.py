"""Large requests work on the event loop one step at a time, and leave most of it to the others.

What a request does between two waits is a step: nobody else's request goes on meanwhile. To read
and check a body of a megabyte takes some steps of ten milliseconds. A short call has some fifteen
steps, and between each two of them those of every large request could run. So only one large
request at a time takes a step, tenants in turns; and while short requests are under way, the steps
of all large ones together take `SHARE` of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from agentrt.executors.vllm.turns import Turns

SHARE = 0.25
"""The part of the event loop's time that large requests take while short ones are under way."""
BURST_S = 0.004
"""So much of it they may take at once."""
_MOST_S = 0.1
"""What a step took beyond this is not made up for."""
_LEAST_S = 0.0005
"""Less is not waited for."""


class LongRequests:
    """The large requests of a server. ``short`` counts the others that are under way."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.short = 0
        self._clock, self._sleep = clock, sleep
        self._turns = Turns(1)
        self._used = 0.0
        self._at = self._began = clock()

    def run(self, tenant: str, request: Awaitable[None]) -> Awaitable[None]:
        """Do a request of ``tenant``, each of its steps in turn."""
        return _Stepped(self, tenant, request)

    async def begin(self, tenant: str) -> None:
        """Wait until a request may take a step: `end` ends it, and `over` its turn."""
        await self._turns.take(tenant)
        try:
            await self.rest()
        except BaseException:
            self.over()
            raise

    async def rest(self) -> None:
        """Wait until there is time for the next step of the request that has the turn."""
        while (wait_s := self._wait_s()) > _LEAST_S:
            await self._sleep(wait_s)
        self._began = self._clock()

    def end(self) -> None:
        """A step is over. It counts by the time in which nobody else went on, and not by its
        processor time: on a busy machine, all others take longer, too.
        """
        now = self._forget()
        self._used = min(self._used + now - self._began, _MOST_S)

    def over(self) -> None:
        """Give the turn to another request."""
        self._turns.over()

    def _wait_s(self) -> float:
        self._forget()
        return (self._used - BURST_S) / SHARE if self.short else 0.0

    def _forget(self) -> float:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * SHARE)
        self._at = now
        return now


class _Stepped:
    """Awaits a request, and begins its steps only in its turn. It has the turn until it waits for
    something: a `sleep(0)` in which others go on ends a step, and not the turn. So few large bodies
    are in memory as objects at a time.
    """

    def __init__(self, requests: LongRequests, tenant: str, request: Awaitable[None]) -> None:
        self._requests, self._tenant, self._request = requests, tenant, request

    def __await__(self) -> Generator[Any, Any, None]:
        requests, steps = self._requests, self._request.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        has_turn = False
        try:
            while True:
                begun = requests.rest() if has_turn else requests.begin(self._tenant)
                try:
                    yield from begun.__await__()
                    has_turn = True
                except BaseException as error:  # cancelled while it waits: it ends out of turn
                    step, value = steps.throw, error
                try:
                    awaited = step(value)
                except StopIteration:
                    return
                finally:
                    if has_turn:
                        requests.end()
                if has_turn and awaited is not None:
                    has_turn = False
                    requests.over()
                step, value = steps.send, None
                try:
                    value = yield awaited
                except BaseException as error:
                    step, value = steps.throw, error
        finally:
            if has_turn:
                requests.over()
