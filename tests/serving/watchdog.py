"""Tells which requests hold a server's event loop, by the CPU time of each of their steps.

Wall time would tell of the machine and its other work. What the garbage collector takes is left
out: it depends on all that lives in the process.
"""

from __future__ import annotations

import gc
import threading
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt.serving import app as served

LIMIT_S = 0.25
"""CPU time that a request may take at a stretch. On an idle machine what the largest bounds let
through takes at most 100 ms; caches and hyperthreads that others use make it up to twice that.
"""


@dataclass(slots=True)
class Watchdog:
    """``app``, with the longest step of each of its requests in ``held``.

    Tasks that a request starts are not seen.
    """

    app: ASGIApp
    held: list[tuple[float, str]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        steps: list[float] = []
        try:
            await timed(self.app(scope, receive, send), steps.append)
        finally:
            self.held.append((max(steps), f"{scope.get('method')} {scope.get('path')}"))

    def check(self) -> None:
        """Raise `AssertionError` if a request held the loop."""
        longest, request = max(self.held, default=(0.0, ""))
        assert longest <= LIMIT_S, f"{request} held the event loop for {longest:.2f} s of CPU time"


@types.coroutine
def timed(work: Awaitable[Any], took: Callable[[float], None]) -> Generator[Any, Any, None]:
    """Await ``work``; ``took`` gets the CPU time of each of its steps."""
    steps = work.__await__()
    step, given = steps.send, None
    while True:
        began = _cpu_s()
        try:
            awaited = step(given)
        except StopIteration:
            return
        finally:
            took(_cpu_s() - began)
        step, given = steps.send, None
        try:
            given = yield awaited
        except BaseException as error:
            step, given = steps.throw, error


@asynccontextmanager
async def opened_app(*args: Any, **options: Any) -> AsyncIterator[Watchdog]:
    """The application of a server under test: a request that holds its loop fails the test."""
    async with served.opened_app(*args, **options) as app:
        watchdog = Watchdog(app)
        yield watchdog
    watchdog.check()


_COLLECTING = threading.local()


def _cpu_s() -> float:
    """This thread's CPU time so far, without its garbage collections."""
    return time.thread_time() - getattr(_COLLECTING, "total_s", 0.0)


def _collecting(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _COLLECTING.since_s = time.thread_time()
    else:
        took_s = time.thread_time() - _COLLECTING.since_s
        _COLLECTING.total_s = getattr(_COLLECTING, "total_s", 0.0) + took_s


gc.callbacks.append(_collecting)
