"""The queue of runs that have not ended: which wait, which run, and which is next.

A thread has one running run at a time; its others wait, in the order in which they came. All of
them are in the database too: a server that starts resumes those that have not ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from sqlalchemy import Row

from agentrt import tracking
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.runs import NewRun, RunRecord, record_of
from agentrt.serving.langgraph.outages import READER
from agentrt.serving.langgraph.responses import later
from agentrt.serving.langgraph.runs.execution import Execution
from agentrt.serving.langgraph.runs.stream_responses import OnLeave
from agentrt.serving.langgraph.runs.streams import Action, EventLog, LiveRun
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.tenants import BusyError
from agentrt.steady import EARLY_S

MAX_RUNS = 10_000
"""How many runs may wait or run in one server; more are refused with 429."""
MAX_RUNNING = 512
"""How many run at once. The engine decides whose call waits; this bounds memory."""
_FULL_RETRY_S = 1.0
_MAX_UNREAD = 256
"""How many runs of a thread may begin while a listener reads one; it misses further ones."""

_log = logging.getLogger(__name__)


class RunQueue:
    """All live runs of a server."""

    def __init__(self, state: TenantState) -> None:
        self._state = state
        self._clock = state.storage.database.clock
        self._waiting: dict[str, LiveRun] = {}
        self._running: dict[str, LiveRun] = {}  # by thread
        self._live: dict[str, LiveRun] = {}
        self._entering: Counter[str] = Counter()  # by tenant
        self._listeners: defaultdict[str, list[asyncio.Queue[LiveRun | None]]] = defaultdict(list)
        self._open = True

    @contextmanager
    def reserve(self, tenant: str, most: int, runs: int = 1) -> Iterator[None]:
        """Reserve places for new runs of ``tenant`` until the block ends.

        Raises 429 if the queue is full, and `BusyError` if the tenant would have more than
        ``most``.
        """
        if len(self._live) + self._entering.total() + runs > MAX_RUNS:
            raise later(429, f"{MAX_RUNS} runs wait or run already; try again later")
        if self._count(tenant) + runs > most:
            raise BusyError(f"tenant {tenant!r} has {most} live programs; end some", _FULL_RETRY_S)
        entering = Counter({tenant: runs})
        self._entering += entering
        try:
            yield
        finally:
            self._entering -= entering  # drops tenants at zero

    async def enter(self, new: NewRun, only: Filter | None) -> tuple[Row[Any], LiveRun]:
        """Store a new run and queue it, after stopping the thread's other runs if its multitask
        strategy is ``interrupt`` or ``rollback``. Its thread must pass the filter ``only``.

        Raises as `Runs.enter` does.
        """
        row, others = await self._state.runs.enter(new, only)
        strategy: Any = new.columns["multitask_strategy"]
        for other in others if strategy in ("interrupt", "rollback") else ():
            if (live := self.get(other)) is not None:
                self.cancel(live, strategy)
        live = self._add(record_of(row))
        self._dispatch()
        return row, live

    async def resume(self) -> None:
        """Queue all runs that the last server left."""
        for record in await self._state.runs.active():
            self._add(record)
        self._dispatch()

    def _add(self, record: RunRecord) -> LiveRun:
        resumable = bool(record.kwargs.get("stream_resumable"))
        log = EventLog(record.run_id, self._state.storage.database, resumable=resumable)
        live = LiveRun(record, log, _context())
        self._live[record.run_id] = self._waiting[record.run_id] = live
        if (delay := record.start_at - self._clock.now()) > 0:
            self._clock.call_later(delay, self._dispatch)
        return live

    def get(self, run_id: str) -> LiveRun | None:
        """The run, if it has not ended."""
        return self._live.get(run_id)

    def is_running(self, thread: str) -> bool:
        """Whether the thread has a running run."""
        return thread in self._running

    def cancel(self, live: LiveRun, action: Action) -> bool:
        """Stop a run. Whether it was still waiting: then it ends at once, and can be waited for."""
        live.stop(action)
        if self._waiting.pop(live.record.run_id, None) is None:
            return False
        self._start(live)
        return True

    def canceller(self, live: LiveRun | None, wanted: bool) -> OnLeave:
        """What is called when a client leaves: if ``wanted``, it cancels the run."""

        def on_leave() -> None:
            if wanted and live is not None and not live.done.is_set():
                self.cancel(live, "interrupt")

        return on_leave

    async def stop_all(self, run_ids: Iterable[str], action: Action) -> None:
        """Stop these runs as far as they are live, and wait for their ends.

        Raises the database's error where that cannot store one now.
        """
        stopped = [live for run_id in run_ids if (live := self.get(run_id)) is not None]
        for live in stopped:
            self.cancel(live, action)
        for live in stopped:
            await live.ended()

    @contextmanager
    def listening(self, thread: str) -> Iterator[asyncio.Queue[LiveRun | None]]:
        """The thread's runs, as they begin; None once the server stops."""
        queue: asyncio.Queue[LiveRun | None] = asyncio.Queue(_MAX_UNREAD)
        self._listeners[thread].append(queue)
        try:
            yield queue
        finally:
            self._listeners[thread].remove(queue)
            if not self._listeners[thread]:
                del self._listeners[thread]

    def end_listening(self) -> None:
        """Tell all who listen that the server stops."""
        for queues in self._listeners.values():
            for queue in queues:
                if not queue.full():
                    queue.put_nowait(None)

    def live_in(self, thread: str) -> list[str]:
        """The ids of the thread's live runs."""
        return [key for key, live in self._live.items() if live.record.thread_id == thread]

    async def close(self) -> None:
        """Stop all runs; the next server resumes them."""
        self._open = False
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for live in list(self._live.values()):
            live.stop("shutdown")
        if tasks:
            await asyncio.wait(tasks)
        for live in list(self._live.values()):
            self._remove(live)

    def _count(self, tenant: str) -> int:
        live = sum(one.record.tenant == tenant for one in self._live.values())
        return live + self._entering[tenant]

    def _dispatch(self) -> None:
        """Start what may run now: in each thread, the first run that is due."""
        now = self._clock.now() + EARLY_S
        for run_id, live in list(self._waiting.items()):
            if not self._open or len(self._running) >= MAX_RUNNING:
                return
            thread = live.record.thread_id
            if thread not in self._running and live.record.start_at <= now:
                del self._waiting[run_id]
                self._running[thread] = live
                self._start(live)

    def _start(self, live: LiveRun) -> None:
        execution = Execution(live, self._state)
        with tracking.outside():
            live.task = asyncio.create_task(
                execution.run(), name=live.record.run_id, context=live.context
            )
        live.task.add_done_callback(partial(self._ended, live))
        for queue in self._listeners.get(live.record.thread_id, ()):
            if not queue.full():
                queue.put_nowait(live)

    def _ended(self, live: LiveRun, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug; who cancels or deletes the run ends it, else the next server
            run_id = live.record.run_id
            _log.error("run %s: its end was not stored, or not clean", run_id, exc_info=error)
        self._remove(live)
        self._dispatch()

    def _remove(self, live: LiveRun) -> None:
        thread = live.record.thread_id
        if self._running.get(thread) is live:
            del self._running[thread]
        self._waiting.pop(live.record.run_id, None)
        self._live.pop(live.record.run_id, None)
        live.end()


def _context() -> Context:
    """That of who asks for a run, such as a trace, outside any program. What the run reads of the
    database, the server reads.
    """
    with tracking.outside():
        context = copy_context()
    context.run(READER.set, None)
    return context


@asynccontextmanager
async def open_queue(state: TenantState) -> AsyncIterator[RunQueue]:
    """The queue, with all runs that the last server left."""
    queue = RunQueue(state)
    await queue.resume()
    try:
        yield queue
    finally:
        await queue.close()
