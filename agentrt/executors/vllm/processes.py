"""The processes that an engine brings along: shielding them from Ctrl-C, and ending them.

Only our own descendants are ever signalled.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
# Python's own tracker of shared memory ends by itself, after everyone who uses it.
_TRACKER = "multiprocessing.resource_tracker"
_NICER = 10
"""How much nicer a thread gets that works beside others: with 10, a tenth of their share."""


async def apart(work: Callable[..., T], *args: Any) -> T:
    """Run ``work`` in a thread of its own.

    Not in the event loop's pool: threads of programs that wait for an engine may fill that,
    and the engine would then wait for them.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="agentrt-engine")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
    finally:
        pool.shutdown(wait=False)  # whoever is cancelled does not wait for the thread


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and so in every process that it starts meanwhile.

    Ctrl-C reaches the whole process group, a child that still imports vLLM included. Only
    the parent may decide what stops; a signal mask is what a new program inherits.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no garbage meanwhile: a quarter of the time that vLLM's import takes finds none."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_ALONE = threading.local()
"""Whether processes that this thread starts leave the script out."""


@contextlib.contextmanager
def script_left_out(config: object) -> Iterator[None]:
    """Processes that this thread starts do not run the program's script again.

    Multiprocessing would have each do so, and a script may start engines as it goes, since users
    of a chat model write no ``if __name__``. Where ``config``, which they are handed, has something
    of the script's, they run it.
    """
    if not hasattr(spawn.get_preparation_data, "ordinary"):
        ordinary = spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            told = ordinary(name)
            alone = getattr(_ALONE, "now", False)
            return {key: told[key] for key in told if not (alone and key.startswith("init_main_"))}

        prepared.ordinary = ordinary  # type: ignore[attr-defined]  # marks ours
        spawn.get_preparation_data = prepared
    _ALONE.now = b"__main__" not in bytes(ForkingPickler.dumps(config))
    try:
        yield
    finally:
        _ALONE.now = False


def die_with_parent() -> None:
    """In a child made by multiprocessing: end at once when the parent dies, however it did."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def descendants(root: int | None = None) -> list[int]:
    """The ids of the live processes below ``root`` (this process by default), parents first."""
    try:
        found = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [one.pid for one in found if is_live(one.pid) and not _is_tracker(one)]


def is_live(pid: int) -> bool:
    """Whether the process is there; zombies are dead."""
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
    """Processor time that ``root`` and what is below it have used so far (seconds)."""
    return round(sum(map(_cpu_seconds, [root, *descendants(root)])), 2)


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it ended meanwhile
        return 0.0
    return float(times.user + times.system)


def end_descendants(grace_s: float = 0.0) -> int:
    """End every process below this one, and return how many there were.

    They get ``grace_s`` seconds from SIGTERM to SIGKILL, or SIGKILL at once with 0.
    """
    first = descendants()
    if first and grace_s > 0:
        _signal(first, signal.SIGTERM)
        _wait_until_gone(grace_s)
    # What is left may start others until it is dead itself: look again.
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
    """Have this thread, and those that it starts, work when the process's first leaves it time."""
    first = os.getpriority(os.PRIO_PROCESS, os.getpid())  # this thread may have been started so
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), first + _NICER)


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches the whole process group; only the parent may decide what stops."""
    in_child = multiprocessing.parent_process() is not None
    if in_child and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def keep_heap_frozen() -> None:
    """In a child made by multiprocessing: let no one thaw what was set aside from collections.

    vLLM does before it ends, for engines whose process lives on. Here the system takes all back
    at once, and to search half a million objects for garbage first takes seconds.
    """
    if multiprocessing.parent_process() is not None:
        gc.unfreeze = lambda: None
