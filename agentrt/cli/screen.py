"""Progress on stderr: a live view on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner

from agentrt.cli.live import render
from agentrt.cli.streams import printable, width_of
from agentrt.runtime.events import Event, RunEnded
from agentrt.runtime.run import Run

_LOADING_FRAME_S = 0.1
_RUNNING_FRAME_S = 0.25

Snapshot = Callable[[], Awaitable[Mapping[str, Any]]]


class Screen:
    """A command's progress as plain lines: one line for each step of the engine's start, and one
    for each program that ends.

    Use ``console`` for output that follows the progress.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()
        self._runs: Sequence[Run] = ()
        self._ended = 0

    def progress(self, message: str) -> None:
        """Show what the command does now, such as a step of the engine's start. May be called from
        any thread.
        """
        self.announce(f"[{time.monotonic() - self._began:.1f} s] {message}")

    def announce(self, message: str) -> None:
        """Print a message that stays on the screen."""
        self.console.file.write(f"{printable(message)}\n")

    def saw(self, event: Event) -> None:
        """Report the end of a program. Ignore all other events."""
        if isinstance(event, RunEnded):
            self._ended += 1
            programs = len(self._runs)
            count = f" ({self._ended} of {programs})" if programs > 1 else ""
            self.progress(f"{event.program_id} {event.state}{count}")

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """Keep the screen updated during the ``with`` block."""
        yield

    def watch(self, runs: Sequence[Run], snapshot: Snapshot, now: Callable[[], float]) -> None:
        """Show the programs in ``runs`` from now on, also programs that are added to ``runs``
        later.
        """
        self._runs, self._ended = runs, 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[IO[str]]:
        """Lend the terminal to the ``with`` block, for example to ask a human a question."""
        yield self.console.file

    def last_words(self, text: str) -> None:
        """Print a text just before the process ends without cleaning up."""
        self.announce(text)


class LiveScreen(Screen):
    """A live view: a spinner while the engine starts, then the programs. When the view ends, it
    disappears.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._spinner = Spinner("dots", "starting")
        self._message = "starting"
        self._frame: Callable[[], Awaitable[RenderableType]] = self._loading
        self._pause = _LOADING_FRAME_S
        self._live: Live | None = None

    def progress(self, message: str) -> None:
        self._message = message

    def announce(self, message: str) -> None:
        self.console.print(message, highlight=False, soft_wrap=True)

    def saw(self, event: Event) -> None:
        """Do nothing: the next frame shows the event."""

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        self._start()
        task = asyncio.create_task(self._animate(), name="live-view")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._stop()
            if not task.cancelled():
                task.result()  # raises what went wrong in the view

    def watch(self, runs: Sequence[Run], snapshot: Snapshot, now: Callable[[], float]) -> None:
        async def frame() -> RenderableType:
            height = max(2, self.console.size.height - 2)
            view = render(runs, await snapshot(), now(), height)
            self._spinner.update(text=self._message)
            return Group(view, self._spinner) if self._message else view

        self._message = ""
        self._frame, self._pause = frame, _RUNNING_FRAME_S

    @contextlib.contextmanager
    def paused(self) -> Iterator[IO[str]]:
        self._stop()
        try:
            yield self.console.file
        finally:
            self._start()

    def last_words(self, text: str) -> None:
        # Rich has hidden the cursor, and its lock may be held, so write to the terminal directly.
        os.write(self.console.file.fileno(), f"\x1b[?25h\n{text}\n".encode())

    async def _animate(self) -> None:
        while True:
            frame = await self._frame()
            if self._live is not None:
                self._live.update(frame, refresh=True)
            await asyncio.sleep(self._pause)

    async def _loading(self) -> RenderableType:
        seconds = time.monotonic() - self._began
        self._spinner.update(text=f"{self._message}  {seconds:.0f} s")
        return self._spinner

    def _start(self) -> None:
        self._live = Live(
            self._spinner,
            console=self.console,
            auto_refresh=False,  # Rich's thread would read DAGs while the event loop changes them
            transient=True,
            # Show the output of programs above the view, unless it is redirected.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _Console(Console):
    """A console for text that users, models and tools wrote: it replaces control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class _Display(io.TextIOWrapper):
    """A stream that ignores errors: programs continue when stderr is closed or its disk is full."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


@contextlib.contextmanager
def open_screen(*, plain: bool = False) -> Iterator[Screen]:
    """Open the screen on this process's stderr. ``plain`` turns the live view off, for when other
    output goes to stderr, too.
    """
    # Use a new descriptor, because the engine's start redirects descriptor 2 into a log file.
    raw = os.fdopen(os.dup(2), "wb")
    display = _Display(raw, encoding="utf-8", errors="replace", line_buffering=True)
    console = _Console(file=display, markup=False, emoji=False, width=width_of(display))
    is_live = console.is_terminal and not console.is_dumb_terminal and not plain
    try:
        yield LiveScreen(console) if is_live else Screen(console)
    finally:
        with contextlib.suppress(OSError):
            display.close()
