"""vLLM's waiting queue, ordered by agentrt's queue levels; the order of running requests; and which
waiting requests may take one of the places for LoRA adapters in an engine's step.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from agentrt.executors.vllm._compat.pool import holds_blocks
from agentrt.executors.vllm._compat.requests import Request, compiles_grammar, waits_for_input
from agentrt.executors.vllm._compat.scheduling import (
    AsyncScheduler,
    RequestQueue,
    adapter_of,
    max_adapters,
)
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.state import Key, QueuedCall

_FEW_MOVED = 16
"""Maximum number of moved requests that are inserted one by one; if there are more, the whole list
is sorted.
"""


class LevelRequestQueue(RequestQueue):
    """vLLM's waiting queue, ordered by `SchedulerCore`.

    vLLM uses a queue's truth value to ask whether there is a request to peek at, and its length to
    decide whether the engine is idle. The two differ while calls are deferred or not admitted.
    ``adapter_fits`` says whether a request's LoRA adapter fits next to those of running requests.
    ``now`` is the time when the step began (seconds, the scheduler's clock).
    """

    def __init__(self, core: SchedulerCore, adapter_fits: Callable[[Request], bool]) -> None:
        self._core, self._queue, self._adapter_fits = core, core.queue, adapter_fits
        self.now = 0.0

    @override
    def add_request(self, request: Request) -> None:
        call = self._core.calls[request.request_id]
        # vLLM adds a streaming session twice if its turn ends after its preemption.
        if not call.queued:
            cannot_start = compiles_grammar(request) or waits_for_input(request)
            self._queue.put(call, deferred=cannot_start)

    @override
    def pop_request(self) -> Request:
        request: Request = self._queue.take().item
        return request

    @override
    def peek_request(self) -> Request:
        call = self._queue.head()
        if call is None:
            raise IndexError("peek from an empty queue")
        request: Request = call.item
        return request

    @override
    def prepend_request(self, request: Request) -> None:
        # The queue orders calls by their priority, so there is no need to put this request first.
        call = self._core.calls[request.request_id]
        if not call.queued:  # the core has already queued the calls that it preempts itself
            self._queue.put(call)

    @override
    def prepend_requests(self, requests: Iterable[Request]) -> None:
        # vLLM returns here all requests that it took in this step and could not start.
        for request in list(requests):
            call = self._core.calls[request.request_id]
            if not call.queued:
                self._core.put_back(call, self.now, deferred=not self._adapter_fits(request))

    @override
    def remove_request(self, request: Request) -> None:
        self._queue.discard(self._core.calls[request.request_id])

    @override
    def remove_requests(self, requests: Iterable[Request]) -> None:
        # vLLM uses this method only where requests or turns of streaming sessions end. The core
        # removes a call when vLLM reports the end of its request. For an aborted request, the
        # report comes later; until then, the state of the call says whether the call waited for
        # admission. The end of a turn is not reported.
        for request in requests:
            call = self._core.calls.get(request.request_id)
            if call is not None and call.resumable:
                self._queue.discard(call)

    @override
    def __bool__(self) -> bool:
        return self._queue.head() is not None

    @override
    def __len__(self) -> int:
        return len(self._queue)

    @override
    def __iter__(self) -> Iterator[Request]:
        return iter([call.item for call in self._core.in_order()])


class BegunRequests(RequestQueue):
    """A view of a ``queue`` that offers only the requests ``begun``, in this order."""

    def __init__(self, queue: RequestQueue, begun: Sequence[Request]) -> None:
        self._queue, self._begun = queue, deque(begun)

    @override
    def add_request(self, request: Request) -> None:
        self._queue.add_request(request)

    @override
    def pop_request(self) -> Request:
        request = self._begun.popleft()
        self._queue.remove_request(request)
        return request

    @override
    def peek_request(self) -> Request:
        return self._begun[0]

    @override
    def prepend_request(self, request: Request) -> None:
        self._queue.prepend_request(request)

    @override
    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self._queue.prepend_requests(requests)

    @override
    def remove_request(self, request: Request) -> None:
        self._queue.remove_request(request)

    @override
    def remove_requests(self, requests: Iterable[Request]) -> None:
        self._queue.remove_requests(requests)

    @override
    def __bool__(self) -> bool:
        return bool(self._begun)

    @override
    def __len__(self) -> int:
        return len(self._queue)

    @override
    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class RunningCalls(Sequence[QueuedCall]):
    """The calls of a ``scheduler``'s running requests, looked up when they are accessed."""

    def __init__(self, scheduler: AsyncScheduler, calls: Mapping[str, QueuedCall]) -> None:
        self._scheduler, self._calls = scheduler, calls

    @override
    def __len__(self) -> int:
        return len(self._scheduler.running)

    @override
    def __getitem__(self, at: Any) -> Any:
        return self._calls[self._scheduler.running[at].request_id]


def put_in_order(
    running: list[Request], moved: Sequence[QueuedCall], calls: Mapping[str, QueuedCall]
) -> None:
    """Sort the ``running`` requests by the keys of their calls.

    ``moved`` are the calls that may be at a wrong place; some of them may no longer be running.
    ``calls`` are all calls by request id.
    """

    def key(request: Request) -> Key:
        return calls[request.request_id].key

    if len(moved) > _FEW_MOVED:
        running.sort(key=key)
        return
    stray = [call.item for call in moved if take_out(running, call.item)]
    for request in stray:
        insort(running, request, key=key)


def take_out(running: list[Request], request: Request) -> bool:
    """Remove a request from ``running``; return False if it is not there.

    The search begins at the end, because most of the removed requests are there. `list.remove`
    would be slower, since it calls the requests' own ``__eq__``.
    """
    for index in range(len(running) - 1, -1, -1):
        if running[index] is request:
            del running[index]
            return True
    return False


# -- LoRA adapters -------------------------------------------------------------------------


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
