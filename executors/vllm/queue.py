"""Our queue levels in the shape of vLLM's waiting queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentrt.executors.vllm._compat.requests import Request
from agentrt.executors.vllm._compat.scheduling import RequestQueue
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.queues import LevelQueues

_HELD_A_STEP = 16
"""Calls that are held back for memory in one step, before the rest have to wait as well."""


class LevelRequestQueue(RequestQueue):
    """vLLM's waiting queue, ordered by `LevelQueues`.

    vLLM asks two different things of a queue: its truth, "is there something to peek
    at", and its length, which decides whether the engine goes idle. They differ while
    a victim is held back: preempted in this very step, it must not run in it. So is, for
    a step, a call that would be ``too_dear`` for the memory that it takes.
    """

    def __init__(self, queues: LevelQueues, too_dear: Callable[[QueuedCall], bool]) -> None:
        self._queues = queues
        self._too_dear = too_dear
        self._held = 0
        self.holding = False

    def begin_step(self) -> None:
        """Look anew at the calls that were held back for memory."""
        self._held = 0

    def add_request(self, request: Request) -> None:
        call = self._queues.calls[request.request_id]
        # vLLM adds a streaming session a second time where the end of its turn comes in after
        # its preemption.
        if not call.queued:
            self._queues.put(call)

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
        # A call's place is its own: coming back, it stands before later ones anyway.
        self._queues.put(self._queues.calls[request.request_id], deferred=self.holding)

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
        while (call := self._queues.head()) is not None and self._too_dear(call):
            if self._held == _HELD_A_STEP:
                return False
            self._held += 1
            self._queues.put(self._queues.take(), deferred=True)
        return call is not None

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Request]:
        return iter([call.item for call in self._queues.in_order()])
