"""Processes and threads of an engine: protects them from Ctrl-C, ends them, and sets priorities.

Signals are sent only to this process and its descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, TypeVar

import psutil

T = TypeVar("T")
# Python's tracker of shared memory is left alone: it ends by itself after its users.
_TRACKER = "multiprocessing.resource_tracker"
_NICER = 10
"""Added to a thread's nice value to lower its priority. With 10, the thread gets a tenth of the CPU
time of a thread with normal priority.
"""
_LOOK_S = 5.0
"""Seconds between two looks at what the processes of a loading engine have done."""
_WORKING_S, _WORKING_B = 0.1, 1 << 20
"""CPU seconds, and bytes read and written, from which a loading engine counts as working. A process
that polls the lock of another process's download uses more CPU time within ten minutes.
"""


async def in_new_thread(work: Callable[..., T], *args: Any) -> T:
    """Run ``work(*args)`` in a new thread, and return its result.

    The event loop's own pool is not used: threads of programs that wait for an engine may fill it,
    and the engine would then wait for them.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="agentrt-engine")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
    finally:
        pool.shutdown(wait=False)  # after a cancellation, do not wait for the thread


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and so in every process that it starts in the ``with`` block.

    Ctrl-C reaches the whole process group, even a child that is still importing vLLM, but only the
    parent may decide what stops. A new process inherits the signal mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Turn garbage collection off in the ``with`` block.

    During the import of vLLM it would take a quarter of the time and find no garbage.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_ALONE = threading.local()
"""A value for each thread: ``now`` is true while the thread's new processes must not run the
script.
"""


@contextlib.contextmanager
def script_left_out(config: object) -> Iterator[None]:
    """Keep processes that this thread starts in the ``with`` block from running the main script
    again.

    Python's multiprocessing runs the main script in each new process. A script may start engines at
    its top level, since users of a chat model do not write ``if __name__ == "__main__"``. The
    script still runs if ``config``, which is sent to the processes, contains objects of the script.
    """
    if not hasattr(spawn.get_preparation_data, "ordinary"):
        ordinary = spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            data = ordinary(name)
            alone = getattr(_ALONE, "now", False)
            return {key: data[key] for key in data if not (alone and key.startswith("init_main_"))}

        # The attribute marks the function as replaced.
        prepared.ordinary = ordinary  # type: ignore[attr-defined]
        spawn.get_preparation_data = prepared
    _ALONE.now = b"__main__" not in bytes(ForkingPickler.dumps(config))
    try:
        yield
    finally:
        _ALONE.now = False


_STARTED = threading.local()
"""A value for each thread: ``pids`` is the list of `processes_noted`, if the thread is in it."""


@contextlib.contextmanager
def processes_noted(pids: list[int]) -> Iterator[None]:
    """Add the id of each process of multiprocessing that this thread starts in the ``with`` block
    to ``pids``.

    While an engine loads, vLLM does not tell the ids of its processes.
    """
    if not hasattr(BaseProcess.start, "ordinary"):
        ordinary = BaseProcess.start

        def start(self: BaseProcess) -> None:
            ordinary(self)
            noted = getattr(_STARTED, "pids", None)
            if noted is not None and self.pid is not None:
                noted.append(self.pid)

        # The attribute marks the function as replaced.
        start.ordinary = ordinary  # type: ignore[attr-defined]
        BaseProcess.start = start  # type: ignore[method-assign]  # processes have no hook for it
    _STARTED.pids = pids
    try:
        yield
    finally:
        _STARTED.pids = None


def die_with_parent() -> None:
    """Make this process, a child of multiprocessing, end at once when its parent ends or dies."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def descendants(root: int | None = None) -> list[int]:
    """Return the ids of the live descendants of ``root`` (by default this process), parents
    first. Python's tracker of shared memory is left out.
    """
    try:
        children = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children if is_live(child.pid) and not _is_tracker(child)]


def is_live(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(_TRACKER in word for word in process.cmdline())
    except psutil.Error:
        return False


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds that a process and its live descendants have used so far."""
    return round(sum(map(_cpu_seconds, [root, *descendants(root)])), 2)


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # the process has ended
        return 0.0
    return float(times.user + times.system)


class Activity(NamedTuple):
    """The work of processes so far: the CPU time in seconds, and the bytes read and written."""

    cpu_s: float
    io_bytes: int

    def is_more_than(self, before: Activity) -> bool:
        """Return whether more was done than threads do that only wait, such as vLLM's monitors."""
        return (
            self.cpu_s - before.cpu_s >= _WORKING_S or self.io_bytes - before.io_bytes >= _WORKING_B
        )


def activity_of(pids: Sequence[int]) -> Activity:
    """Return what processes and their live descendants have done so far."""
    family = [pid for root in pids for pid in (root, *descendants(root))]
    return Activity(sum(map(_cpu_seconds, family)), sum(map(_io_bytes, family)))


def _io_bytes(pid: int) -> int:
    try:
        io = psutil.Process(pid).io_counters()
    except (AttributeError, psutil.Error, OSError):
        return 0  # the process has ended, or the system does not tell (macOS lacks the method)
    # The first two also count what the page cache has, and the last what is read by page faults.
    return int(io.read_chars + io.write_chars + io.read_bytes)


async def stalled(
    pids: Sequence[int],
    limit_s: float,
    activity: Callable[[Sequence[int]], Activity] = activity_of,
) -> None:
    """Return when processes have done nothing for ``limit_s`` seconds. ``pids`` may grow meanwhile;
    as long as it is empty, no time counts.

    Time in which this process is suspended, too, does not count, for example after Ctrl-Z.
    """
    step_s = min(_LOOK_S, limit_s / 4)
    quiet_s, count, before = 0.0, 0, Activity(0.0, 0)
    while quiet_s < limit_s:
        await asyncio.sleep(step_s)
        now = activity(pids)
        # The sums fall when a process has ended, for example a compiler.
        has_ended = now.cpu_s < before.cpu_s or now.io_bytes < before.io_bytes
        if not pids or len(pids) != count or has_ended or now.is_more_than(before):
            quiet_s, count, before = 0.0, len(pids), now
        else:
            quiet_s += step_s


def kill(pids: Sequence[int]) -> None:
    """End processes and their descendants at once, even if they are suspended."""
    _signal([pid for root in pids for pid in (*descendants(root), root)], signal.SIGKILL)


def end_descendants(grace_s: float = 0.0) -> int:
    """End the `descendants` of this process, and return how many there were at first.

    They get SIGTERM, and SIGKILL after ``grace_s`` seconds; with 0 they get SIGKILL at once.
    """
    first = descendants()
    if first and grace_s > 0:
        _signal(first, signal.SIGTERM)
        _wait_until_gone(grace_s)
    # A process may start others until it is dead, so look again.
    deadline = time.monotonic() + 1.0
    while (left := descendants()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(0.01)
    return len(first)


def _wait_until_gone(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.02)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def leave_processor() -> None:
    """Lower the priority of this thread, and of threads that it starts, below the main thread's."""
    # The main thread's value, since this thread may have inherited a lowered priority.
    first = os.getpriority(os.PRIO_PROCESS, os.getpid())
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), first + _NICER)


def leave_interrupts_to_parent() -> None:
    """In a child process, ignore Ctrl-C.

    Ctrl-C reaches the whole process group, but only the parent may decide what stops.
    """
    in_child = multiprocessing.parent_process() is not None
    if in_child and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def keep_heap_frozen() -> None:
    """In a child process of multiprocessing, disable `gc.unfreeze`.

    vLLM calls `gc.unfreeze` at its shutdown, for engines whose process continues to run. Here the
    process ends, and a garbage collection of half a million objects before that would take seconds.
    """
    if multiprocessing.parent_process() is not None:
        gc.unfreeze = lambda: None
