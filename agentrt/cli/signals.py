"""Signals: stop the programs, then the engine, in time, and leave no process; or drain first.

Ctrl-C stops a command. SIGTERM has it finish what runs and take nothing new, as any first signal
has a server.

Python's own signal handlers are used and not the event loop's, since a program may block
the loop: then a thread ends the process when the time is up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

from agentrt.cli.faults import StoppedError
from agentrt.executors.vllm.processes import end_descendants

T = TypeVar("T")

STOP_WITHIN_S = 4.0
"""How long a first Ctrl-C may take. The promise to users is 5 s."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Drain:
    """Which first signals drain a command while its programs run; before that they stop it.

    ``first`` is the one that did.
    """

    def __init__(self, *numbers: int) -> None:
        self.first: int | None = None
        self._numbers = numbers
        self._begin: Callable[[], None] | None = None

    @contextmanager
    def possible(self, begin: Callable[[str], None]) -> Iterator[None]:
        """While the body runs, a first signal calls ``begin`` on the event loop, with its name."""
        loop = asyncio.get_running_loop()

        def soon() -> None:
            assert self.first is not None
            loop.call_soon_threadsafe(begin, signal.Signals(self.first).name)

        self._begin = soon
        try:
            yield
        finally:
            self._begin = None

    def takes(self, number: int) -> bool:
        """Drain, from a signal's handler. False if that cannot be, or was asked before."""
        if self.first is not None or self._begin is None or number not in self._numbers:
            return False
        self.first = number
        self._begin()
        return True


class Interrupts:
    """Runs one coroutine on a loop of its own; a first signal cancels it, a second one ends the
    process at once.

    ``last_words`` writes a line for people when there is no time left to return. A signal that
    ``drain`` takes does not count: whatever comes after it is the first one. ``what`` is what is
    stopped, in words.
    """

    def __init__(
        self,
        last_words: Callable[[str], None],
        drain: Drain | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        what: str = "the programs and the engine",
    ) -> None:
        self.number: int | None = None
        self._what = what
        self._new_loop = new_loop
        self._drain = drain
        self._last_words = last_words
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What ``main`` returns. Raises `StoppedError` if a signal came first.

        Processes that ``main`` left behind are ended.
        """
        loop = self._loop = self._new_loop()
        task = self._task = loop.create_task(main)
        try:
            with taken(self._caught):
                result: T = self._until_ended(loop, task)
                return result
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _until_ended(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self.number is None:
                raise
            raise StoppedError(self.number, self._note()) from None
        finally:
            # Not asyncio.run: it would wait for tools in threads, which cannot be stopped.
            loop.run_until_complete(_finish(loop))
            end_descendants()
            self._over.set()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            self._end_now()
        if self._drain is not None and self._drain.takes(number):
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
        try:
            end_descendants()
            self._last_words(f"{self._note()}, by force")
        finally:  # whatever is wrong with the terminal, or closed by now
            os._exit(128 + self.number)

    def _note(self) -> str:
        assert self.number is not None
        how = "interrupted" if self.number == signal.SIGINT else signal.Signals(self.number).name
        return f"{how}: {self._what} were stopped"


@contextmanager
def taken(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """While the body runs, signals go to ``handler``; but nohup's SIGHUP stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, earlier in before.items():
        if number != signal.SIGHUP or earlier is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def end_at_signals() -> None:
    """SIGTERM and SIGHUP end this process and all that it started, unless a command takes them."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end_now)


def end_now(number: int, frame: FrameType | None) -> NoReturn:
    """End this process and all that it started, as this signal ended it."""
    try:
        end_descendants()
    finally:
        os._exit(128 + number)


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
    from agentrt.runtime._compat import run_exit_functions  # here: --help needs none of it

    run_exit_functions()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)
