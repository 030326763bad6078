"""Does runs, and says now and then how many are done; a signal keeps what is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import connection
from types import FrameType
from typing import Any, NoReturn, TypeVar

from agentrt.cli.faults import StoppedError
from agentrt.cli.signals import Interrupts, end_now, taken
from agentrt.cli.streams import say
from agentrt.errors import EngineError
from agentrt.executors.vllm.processes import interrupts_blocked
from agentrt.lab.reports.compare import Series, cells
from agentrt.lab.runs.grid import RunResult, RunSpec, do

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
        return done, _stopped(stop, len(done), len(specs))
    return done, None


def do_on_engines(
    work: Coroutine[Any, Any, object], results: Sized, runs: int
) -> StoppedError | None:
    """Do the ``work`` of so many runs on real engines. A signal ends it early: it is returned,
    with how many ``results`` there are.
    """
    try:
        Interrupts(say).run(work)
    except StoppedError as stop:
        return _stopped(stop, len(results), runs)
    return None


def _stopped(stop: StoppedError, done: int, runs: int) -> StoppedError:
    return StoppedError(stop.code - 128, f"{stop}: {done} of {runs} runs were done")


@contextmanager
def compared(specs: Sequence[RunSpec], jobs: int | None, baseline: str) -> Iterator[list[Series]]:
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


# -- in processes that never outlive their parent --------------------------------------

Spec = TypeVar("Spec")
Result = TypeVar("Result")


def run_all(specs: Sequence[Spec], jobs: int, do: Callable[[Spec], Result]) -> Generator[Result]:
    """Do the runs with ``jobs`` processes; each result comes as its run ends.

    Whoever stops listening (an error, Ctrl-C, ``close()``) ends the processes at once.
    Raises `EngineError` when one of them dies of itself.
    """
    jobs = min(jobs, len(specs))
    if jobs <= 1:
        yield from map(do, specs)
        return
    with _pool(jobs) as pool:
        with interrupts_blocked():  # processes start as the first task comes
            pending = [pool.submit(do, spec) for spec in specs]
        for future in as_completed(pending):
            yield future.result()


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    # Not fork: whoever shows the progress has threads.
    context = multiprocessing.get_context("spawn")
    # The processes watch this pipe. It closes when we say so, and when we are killed.
    watched, held_open = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _become_worker, (watched,))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise EngineError(
            "a process of the simulation died (out of memory?); try fewer --jobs"
        ) from error
    except BaseException:
        held_open.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        held_open.close()
        watched.close()


def _become_worker(parent: connection.Connection) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: connection.Connection) -> None:
    connection.wait([parent])
    os._exit(1)
