"""Does runs with a progress bar on stderr; a signal keeps what is done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import NoReturn

from agentrt.cli.faults import StoppedError
from agentrt.cli.signals import end_now, taken
from agentrt.cli.streams import say
from agentrt.lab.reports.compare import Cell, cells
from agentrt.lab.runs.grid import RunResult, RunSpec, do
from agentrt.lab.runs.workers import Result, Spec, run_all

_PLAIN_EVERY_S = 10.0


def do_runs(
    specs: Sequence[RunSpec],
    jobs: int | None,
    keep: Callable[[RunResult], None] = lambda result: None,
) -> tuple[list[RunResult], StoppedError | None]:
    """Do the runs of a grid as `do_all` does."""
    return do_all(specs, jobs, do, keep)


def do_all(
    specs: Sequence[Spec],
    jobs: int | None,
    do: Callable[[Spec], Result],
    keep: Callable[[Result], None] = lambda result: None,
) -> tuple[list[Result], StoppedError | None]:
    """Do the runs, in one process per core by default. A signal ends them early: it comes with
    the results so far. Each of them is given to ``keep`` at once.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    done: list[Result] = []
    try:
        with (
            taken(_Raise()),
            _meter(len(specs)) as meter,
            closing(run_all(specs, jobs, do)) as results,
        ):
            for result in results:
                done.append(result)
                keep(result)
                meter()
    except StoppedError as stop:
        text = f"{stop}: {len(done)} of {len(specs)} runs were done"
        return done, StoppedError(stop.code - 128, text)
    return done, None


@contextmanager
def compared(
    specs: Sequence[RunSpec], jobs: int | None, names: Sequence[str], baseline: str
) -> Iterator[list[Cell]]:
    """The runs as cells of a comparison, for the body to print; then a signal is raised."""
    results, stop = do_runs(specs, jobs)
    settings = list(dict.fromkeys(spec.setting for spec in specs))
    yield cells(results, settings, names, baseline)
    if stop:
        raise stop


class _Raise:
    """A first signal raises `StoppedError`, so that processes end and files close; a second one
    ends all at once.
    """

    def __init__(self) -> None:
        self._first: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if self._first is not None:
            end_now(self._first, frame)
        self._first = number
        name = "interrupted" if number == signal.SIGINT else signal.Signals(number).name
        raise StoppedError(number, name)


@contextmanager
def _meter(runs: int) -> Iterator[Callable[[], None]]:
    """A function to call as each run ends."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(runs)
        return
    columns = (
        *(MofNCompleteColumn(), TextColumn("runs"), BarColumn(), TimeElapsedColumn()),
        *(TextColumn("left:"), TimeRemainingColumn()),
    )
    # A long memory for speed: runs of several workloads differ in it.
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task("", total=runs)
        yield lambda: bar.advance(task)


class _Lines:
    """A line now and then, where there is no terminal for a bar."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._ended = 0
        self._began = self._said = time.monotonic()

    def __call__(self) -> None:
        self._ended += 1
        now = time.monotonic()
        if now - self._said < _PLAIN_EVERY_S:
            return
        self._said = now
        left = (now - self._began) * (self._runs / self._ended - 1)
        say(f"{self._ended} of {self._runs} runs, about {left:.0f} s left")
