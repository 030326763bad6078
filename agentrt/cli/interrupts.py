"""Ctrl-C and its like: stop the programs, then the engine, in time, and leave no process.

Python's own signal handlers are used and not the event loop's, since a program may block
the loop: then a thread ends the process when the time is up.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn, TypeVar

from agentrt.cli.drain import Drain
from agentrt.cli.faults import StoppedError
from agentrt.executors.vllm.processes import end_descendants

T = TypeVar("T")

STOP_WITHIN_S = 4.0
"""How long a first Ctrl-C may take. The promise to users is 5 s."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Runs one coroutine; a first signal cancels it, a second one ends the process at once.

    ``last_words`` writes a line for people when there is no time left to return. A SIGTERM that
    ``drain`` takes does not count: whatever comes after it is the first signal.
    """

    def __init__(self, last_words: Callable[[str], None], drain: Drain | None = None) -> None:
        self.number: int | None = None
        self._drain = drain
        self._last_words = last_words
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What ``main`` returns. Raises `StoppedError` if a signal came first.

        Processes that ``main`` left behind are ended.
        """
        loop = self._loop = asyncio.new_event_loop()
        task = self._task = loop.create_task(main)
        before = {number: signal.signal(number, self._caught) for number in _SIGNALS}
        try:
            result: T = loop.run_until_complete(task)
            return result
        except asyncio.CancelledError:
            if self.number is None:
                raise
            raise StoppedError(self.number, self._note()) from None
        finally:
            # Not asyncio.run: it would wait for tools in threads, which cannot be stopped.
            loop.run_until_complete(_finish(loop))
            end_descendants()
            self._over.set()
            for number, handler in before.items():
                signal.signal(number, handler)
            asyncio.set_event_loop(None)
            loop.close()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            self._end_now()
        if number == signal.SIGTERM and self._drain is not None and self._drain.ask():
            return
        self.number = number
        threading.Thread(target=self._watch, name="stop-in-time", daemon=True).start()
        assert self._loop is not None
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)

    def _watch(self) -> None:
        if not self._over.wait(STOP_WITHIN_S):
            self._end_now()

    def _end_now(self) -> NoReturn:
        assert self.number is not None
        end_descendants()
        self._last_words(f"{self._note()}, by force")
        os._exit(128 + self.number)

    def _note(self) -> str:
        assert self.number is not None
        how = "interrupted" if self.number == signal.SIGINT else signal.Signals(self.number).name
        return f"{how}: the programs and the engine were stopped"


async def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on the loop, as asyncio.run does."""
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()


def leave(code: int) -> NoReturn:
    """End the process with this exit code, without waiting for anything.

    With torch loaded the interpreter's own end takes a second, and it waits for threads:
    for a tool that blocks, or an engine that was interrupted while it loaded.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not others and "torch" not in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)
