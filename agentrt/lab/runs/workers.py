"""Does many simulated runs at once, in processes that never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

from agentrt.errors import EngineError
from agentrt.executors.vllm.processes import interrupts_blocked
from agentrt.lab.runs.grid import RunResult, RunSpec, do

Ticker = Callable[[int], None]
"""Is told how many more programs have ended, over all runs."""

_LOOK_EVERY_S = 0.2


def run_all(specs: Sequence[RunSpec], jobs: int, ticker: Ticker) -> Generator[RunResult]:
    """Do the runs with ``jobs`` processes; each result comes as its run ends.

    Whoever stops listening (an error, Ctrl-C, ``close()``) ends the processes at once.
    Raises `EngineError` when one of them dies of itself.
    """
    jobs = min(jobs, len(specs))
    if jobs <= 1:
        for spec in specs:
            yield do(spec, _Deltas(ticker))
        return
    with _pool(jobs) as (pool, ended):
        with interrupts_blocked():  # processes start as the first task comes
            pending = {pool.submit(_work, spec) for spec in specs}
        told = 0
        while pending:
            done, pending = wait(pending, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            now = ended.value
            ticker(now - told)
            told = now
            for future in done:
                yield future.result()


@contextmanager
def _pool(jobs: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Processes, and the number of programs that have ended in them."""
    # Not fork: whoever shows the progress has threads.
    context = multiprocessing.get_context("spawn")
    ended = context.Value("q", 0)
    # The processes watch this pipe. It closes when we say so, and when we are killed.
    watched, held_open = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _become_worker, (ended, watched))
    try:
        yield pool, ended
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


class _Deltas:
    """Turns the number of programs ended so far into how many more have ended."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._told = 0

    def __call__(self, ended: int) -> None:
        if ended > self._told:
            self._ticker(ended - self._told)
            self._told = ended


# -- in the processes ------------------------------------------------------------------

_ended: Any = None  # how many programs have ended, shared by all


def _become_worker(ended: Any, parent: connection.Connection) -> None:
    global _ended  # noqa: PLW0603  # the one thing that a pool can hand to all its tasks
    _ended = ended
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: connection.Connection) -> None:
    connection.wait([parent])
    os._exit(1)


def _work(spec: RunSpec) -> RunResult:
    return do(spec, _Deltas(_count))


def _count(more: int) -> None:
    with _ended.get_lock():
        _ended.value += more
