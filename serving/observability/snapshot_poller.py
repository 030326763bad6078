"""Asks the engines how they stand, as often as somebody looks, and no more often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrt.errors import AgentrtError
from agentrt.executors.base import Executor
from agentrt.serving.observability.engines import EngineView

_PATIENCE_S = 1.0
_REST_S = 5.0


class SnapshotPoller:
    """The last `EngineView`; ``on_view`` is told of each new one. ``clock`` gives seconds.

    An engine in a long step answers late. Nobody who looks waits for it longer than
    ``patience_s``, and after that it is left alone for a while.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        on_view: Callable[[EngineView], None] = lambda view: None,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.view = EngineView(at=float("-inf"), up=False)
        self._executor = executor
        self._clock = clock
        self._on_view = on_view
        self._patience_s = patience_s
        self._not_before = float("-inf")
        self._asking = asyncio.Lock()

    def up(self) -> bool:
        """Whether the engine is there, as far as is known without asking it."""
        alive = getattr(self._executor, "alive", None)
        return True if alive is None else bool(alive())

    async def fresh(self, age_s: float) -> EngineView:
        """A view not older than ``age_s`` seconds; the last one where the engine is busy."""
        async with self._asking:
            now = self._clock()
            if now - self.view.at >= age_s and now >= self._not_before:
                await self._look()
            return self.view

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                snapshot = await self._executor.snapshot()
        except TimeoutError:
            self._not_before = self._clock() + _REST_S
            return
        except AgentrtError:
            snapshot = {}
        now = self._clock()
        if snapshot and self.up():
            self.view = EngineView.of(snapshot, now)
        else:
            self.view = EngineView(at=now, up=False)
        self._on_view(self.view)
