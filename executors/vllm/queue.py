"""Our queue levels in the shape of vLLM's waiting queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentrt.executors.vllm._compat import Request, RequestQueue
from agentrt.scheduler.queues import LevelQueues


class LevelRequestQueue(RequestQueue):
    """vLLM's waiting queue, ordered by `LevelQueues`.

    vLLM asks two different things of a queue: its truth, "is there something to peek
    at", and its length, which decides whether the engine goes idle. They differ while
    a victim is held back: preempted in this very step, it must not run in it.
    """

    def __init__(self, queues: LevelQueues) -> None:
        self._queues = queues
        self.holding = False

    def add_request(self, request: Request) -> None:
        self._queues.put(self._queues.calls[request.request_id])

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
        self._queues.put(self._queues.calls[request.request_id], hold=self.holding)

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
        return self._queues.head() is not None

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Request]:
        return iter([call.item for call in self._queues.in_order()])
