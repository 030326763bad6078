"""Where progress goes, on stderr: a live view on a terminal, a few plain lines elsewhere."""

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
from agentrt.cli.streams import printable
from agentrt.runtime.events import Event, ProgramEnded
from agentrt.runtime.run import Run

_LOADING_FRAME_S = 0.1
_RUNNING_FRAME_S = 0.25

Snapshot = Callable[[], Awaitable[Mapping[str, Any]]]


class Screen:
    """Shows a command's progress: a line for each step of the start, and for each program's end.

    ``console`` is for what comes after it.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()
        self._runs: Sequence[Run] = ()
        self._ended = 0

    def progress(self, message: str) -> None:
        """The engine's start has come so far. May be called from any thread."""
        self.announce(f"[{time.monotonic() - self._began:.1f} s] {message}")

    def announce(self, message: str) -> None:
        """Say something that is to stay on the screen."""
        self.console.file.write(f"{printable(message)}\n")

    def saw(self, event: Event) -> None:
        """Something happened to a program."""
        if isinstance(event, ProgramEnded):
            self._ended += 1
            programs = len(self._runs)
            count = f" ({self._ended} of {programs})" if programs > 1 else ""
            self.progress(f"{event.program_id} {event.state}{count}")

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """While the body runs, the screen is alive."""
        yield

    def watch(self, runs: Sequence[Run], snapshot: Snapshot, now: Callable[[], float]) -> None:
        """From now on show these programs; there may come more."""
        self._runs, self._ended = runs, 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[IO[str]]:
        """The terminal for somebody else, while the body runs."""
        yield self.console.file

    def last_words(self, text: str) -> None:
        """Say this when the process ends before anything can be put in order."""
        self.announce(text)


class LiveScreen(Screen):
    """A spinner while the engine starts, then the programs; gone when the view ends."""

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
        """The next frame shows it."""

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
                task.result()  # a bug in the view must not pass unseen

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
        # Rich has hidden the cursor, and its lock may be held: straight to the terminal.
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
            auto_refresh=False,  # its thread would read DAGs while the loop changes them
            transient=True,
            # What a program prints goes above the view, unless it goes elsewhere.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start(refresh=True)

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _Console(Console):
    """Names and errors are not ours: no markup is read in them, and no control characters kept."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class _Display(io.TextIOWrapper):
    """Whoever was to read stderr may be gone, its disk full; the program goes on all the same."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


@contextlib.contextmanager
def open_screen(*, plain: bool = False) -> Iterator[Screen]:
    """The screen for this process' stderr; ``plain`` where others write there, too."""
    # A descriptor of its own: the engine's start moves 2 into a log file.
    raw = os.fdopen(os.dup(2), "wb")
    display = _Display(raw, encoding="utf-8", errors="replace", line_buffering=True)
    console = _Console(file=display, markup=False, emoji=False)
    is_live = console.is_terminal and not console.is_dumb_terminal and not plain
    try:
        yield LiveScreen(console) if is_live else Screen(console)
    finally:
        with contextlib.suppress(OSError):
            display.close()
