"""Signals for a server: the first has it finish what runs, the second stops it now."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType

from agentrt.cli.interrupts import Interrupts


class Draining(Interrupts):
    """As `Interrupts`, but once `ready`, a first signal only sets ``drain``.

    ``tell`` writes a line for people.
    """

    def __init__(self, last_words: Callable[[str], None], tell: Callable[[str], None]) -> None:
        super().__init__(last_words)
        self.drain = asyncio.Event()
        self.first: int | None = None
        self._tell = tell
        self._is_ready = False

    def ready(self) -> None:
        """From now on there may be something to finish."""
        self._is_ready = True

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if not self._is_ready or self.first is not None:
            super()._caught(number, frame)
            return
        self.first = number
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        assert self.first is not None
        name = signal.Signals(self.first).name
        self._tell(f"{name}: finishing what runs and taking nothing new; again to stop now")
        self.drain.set()
