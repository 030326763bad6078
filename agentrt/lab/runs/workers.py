"""Does many simulated runs at once, in processes that never outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from typing import TypeVar

from agentrt.errors import EngineError
from agentrt.executors.vllm.processes import interrupts_blocked

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
