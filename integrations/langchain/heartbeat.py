"""Heartbeats: a LangGraph node with an idle timeout does not die while its call waits its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Beat = Callable[[], None]

_PERIOD_S = 0.05
"""Well below any idle timeout that makes sense: LangGraph does not tell how long it is."""


class Pulse:
    """Gives the heartbeats of all calls that are under way, from one timer of one loop."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    @property
    def is_beating(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    @contextmanager
    def beating(self, beat: Beat | None) -> Iterator[None]:
        """Give ``beat`` regularly while the body runs. None is no heartbeat, and no timer."""
        if beat is None:
            yield
            return
        self._next += 1
        key = self._next
        self._beats[key] = beat
        beat()
        if self._timer is None:
            self._set_timer()
        try:
            yield
        finally:
            del self._beats[key]
            if not self._beats and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._give)

    def _give(self) -> None:
        for beat in list(self._beats.values()):
            beat()
        self._set_timer()
