"""Our queue levels in the shape of vLLM's waiting queue."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentrt.executors.vllm._compat.requests import Request
from agentrt.executors.vllm._compat.scheduling import RequestQueue
from agentrt.scheduler.call import Key, QueuedCall
from agentrt.scheduler.queues import LevelQueues

_MAX_DEFERRED = 64
"""Calls that are deferred for memory in one step. Where more would have to be, none of the rest is:
a call behind them may be the one that others wait for, and an idle batch costs more than blocks.
"""

_FEW_MOVED = 16
"""So many are put in their places one by one; where more have moved, all are sorted."""


class LevelRequestQueue(RequestQueue):
    """vLLM's waiting queue, ordered by `LevelQueues`.

    vLLM asks two different things of a queue: its truth, "is there something to peek
    at", and its length, which decides whether the engine goes idle. They differ while
    a victim is deferred: preempted in this very step, it must not run in it. So is, for a
    step, a call that would be ``too_costly`` for the memory that it takes, if that is asked.
    """

    def __init__(
        self,
        queues: LevelQueues,
        too_costly: Callable[[QueuedCall], bool] | None,
        kept_out: Callable[[QueuedCall], bool],
    ) -> None:
        self._queues = queues
        self._too_costly = too_costly
        self._kept_out = kept_out
        self._deferred = 0
        self.deferring = False

    def begin_step(self) -> None:
        """Look anew at the calls that were deferred for memory."""
        self._deferred = 0

    def add_request(self, request: Request) -> None:
        call = self._queues.calls[request.request_id]
        # vLLM adds a streaming session twice where its turn ends after its preemption.
        if not call.queued:
            self._queues.put(call, held=self._kept_out(call))

    def pop_request(self) -> Request:
        request: Request = self._queues.take().item
        return request

    def peek_request(self) -> Request:
        call = self._queues.head()
        if call is None:
            raise IndexError("peek from an empty queue")
        request: Request = call.item
        return request

    def prepend_request(self, request: Request) -> None:
        # A call's priority is its own: coming back, it stands before later ones anyway.
        call = self._queues.calls[request.request_id]
        self._queues.put(call, deferred=self.deferring, held=self._kept_out(call))

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in list(requests):
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        # vLLM offers every queue every request that ends, members or not.
        for request in requests:
            call = self._queues.calls.get(request.request_id)
            if call is not None:
                self._queues.discard(call)

    def __bool__(self) -> bool:
        costly = self._too_costly
        while (call := self._queues.head()) is not None and costly is not None and costly(call):
            if self._deferred == _MAX_DEFERRED:
                return True
            self._deferred += 1
            self._queues.defer()
        return call is not None

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Request]:
        return iter([call.item for call in self._queues.in_order()])


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
