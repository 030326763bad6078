"""Tasks that belong to no program, and work that is called off when its client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from agentrt import tracking
from agentrt.serving.programs.errors import ApiError

T = TypeVar("T")


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Tasks:
    """Tasks with one owner, which waits for them when it closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Call off what is left."""
        while tasks := list(self._tasks):
            await stop(tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in a task that is no program's."""
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def unless_gone(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives. If the client goes, it is called off.

        Raises `ClientGoneError` then, and `ApiError` if somebody else called it off.
        """
        task, gone = self.start(work), self.start(_gone(request))
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = task.done()
            await stop([task, gone])
        if not was_done:
            raise ClientGoneError
        if task.cancelled():
            raise called_off()
        return task.result()


def called_off() -> ApiError:
    """The error of a call whose program was ended."""
    return ApiError(409, "the call was called off: its program was ended", code="cancelled")


async def stop(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they are over. What they raised is known elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
