"""An event loop in virtual time: nothing sleeps, and its clock moves on to whatever comes next.

What runs on it takes only the time of its own code, however many seconds it waits, and waits the
same seconds each time. It is for code on one thread that reads the loop's clock.

Each look at the clock moves it on by a microsecond. So no two events are at the same time, as with
a real clock: a scheduler that serves programs in the order of their arrival needs one.
"""

from __future__ import annotations

import asyncio
import selectors

_LOOK_S = 1e-6


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose ``time()`` counts the seconds that were waited for."""

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        self._waits.now += _LOOK_S
        return self._waits.now


class _Waits(selectors.DefaultSelector):
    """A selector that moves its clock on where another would sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer there is nothing to move on to: something outside has to happen.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready
