"""Does runs, and says now and then how many are done; a signal keeps what is done."""

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

_SAID_EVERY_S = 10.0


def do_runs(
    specs: Sequence[RunSpec], jobs: int | None
) -> tuple[list[RunResult], StoppedError | None]:
    """Do the runs of a grid as `do_all` does."""
    return do_all(specs, jobs, do)


def do_all(
    specs: Sequence[Spec], jobs: int | None, do: Callable[[Spec], Result]
) -> tuple[list[Result], StoppedError | None]:
    """Do the runs, in one process per core by default. A signal ends them early: it comes with
    the results so far.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    done: list[Result] = []
    meter = Meter(len(specs))
    try:
        with taken(_Raise()), closing(run_all(specs, jobs, do)) as results:
            for result in results:
                done.append(result)
                meter.now(len(done))
    except StoppedError as stop:
        text = f"{stop}: {len(done)} of {len(specs)} runs were done"
        return done, StoppedError(stop.code - 128, text)
    return done, None


@contextmanager
def compared(specs: Sequence[RunSpec], jobs: int | None, baseline: str) -> Iterator[list[Cell]]:
    """The runs as cells of a comparison, for the body to print; then a signal is raised."""
    results, stop = do_runs(specs, jobs)
    settings = list(dict.fromkeys(spec.setting for spec in specs))
    names = list(dict.fromkeys(spec.contender.name for spec in specs))
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


class Meter:
    """Says on stderr how many runs, or others, are done, and the time left, judging by those."""

    def __init__(self, runs: int, of: str = "runs") -> None:
        self._runs, self._of = runs, of
        self._began = self._said = time.monotonic()

    def now(self, done: int, what: str = "") -> None:
        """So many are done. Said at once with ``what`` comes now, else every ten seconds."""
        now = time.monotonic()
        if not what and now - self._said < _SAID_EVERY_S:
            return
        self._said = now
        each = (now - self._began) / max(1, done)
        left = f", about {each * (self._runs - done):.0f} s left" if done else ""
        say(f"{done} of {self._runs} {self._of}{left}{': ' if what else ''}{what}")
