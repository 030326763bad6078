"""The places for LoRA adapters in an engine's step: which waiting calls may take one."""

from __future__ import annotations

from collections.abc import Mapping

from agentrt.executors.vllm._compat.pool import holds_blocks
from agentrt.executors.vllm._compat.requests import Request
from agentrt.executors.vllm._compat.scheduling import (
    AsyncScheduler,
    adapter_of,
    max_adapters,
)
from agentrt.scheduler.core import SchedulerCore


class AdapterPlaces:
    """The adapters of a scheduler's running requests, and whether further adapters fit.

    While a call starves for its adapter (`CallQueue.starving`), other adapters fit only for calls
    that have waited for longer. Otherwise a stream of calls with the running adapters would keep
    the call waiting for ever, as in vLLM's own scheduler. An adapter that has been running since
    before the starving call came still fits for all calls, because the running calls that use it
    hold its place anyway. If nothing runs, a call that holds KV-cache blocks may start: the
    starving call may wait for these blocks, or be behind a call that waits for them. While the
    engine is paused, a starving call keeps no adapter from fitting: only calls that have begun may
    run then.
    """

    def __init__(self, scheduler: AsyncScheduler, core: SchedulerCore) -> None:
        self._scheduler, self._core = scheduler, core
        self._at_begin: Mapping[int, float] | None = None
        self._paused = False

    def new_step(self, paused: bool) -> None:
        """Note that a step begins, and whether the engine is ``paused``."""
        self._at_begin, self._paused = None, paused

    def fit(self, request: Request) -> bool:
        """Return whether a waiting request's adapter fits next to those of running requests."""
        return adapter_of(request) is None or self._fits(request, self._running())

    def justifies_preemption(self, request: Request) -> bool:
        """Return whether a running call may be preempted for a waiting request: the request has no
        adapter, or its adapter fits and no call starves for another adapter. If a call does, the
        request's adapter may fit only because of the running calls that use it, one of which may be
        the call that is preempted.
        """
        starving, adapter = self._core.queue.starving, adapter_of(request)
        if adapter is not None and starving is not None and adapter != adapter_of(starving.item):
            return False
        return self.fit(request)

    def fitted(self, request: Request) -> bool:
        """Return whether a waiting request's adapter fitted when the step began. All calls of this
        method in a step look at the running requests only once.
        """
        if self._at_begin is None:
            self._at_begin = self._running()
        return self._fits(request, self._at_begin)

    def _running(self) -> Mapping[int, float]:
        """Return the time since which each adapter has been running."""
        since: dict[int, float] = {}
        for request in self._scheduler.running:
            if (adapter := adapter_of(request)) is not None:
                began_at = self._core.calls[request.request_id].began_at
                since[adapter] = min(began_at, since.get(adapter, began_at))
        return since

    def _fits(self, request: Request, running: Mapping[int, float]) -> bool:
        adapter = adapter_of(request)
        if adapter is None:
            return True
        if adapter not in running and len(running) >= max_adapters(self._scheduler):
            return False
        starving = self._core.queue.starving
        if starving is None or adapter == adapter_of(starving.item):
            return True
        if self._paused:
            return True
        if not self._scheduler.running and holds_blocks(self._scheduler, request):
            return True
        since, came_at = self._core.calls[request.request_id].since or 0.0, starving.since or 0.0
        return since <= came_at or running.get(adapter, came_at) < came_at
