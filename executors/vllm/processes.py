"""The processes that an engine brings along: shielding them from Ctrl-C, and ending them.

Only our own descendants are ever signalled. Linux: they are read from ``/proc``.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_PROC = Path("/proc")
# Python's own tracker of shared memory ends by itself, after everyone who uses it.
_TRACKER = b"multiprocessing.resource_tracker"


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
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = [os.getpid() if root is None else root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return [pid for pid in found[1:] if not _is_tracker(pid)]


def cpu_seconds(root: int) -> float:
    """Processor time that ``root`` and what is below it have used so far (seconds)."""
    return sum(map(_cpu_ticks, [root, *descendants(root)])) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> int:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


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


def _parents() -> Iterator[tuple[int, int]]:
    """(process, parent) of every live process; zombies are dead."""
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The name, in parentheses, may hold anything; what follows is fixed.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            yield int(entry.name), int(parent)


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches the whole process group; only the parent may decide what stops."""
    in_child = multiprocessing.parent_process() is not None
    if in_child and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
