"""SIGTERM while programs run: what runs is finished, and nothing new is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Drain:
    """Whether a first SIGTERM drains a command; before its programs run, it stops it."""

    def __init__(self) -> None:
        self.asked = False
        self._begin: Callable[[], None] | None = None

    @contextmanager
    def possible(self, begin: Callable[[], None]) -> Iterator[None]:
        """While the body runs, a first request calls ``begin`` on the event loop."""
        loop = asyncio.get_running_loop()

        def soon() -> None:
            loop.call_soon_threadsafe(begin)

        self._begin = soon
        try:
            yield
        finally:
            self._begin = None

    def ask(self) -> bool:
        """Drain, from a signal's handler. False if that cannot be, or was asked before."""
        if self.asked or self._begin is None:
            return False
        self.asked = True
        self._begin()
        return True
