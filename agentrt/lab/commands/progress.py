"""Functions that do simulated runs in several processes, and print the progress.

If a signal ends the runs early, the results of finished runs are kept. A run is described by plain
values, its *spec*. The spec is sent to another process, and is the key of the run's result.
"""

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
from functools import partial
from multiprocessing import connection
from types import FrameType
from typing import Any, NoReturn, TypeVar

from agentrt.cli.faults import StoppedError
from agentrt.cli.signals import Interrupts, end_now, taken
from agentrt.cli.streams import say
from agentrt.errors import EngineError
from agentrt.executors.vllm.processes import interrupts_blocked
from agentrt.lab.reports.compare import Series, cells
from agentrt.lab.runs.grid import RunSpec, do

_SAID_EVERY_S = 10.0
Spec = TypeVar("Spec")
Result = TypeVar("Result")


def do_all(
    specs: Sequence[Spec], jobs: int | None, do: Callable[[Spec], Result]
) -> tuple[dict[Spec, Result], StoppedError | None]:
    """Do all runs in ``jobs`` processes, by default one per core.

    Return the results of the finished runs in the order of ``specs``, and the error of the signal
    that ended the runs early, or None.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    done: dict[Spec, Result] = {}
    meter = Meter(len(specs))
    signals = _Raise()
    stop: StoppedError | None = None
    try:
        with taken(signals), closing(run_all(specs, jobs, partial(_with_spec, do))) as results:
            for spec, result in results:
                done[spec] = result
                meter.now(len(done))
                signals.check()
    # A signal during an import, such as vLLM's, may be ignored there, or raise another error later.
    except BaseException:
        if signals.stop is None:
            raise
        stop = _stopped(signals.stop, len(done), len(specs))
    return {spec: done[spec] for spec in specs if spec in done}, stop


def _with_spec(do: Callable[[Spec], Result], spec: Spec) -> tuple[Spec, Result]:
    return spec, do(spec)


@contextmanager
def finished(
    specs: Sequence[Spec], jobs: int | None, do: Callable[[Spec], Result]
) -> Iterator[dict[Spec, Result]]:
    """Do all runs. Yield the results of the finished runs, which the ``with`` block reports. If a
    signal ended the runs early, its error is raised after the block.
    """
    results, stop = do_all(specs, jobs, do)
    yield results
    if stop is not None:
        raise stop


def do_on_engines(
    work: Coroutine[Any, Any, object], results: Sized, runs: int
) -> StoppedError | None:
    """Do the ``work`` of all ``runs`` on real engines.

    Return the error of the signal that ended the work early, or None. The error names the number of
    ``results`` so far.
    """
    try:
        Interrupts(say).run(work)
    except StoppedError as stop:
        return _stopped(stop, len(results), runs)
    return None


def _stopped(stop: StoppedError, done: int, runs: int) -> StoppedError:
    return StoppedError(stop.code - 128, f"{stop}; {done} of {runs} runs were finished")


@contextmanager
def compared(specs: Sequence[RunSpec], jobs: int | None, baseline: str) -> Iterator[list[Series]]:
    """Do the runs of a grid. Yield the cells of their comparison, which the ``with`` block
    prints.
    """
    with finished(specs, jobs, do) as results:
        settings = list(dict.fromkeys(spec.setting for spec in specs))
        names = list(dict.fromkeys(spec.contender.name for spec in specs))
        yield cells(results.values(), settings, names, baseline)


class _Raise:
    """A signal handler. The first signal raises `KeyboardInterrupt`, so that processes end and
    files are closed. The second signal ends this process at once.

    Code that expects an `Exception` does not catch a `KeyboardInterrupt`. ``stop`` is the error of
    the first signal, or None.
    """

    def __init__(self) -> None:
        self.stop: StoppedError | None = None
        self._first = 0

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if self.stop is not None:
            end_now(self._first, frame)
        self._first = number
        name = "interrupted" if number == signal.SIGINT else signal.Signals(number).name
        self.stop = StoppedError(number, name)
        raise KeyboardInterrupt(name)

    def check(self) -> None:
        """Raise the error of the first signal, if there was one."""
        if self.stop is not None:
            raise self.stop


class Meter:
    """A progress display, which prints to stderr how many runs (or other units, ``of``) are done,
    and the estimated remaining time.
    """

    def __init__(self, runs: int, of: str = "runs") -> None:
        self._runs, self._of = runs, of
        self._began = self._said = time.monotonic()

    def now(self, done: int, message: str = "") -> None:
        """Update the number of finished runs. The number is printed at most every ten seconds; with
        a ``message`` about the next run, it is printed at once.
        """
        now = time.monotonic()
        if not message and now - self._said < _SAID_EVERY_S:
            return
        self._said = now
        each = (now - self._began) / max(1, done)
        left = f", about {each * (self._runs - done):.0f} s left" if done else ""
        say(f"{done} of {self._runs} {self._of}{left}{': ' if message else ''}{message}")


# -- in processes that never outlive their parent --------------------------------------


def run_all(specs: Sequence[Spec], jobs: int, do: Callable[[Spec], Result]) -> Generator[Result]:
    """Do the runs in ``jobs`` processes, and yield each result as its run ends. A single run, or a
    single job, runs in this process.

    If the generator ends early, by an error, Ctrl-C or ``close()``, the processes end at once.
    Raises `EngineError` if a process dies unexpectedly.
    """
    jobs = min(jobs, len(specs))
    if jobs <= 1:
        yield from map(do, specs)
        return
    with process_pool(jobs) as pool:
        with interrupts_blocked():  # the first submitted tasks start the processes
            pending = [pool.submit(do, spec) for spec in specs]
        for future in as_completed(pending):
            yield future.result()


@contextmanager
def process_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of ``jobs`` processes, which end with the ``with`` block or with this process.

    If a process dies unexpectedly, the block gets `BrokenProcessPool`, and the ``with`` statement
    raises `EngineError` in its place.
    """
    # Do not use fork, because this process has threads.
    context = multiprocessing.get_context("spawn")
    # The processes end when this pipe is closed, by this code or because this process was killed.
    watched, held_open = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _become_worker, (watched,))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise EngineError(
            "a process of the simulation died, perhaps because memory ran out; try fewer --jobs"
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
