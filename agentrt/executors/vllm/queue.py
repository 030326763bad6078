"""Our queue levels in the shape of vLLM's waiting queue."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from agentrt.executors.vllm._compat.requests import Request, compiles_grammar
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, RequestQueue
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.records import Key, QueuedCall

_FEW_MOVED = 16
"""So many are put in their places one by one; where more have moved, all are sorted."""


class LevelRequestQueue(RequestQueue):
    """vLLM's waiting queue, ordered by `SchedulerCore`.

    vLLM asks two different things of a queue: its truth, "is there something to peek
    at", and its length, which decides whether the engine goes idle. They differ while
    calls are deferred or not admitted. ``now`` is when the step began, in seconds.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self._core, self._queue = core, core.queue
        self.now = 0.0

    @override
    def add_request(self, request: Request) -> None:
        call = self._core.calls[request.request_id]
        # vLLM adds a streaming session twice where its turn ends after its preemption.
        if not call.queued:
            self._queue.put(call, deferred=compiles_grammar(request))

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
        # A call's priority is its own: coming back, it stands before later ones anyway.
        call = self._core.calls[request.request_id]
        if not call.queued:  # whom the core preempts, it has queued already
            self._queue.put(call)

    @override
    def prepend_requests(self, requests: Iterable[Request]) -> None:
        # vLLM gives back together what it took in this step and could not start.
        for request in list(requests):
            call = self._core.calls[request.request_id]
            if not call.queued:
                self._core.put_back(call, self.now)

    @override
    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    @override
    def remove_requests(self, requests: Iterable[Request]) -> None:
        # vLLM offers every queue every request that ends, whether it is in it or not.
        for request in requests:
            call = self._core.calls.get(request.request_id)
            if call is not None:
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


class RunningCalls(Sequence[QueuedCall]):
    """The calls of a ``scheduler``'s running requests, each looked up when it is asked for."""

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
    """Sort what is ``running`` by its ``calls``' keys; only those that ``moved`` can stand wrong.

    Some of these may have ended by now, or wait.
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
    """Remove a request; False if it is not there. Those that are to be mostly stand at the end.

    A list's own methods would ask requests whether they are equal, in Python.
    """
    for index in range(len(running) - 1, -1, -1):
        if running[index] is request:
            del running[index]
            return True
    return False
