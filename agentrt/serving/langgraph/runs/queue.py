"""The queue of unfinished runs: which runs wait, which runs are running, and which run starts next.

A thread has at most one running run; its other runs wait in the order of their arrival. All runs
are stored in the database, and a server resumes the unfinished runs when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from langgraph_sdk.schema import CancelAction
from sqlalchemy import Row

from agentrt import tracking
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.runs import NewRun, RunRecord, record_of
from agentrt.serving.langgraph.outages import READER, first_line, is_outage
from agentrt.serving.langgraph.responses import later
from agentrt.serving.langgraph.runs.execution import Execution
from agentrt.serving.langgraph.runs.stream_responses import OnLeave
from agentrt.serving.langgraph.runs.streams import Action, EventLog, LiveRun
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.tenants import BusyError
from agentrt.steady import EARLY_S, Alarm

MAX_RUNS = 10_000
"""Maximum number of unfinished runs of a server; further runs are refused with 429."""
MAX_RUNNING = 512
"""Maximum number of runs that run at the same time. The limit bounds memory; the engine decides
which calls wait.
"""
SETTLE_S = 5.0
"""Maximum time in seconds that a new run waits to see whether a running run asks a question, as on
LangGraph's own server.
"""
_FULL_RETRY_S = 1.0
_MAX_UNREAD = 256
"""Maximum number of started runs that wait for a listener of their thread. The listener misses
further runs.
"""

_log = logging.getLogger(__name__)


class RunQueue:
    """The live runs of a server: runs that wait, and runs that run."""

    def __init__(self, state: TenantState) -> None:
        self._state = state
        self._clock = state.storage.database.clock
        self._waiting: dict[str, LiveRun] = {}
        self._waiting_in: defaultdict[str, dict[str, LiveRun]] = defaultdict(dict)  # by thread
        self._start_times: dict[str, Alarm] = {}  # of waiting runs, by the runs' ids
        self._running: dict[str, LiveRun] = {}  # by thread
        self._live: dict[str, LiveRun] = {}
        self._live_of: Counter[str] = Counter()  # by tenant
        self._entering: Counter[str] = Counter()  # by tenant
        self._listeners: defaultdict[str, list[asyncio.Queue[LiveRun | None]]] = defaultdict(list)
        self._holding = WeakValueDictionary[str, asyncio.Lock]()  # by thread
        self._cancelling: set[asyncio.Task[list[LiveRun]]] = set()  # for clients that have left
        self._open = True

    @contextmanager
    def reserve(self, tenant: str, most: int, runs: int = 1) -> Iterator[None]:
        """Reserve places for ``runs`` new runs of ``tenant`` until the ``with`` block ends.

        Raises 429 if the queue is full, and `BusyError` if the tenant would have more than ``most``
        live runs.
        """
        if len(self._live) + self._entering.total() + runs > MAX_RUNS:
            raise later(429, f"the server has {MAX_RUNS} unfinished runs already; try again later")
        if self._count(tenant) + runs > most:
            raise BusyError(
                f"tenant {tenant!r} has {self._count(tenant)} live programs, and may have at most "
                f"{most}; end a program first",
                _FULL_RETRY_S,
            )
        entering = Counter({tenant: runs})
        self._entering += entering
        try:
            yield
        finally:
            self._entering -= entering  # drops tenants at zero

    async def enter(self, *entries: tuple[NewRun, Filter | None]) -> list[tuple[Row[Any], LiveRun]]:
        """Store new runs, and queue them: all of them or none. If the multitask strategy of a new
        run is ``interrupt`` or ``rollback``, stop the thread's other active runs. The thread of
        each run must pass its filter.

        Raises as `Runs.enter` does.
        """
        stored, queued = await self._state.runs.enter_all(entries), []
        for (new, _), (row, others) in zip(entries, stored, strict=True):
            strategy: Any = new.columns["multitask_strategy"]
            for other in others if strategy in ("interrupt", "rollback") else ():
                if (active := self.get(other)) is not None:
                    self.cancel(active, strategy)
            live = self._add(record_of(row))
            self._dispatch(live.record.thread_id)
            queued.append((row, live))
        return queued

    async def resume(self) -> None:
        """Queue the unfinished runs in the database, and start the runs that may run.

        If a later run of a thread has the multitask strategy ``interrupt`` or ``rollback``, the
        last server stopped before it had stopped the earlier runs of the thread. These earlier runs
        are stopped now, and so are runs that a client had cancelled. A run that had already begun
        is stopped only when its turn in the thread comes, because a rollback must end before the
        thread's next run.
        """
        records = await self._state.runs.active()
        # A run that has begun continues before an earlier run that waited for its start time.
        for record in sorted(records, key=lambda record: record.attempt == 0):
            self._add(record)
        stopping: dict[str, Any] = {}  # how later runs of the thread stop earlier runs, by thread
        for record in reversed(records):
            live = self._live[record.run_id]
            actions = (stopping.get(record.thread_id), record.stopped_by)
            for action in filter(None, actions):
                if record.attempt:
                    live.stop(action)
                else:
                    self.cancel(live, action)
            if record.multitask_strategy == "rollback":
                stopping[record.thread_id] = "rollback"
            elif record.multitask_strategy == "interrupt":
                stopping.setdefault(record.thread_id, "interrupt")
        self._dispatch()

    def _add(self, record: RunRecord) -> LiveRun:
        resumable = bool(record.kwargs.get("stream_resumable"))
        log = EventLog(record.run_id, self._state.storage.database, resumable=resumable)
        live = LiveRun(record, log, _context())
        self._live[record.run_id] = self._waiting[record.run_id] = live
        self._waiting_in[record.thread_id][record.run_id] = live
        self._live_of[record.tenant] += 1
        if (delay := record.start_at - self._clock.now()) > 0:
            start = partial(self._dispatch, record.thread_id)
            self._start_times[record.run_id] = self._clock.call_later(delay, start)
        return live

    def get(self, run_id: str) -> LiveRun | None:
        """Return a live run; None if the run has ended or is unknown."""
        live = self._live.get(run_id)
        return None if live is None or live.over else live

    @asynccontextmanager
    async def holding(self, thread: str) -> AsyncIterator[None]:
        """Start no run of a thread until the ``with`` block ends, because the block reads or
        changes the thread's checkpoints. Blocks of the same thread run one after another.
        """
        try:
            async with self._holding.setdefault(thread, asyncio.Lock()):
                yield
        finally:
            self._dispatch(thread)

    def is_running(self, thread: str) -> bool:
        """Return whether a thread has a running run."""
        return thread in self._running

    async def settled(self, thread: str) -> bool:
        """Wait until the thread has no running run, but no longer than `SETTLE_S`. Return whether
        the thread then has no running run.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while (live := self._running.get(thread)) is not None:
                    await live.done.wait()
        return thread not in self._running

    def cancel(self, live: LiveRun, action: Action) -> bool:
        """Stop a run, and return whether it was still waiting. A run that was still waiting ends
        soon, and the caller may await its end.
        """
        live.stop(action)
        if not self._leave(live):
            return False
        self._start(live)
        return True

    async def cancel_for_client(
        self, live_runs: Iterable[LiveRun], action: CancelAction
    ) -> list[LiveRun]:
        """Stop runs as `cancel` does, and store that they are stopped, so that they do not go on if
        the server is killed before they have ended. Return the runs that were still waiting.

        While the database has an outage, the runs are stopped, but this is not stored.
        """
        waiting: list[LiveRun] = []
        running: list[str] = []
        for live in live_runs:
            if self.cancel(live, action):
                waiting.append(live)
            else:
                running.append(live.record.run_id)
        if running:
            try:
                await self._state.runs.cancelled(running, action)
            except Exception as error:  # the runs have been stopped in any case
                why = None if is_outage(error) else error
                text = first_line(error)
                _log.warning("a cancellation of runs could not be stored: %s", text, exc_info=why)
        return waiting

    def canceller(self, live: LiveRun | None, enabled: bool) -> OnLeave:
        """Return a callback for a client that disconnects. If ``enabled``, the callback cancels the
        run.
        """

        def on_leave() -> None:
            if enabled and live is not None and not live.done.is_set():
                with tracking.outside():
                    task = asyncio.create_task(self.cancel_for_client([live], "interrupt"))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

        return on_leave

    async def stop_all(self, run_ids: Iterable[str], action: Action) -> None:
        """Stop the live runs among ``run_ids``, and wait for their ends.

        Raises the database's error if the database cannot store an end now.
        """
        stopped = [live for run_id in run_ids if (live := self.get(run_id)) is not None]
        for live in stopped:
            self.cancel(live, action)
        for live in stopped:
            await live.ended()

    @contextmanager
    def listening(self, thread: str) -> Iterator[asyncio.Queue[LiveRun | None]]:
        """Yield a queue that gets each run of the thread as it starts, and None when the server
        stops. A queue that already has `_MAX_UNREAD` runs gets neither.
        """
        queue: asyncio.Queue[LiveRun | None] = asyncio.Queue(_MAX_UNREAD)
        self._listeners[thread].append(queue)
        try:
            yield queue
        finally:
            self._listeners[thread].remove(queue)
            if not self._listeners[thread]:
                del self._listeners[thread]

    def end_listening(self) -> None:
        """Tell the listeners that the server stops, except listeners whose queue is full."""
        for queues in self._listeners.values():
            for queue in queues:
                if not queue.full():
                    queue.put_nowait(None)

    def live_in(self, thread: str) -> list[str]:
        """Return the ids of the thread's live runs."""
        return [key for key, live in self._live.items() if live.record.thread_id == thread]

    async def close(self) -> None:
        """Stop all runs without storing their ends, so that the next server resumes them. For a run
        that has ended, but whose end could not be stored yet, storing it is tried once more.
        """
        self._open = False
        if self._cancelling:
            await asyncio.wait(self._cancelling)
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for live in list(self._live.values()):
            live.stop("shutdown")
        if tasks:
            await asyncio.wait(tasks)
        for live in list(self._live.values()):
            self._remove(live)

    def _count(self, tenant: str) -> int:
        return self._live_of[tenant] + self._entering[tenant]

    def _dispatch(self, changed: str | None = None) -> None:
        """Start the runs that may run now: in each thread without a running run, the first run
        whose start time has come. A thread that is held (`holding`) counts as running.

        ``changed`` is the only thread in which a run may have become able to start; None means any
        thread.
        """
        now = self._clock.now() + EARLY_S
        waiting = self._waiting if changed is None else self._waiting_in.get(changed, {})
        for live in list(waiting.values()):
            if not self._open or len(self._running) >= MAX_RUNNING:
                return
            thread = live.record.thread_id
            hold = self._holding.get(thread)
            is_busy = thread in self._running or (hold is not None and hold.locked())
            if changed is not None and is_busy:
                return
            if not is_busy and live.record.start_at <= now:
                self._leave(live)
                self._running[thread] = live
                self._start(live)

    def _leave(self, live: LiveRun) -> bool:
        """Remove a run from the waiting runs, and return whether it was waiting."""
        record = live.record
        if self._waiting.pop(record.run_id, None) is None:
            return False
        if (start_time := self._start_times.pop(record.run_id, None)) is not None:
            start_time.cancel()
        of_thread = self._waiting_in[record.thread_id]
        del of_thread[record.run_id]
        if not of_thread:
            del self._waiting_in[record.thread_id]
        return True

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
        if (
            error is not None
        ):  # a bug; a client can delete the run, and otherwise the next server resumes it
            run_id = live.record.run_id
            _log.error(
                "run %s: a bug kept the run's end from being stored or published",
                run_id,
                exc_info=error,
            )
        was_full = len(self._running) >= MAX_RUNNING  # then runs of other threads may wait, too
        self._remove(live)
        self._dispatch(None if was_full else live.record.thread_id)

    def _remove(self, live: LiveRun) -> None:
        record = live.record
        if self._running.get(record.thread_id) is live:
            del self._running[record.thread_id]
        self._leave(live)
        if self._live.pop(record.run_id, None) is not None:
            self._live_of[record.tenant] -= 1
            if not self._live_of[record.tenant]:
                del self._live_of[record.tenant]
        live.end()


def _context() -> Context:
    """Return a copy of the request's context (with its trace, for example) for a run's code. In
    this copy, the code is outside any program, and its database reads count as the server's own.
    """
    with tracking.outside():
        context = copy_context()
    context.run(READER.set, None)
    return context


@asynccontextmanager
async def open_queue(state: TenantState) -> AsyncIterator[RunQueue]:
    """Open the queue with the unfinished runs of the last server, and close it at the
    block's end.
    """
    queue = RunQueue(state)
    await queue.resume()
    try:
        yield queue
    finally:
        await queue.close()
