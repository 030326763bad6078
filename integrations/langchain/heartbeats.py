"""Heartbeats for LangGraph: a node with an idle timeout must outlive the wait for its call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Heartbeat = Callable[[], None]

_PERIOD_S = 0.05
"""Well below any sensible idle timeout. LangGraph does not say how long a node's is."""


class Heartbeats:
    """Sends the heartbeats of all calls under way, from one timer of one event loop."""

    def __init__(self) -> None:
        self._beats: dict[int, Heartbeat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    @property
    def is_running(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    @contextmanager
    def sending(self, beat: Heartbeat | None) -> Iterator[None]:
        """Call ``beat`` regularly while the body runs. With None, do nothing."""
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
