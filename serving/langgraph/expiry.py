"""When the questions of threads are over their time: a timer for the nearest deadline."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentrt.serving.langgraph.interrupts import interrupts_in


def deadline_of(interrupt: Mapping[str, Any]) -> float | None:
    """Until when a program waits for the answer (seconds since 1970), if not for ever."""
    value = interrupt["value"]
    until = value.get("expires_at") if isinstance(value, dict) else None
    return until if isinstance(until, int | float) else None


class Deadlines:
    """The nearest deadline that is known. Each question that is stored is noted."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._nearest = math.inf
        self._nearer = asyncio.Event()

    def note(self, interrupts: Mapping[str, Any] | None) -> None:
        """A thread has these interrupts now."""
        times = [deadline_of(one) for one in interrupts_in(interrupts)]
        self.add(min((time for time in times if time is not None), default=math.inf))

    def add(self, deadline: float) -> None:
        """A question may be answered until then (seconds since 1970)."""
        if deadline < self._nearest:
            self._nearest = deadline
            self._nearer.set()

    def forget(self) -> None:
        """From now on only what is added counts."""
        self._nearest = math.inf

    async def passed(self, most_s: float) -> None:
        """Wait for the nearest deadline, for ``most_s`` seconds at most."""
        with contextlib.suppress(TimeoutError):
            # By the loop's clock, so that setting the other one costs no more than that.
            async with asyncio.timeout(most_s):
                while (left := self._nearest - self._clock()) > 0:
                    self._nearer.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(left, most_s)):
                            await self._nearer.wait()
