"""Threads for tools. asyncio's own are few and waited for at the interpreter's exit: tools that
hang would hold up all others, and then the exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

_MOST = 1000


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    context: contextvars.Context
    function: Callable[[], Any]


class Threads:
    """As many threads as there is work for at once, up to ``most``; beyond, it waits."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # as long as threads are idle: a counter without a lock
        self._count = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread. Cancelled, it is left behind there."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(_Job(loop, future, contextvars.copy_context(), function))
        try:
            self._idle.pop()
        except IndexError:
            if self._count < self._most:
                self._count += 1
                name = f"agentrt/tool-{self._count}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """Let the threads end, as soon as they are idle."""
        for _ in range(self._count):
            self._jobs.put(None)
        self._count = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(job)
            del job  # and what it refers to, while this thread waits for the next one
            self._idle.append(None)


def _do(job: _Job) -> None:
    result, error = None, None
    try:
        result = job.context.run(job.function)
    except BaseException as raised:
        error = raised
    try:
        job.loop.call_soon_threadsafe(_settle, job.future, result, error)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
