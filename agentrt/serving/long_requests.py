"""Limit the time that large requests take on the event loop, so that short requests stay fast.

The work of a request between two waits is a step, and no other request runs during a step. Reading
and checking a body of a megabyte takes several steps of ten milliseconds. A short call has about
fifteen steps, and without a limit, a step of every large request could run between two of these
steps. So only one large request at a time takes steps, and tenants take turns. While short requests
are in flight, the steps of all large requests together take at most `SHARE` of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from agentrt.executors.vllm.turns import Turns

SHARE = 0.25
"""The share of the event loop's time for large requests while short requests are in flight."""
BURST_S = 0.004
"""Seconds that large requests may use in advance of their share."""
_MOST_S = 0.1
"""Maximum debt of large requests, in seconds: the charged time that is not paid off yet. A second
pays off `SHARE` seconds. Time beyond this maximum is not charged.
"""
_LEAST_S = 0.0005
"""Waits that are shorter than this number of seconds are skipped."""


class LongRequests:
    """The scheduler of a server's large requests. ``short`` counts the short requests in flight."""

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
        """Return an awaitable that runs a large request of ``tenant`` step by step."""
        return _Stepped(self, tenant, request)

    async def begin(self, tenant: str) -> None:
        """Wait for the turn of a request, and for its first step.

        `end` ends a step, and `over` ends the turn.
        """
        await self._turns.take(tenant)
        try:
            await self.rest()
        except BaseException:
            self.over()
            raise

    async def rest(self) -> None:
        """Wait until the share of large requests allows the next step of this turn."""
        while (wait_s := self._wait_s()) > _LEAST_S:
            await self._sleep(wait_s)
        self._began = self._clock()

    def end(self) -> None:
        """End a step, and charge its duration.

        The duration counts, and not the processor time, because it is the time that other requests
        had to wait.
        """
        now = self._forget()
        self._used = min(self._used + now - self._began, _MOST_S)

    def over(self) -> None:
        """End the turn, so that another large request can begin its turn."""
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
    """An awaitable that runs the steps of a request in its turns.

    A turn ends when the request waits for something. A ``sleep(0)`` ends a step, but not the turn,
    so that few large bodies are in memory as parsed objects at a time.
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
                except BaseException as error:  # cancelled while waiting: end without a turn
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
