"""Signals that drain a command, or that stop its programs and its engine within a few seconds.

Ctrl-C and SIGHUP stop a command. SIGTERM drains a command: it finishes what runs and starts nothing
new. Any first signal drains a server or an MQTT worker. No child process is left behind.

The signal handlers are set with Python's ``signal`` module and not on the event loop, because a
program may block the loop. If the command has not ended after `STOP_WITHIN_S`, a thread ends the
process.
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
"""Maximum duration of a stop by a first signal, in seconds."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Drain:
    """The signals that drain a command. They drain the command only while its programs run; before
    that, they stop the command.

    ``first`` is the number of the signal that started draining, or None.
    """

    def __init__(self, *numbers: int) -> None:
        self.first: int | None = None
        self._numbers = numbers
        self._begin: Callable[[], None] | None = None

    @contextmanager
    def possible(self, begin: Callable[[str], None]) -> Iterator[None]:
        """During the ``with`` block, let the first signal that drains the command call ``begin``
        on the event loop, with the signal's name.
        """
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
        """Start draining if ``number`` is one of the signals that drain, and return True. Return
        False for any other signal, and if draining has already started or is not possible now.
        Called by a signal's handler.
        """
        if self.first is not None or self._begin is None or number not in self._numbers:
            return False
        self.first = number
        self._begin()
        return True


class Interrupts:
    """A runner of one coroutine, on its own event loop. A first signal cancels the coroutine; a
    second signal ends the process at once.

    ``last_words`` prints a line when the process ends at once. A signal that starts draining
    (``drain``) is not counted: the next signal counts as the first. ``subject`` says in words what
    a signal stops.
    """

    def __init__(
        self,
        last_words: Callable[[str], None],
        drain: Drain | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        subject: str = "the programs and the engine",
    ) -> None:
        self.number: int | None = None
        self._subject = subject
        self._new_loop = new_loop
        self._drain = drain
        self._last_words = last_words
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` and return its result. Raises `StoppedError` if a signal stopped it.

        Also ends the processes that ``main`` left behind.
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
            return _result(loop, task)
        except asyncio.CancelledError:
            if self.number is None:
                raise
            raise StoppedError(self.number, self._note()) from None
        finally:
            # asyncio.run would wait for tools in threads, and threads cannot be stopped.
            _result(loop, loop.create_task(_finish(loop)))
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
        finally:  # also if the terminal is gone or closed
            os._exit(128 + self.number)

    def _note(self) -> str:
        assert self.number is not None
        how = "interrupted" if self.number == signal.SIGINT else signal.Signals(self.number).name
        return f"{how}: {self._subject} were stopped"


def _result(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """Run the loop until ``task`` has ended, and return the task's result.

    If code of a program calls `sys.exit` in another task, such as a node of a graph, asyncio gives
    the `SystemExit` to the task that awaits this task, and also stops the loop. The loop then
    continues, because one program must not end the others.
    """
    while True:
        try:
            return loop.run_until_complete(task)
        except SystemExit:
            if task.done():
                raise


@contextmanager
def taken(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle `SIGNALS` with ``handler`` during the ``with`` block. Under nohup, SIGHUP stays
    ignored.
    """
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
    """Let SIGTERM and SIGHUP end this process and its child processes, until a command installs
    its own handlers.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end_now)


def end_now(number: int, frame: FrameType | None) -> NoReturn:
    """End this process and its child processes, with the exit code of this signal."""
    try:
        end_descendants()
    finally:
        os._exit(128 + number)


async def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left on the loop, as asyncio.run does."""
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()


def leave(code: int) -> NoReturn:
    """End the process with this exit code at once.

    The interpreter's normal exit waits for threads, such as the thread of a tool that blocks or of
    an engine that was interrupted while it loaded. If torch is loaded, the normal exit takes about
    a second longer.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not others and "torch" not in sys.modules:
        sys.exit(code)
    from agentrt.runtime._compat import (
        run_exit_functions,
    )  # imported here, so that --help stays fast

    run_exit_functions()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)
