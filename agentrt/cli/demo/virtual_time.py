"""An event loop in virtual time: instead of sleeping until the next timer, it advances its clock.

Code on this loop takes only its own computing time, however many seconds it waits, and its results
are repeatable. The code must run on one thread and read the loop's clock.

Each reading of the clock advances the clock by a microsecond. So no two events have the same time,
as with a real clock. A scheduler that serves programs in the order of their arrival needs distinct
times.
"""

from __future__ import annotations

import asyncio
import selectors

_LOOK_S = 1e-6


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose ``time()`` is the sum of all waits, in seconds. Each reading of this time
    advances it a little.
    """

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        self._waits.now += _LOOK_S
        return self._waits.now


class _Waits(selectors.DefaultSelector):
    """A selector that advances its clock instead of waiting for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer, wait in real time for an event from outside.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready
