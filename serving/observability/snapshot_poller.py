"""Asks the engines for snapshots, only when somebody reads one and the last is too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrt.errors import AgentrtError
from agentrt.executors.base import Executor
from agentrt.serving.observability.engines import EngineView

_TIMEOUT_S = 1.0
_PAUSE_S = 5.0


class SnapshotPoller:
    """The last `EngineView`; each new one goes to ``on_view``. ``clock`` gives seconds.

    An engine in a long step answers late. A reader waits at most ``timeout_s`` for it, and after
    a timeout the engine is not asked again for a while.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        on_view: Callable[[EngineView], None] = lambda view: None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.view = EngineView(at=float("-inf"), up=False)
        self._executor = executor
        self._clock = clock
        self._on_view = on_view
        self._timeout_s = timeout_s
        self._not_before = float("-inf")
        self._asking = asyncio.Lock()

    def up(self) -> bool:
        """Whether the engine is alive, as far as is known without asking it."""
        return self._executor.alive()

    async def fresh(self, age_s: float) -> EngineView:
        """A view not older than ``age_s`` seconds; if the engine is busy, the last one."""
        async with self._asking:
            now = self._clock()
            if now - self.view.at >= age_s and now >= self._not_before:
                await self._poll()
            return self.view

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                snapshot = await self._executor.snapshot()
        except TimeoutError:
            self._not_before = self._clock() + _PAUSE_S
            return
        except AgentrtError:
            snapshot = {}
        now = self._clock()
        if snapshot and self.up():
            self.view = EngineView.of(snapshot, now)
        else:
            self.view = EngineView(at=now, up=False)
        self._on_view(self.view)
