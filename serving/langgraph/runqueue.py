"""The runs that have not ended: which wait, which run, and who starts next.

A thread has one running run at a time; its others wait, in the order in which they came. What is
here is in the database, too: a server that starts takes up all that has not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

from fastapi import HTTPException

from agentrt import tracking
from agentrt.serving.langgraph.eventlog import EventLog
from agentrt.serving.langgraph.execution import Action, Execution, Live, Services
from agentrt.serving.langgraph.listeners import Listeners
from agentrt.serving.langgraph.runs import RunRecord
from agentrt.serving.tenants import BusyError

MAX_RUNS = 10_000
"""So many runs may wait or run in one server; more are refused with 429."""
MAX_RUNNING = 512
"""So many run at once. The engine decides whose call waits; this bounds memory."""
_RETRY_S = 5
_FULL_RETRY_S = 1.0

_log = logging.getLogger(__name__)


class RunQueue:
    """All live runs of a server."""

    def __init__(self, services: Services) -> None:
        self.listeners = Listeners()
        self._with = services
        self._waiting: dict[str, Live] = {}
        self._running: dict[str, Live] = {}  # by thread
        self._live: dict[str, Live] = {}
        self._entering: Counter[str] = Counter()  # by tenant
        self._open = True

    @contextlib.contextmanager
    def room_for(self, tenant: str, most: int, runs: int = 1) -> Iterator[None]:
        """Meanwhile that many runs of ``tenant`` may be entered.

        Raises 429 if there is no room for them, and `BusyError` if the tenant would have more
        than ``most``.
        """
        if len(self._live) + self._entering.total() + runs > MAX_RUNS:
            raise HTTPException(
                429,
                f"{MAX_RUNS} runs wait or run already; try again later",
                {"Retry-After": str(_RETRY_S)},
            )
        if self._count(tenant) + runs > most:
            raise BusyError(f"tenant {tenant!r} has {most} live programs; end some", _FULL_RETRY_S)
        entering = Counter({tenant: runs})
        self._entering += entering
        try:
            yield
        finally:
            self._entering -= entering  # a tenant without any is forgotten

    def enter(self, record: RunRecord) -> Live:
        """A run that is in the database, pending. It starts when its turn comes."""
        resumable = bool(record.kwargs.get("stream_resumable"))
        log = EventLog(record.run_id, self._with.storage.database, resumable=resumable)
        live = Live(record, log)
        self._live[record.run_id] = self._waiting[record.run_id] = live
        delay = record.start_at - time.time()
        if delay > 0:
            asyncio.get_running_loop().call_later(delay, self._dispatch)
        self._dispatch()
        return live

    def get(self, run_id: str) -> Live | None:
        """The run, if it has not ended."""
        return self._live.get(run_id)

    def running_in(self, thread: str) -> bool:
        """Whether a run of the thread is under way."""
        return thread in self._running

    def cancel(self, live: Live, action: Action) -> None:
        """Stop a run. One that waits has nothing to stop: it ends at once."""
        live.stop(action)
        if self._waiting.pop(live.record.run_id, None) is not None:
            self._start(live)

    async def stop_all(self, run_ids: Iterable[str], action: Action) -> None:
        """Stop those of these runs that are live, and wait for their ends."""
        stopped = [live for run_id in run_ids if (live := self.get(run_id)) is not None]
        for live in stopped:
            self.cancel(live, action)
        for live in stopped:
            await live.done.wait()

    def live_in(self, thread: str) -> list[str]:
        """The ids of the thread's live runs."""
        return [key for key, live in self._live.items() if live.record.thread_id == thread]

    async def close(self) -> None:
        """Stop all that runs, to be gone on with when a server starts again."""
        self._open = False
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for live in list(self._live.values()):
            live.stop("shutdown")
        if tasks:
            await asyncio.wait(tasks)
        for live in list(self._live.values()):
            self._over(live)

    # -- inside ------------------------------------------------------------------------

    def _count(self, tenant: str) -> int:
        live = sum(one.record.tenant == tenant for one in self._live.values())
        return live + self._entering[tenant]

    def _dispatch(self) -> None:
        """Start what may run now: in each thread, the first whose time has come."""
        now = time.time()
        for run_id, live in list(self._waiting.items()):
            if not self._open or len(self._running) >= MAX_RUNNING:
                return
            thread = live.record.thread_id
            if thread not in self._running and live.record.start_at <= now:
                del self._waiting[run_id]
                self._running[thread] = live
                self._start(live)

    def _start(self, live: Live) -> None:
        with tracking.outside():
            live.task = asyncio.create_task(self._carry_out(live), name=live.record.run_id)
        self.listeners.began(live)

    async def _carry_out(self, live: Live) -> None:
        try:
            await Execution(live, self._with).run()
        except Exception:  # the database: the run is taken up again at the next start
            _log.exception("run %s: its end could not be kept", live.record.run_id)
        finally:
            self._over(live)
            self._dispatch()

    def _over(self, live: Live) -> None:
        thread = live.record.thread_id
        if self._running.get(thread) is live:
            del self._running[thread]
        self._waiting.pop(live.record.run_id, None)
        self._live.pop(live.record.run_id, None)
        live.log.close()
        live.done.set()


@asynccontextmanager
async def open_queue(services: Services) -> AsyncIterator[RunQueue]:
    """The queue, with all runs in it that the last server left."""
    queue = RunQueue(services)
    for record in await services.runs.active():
        queue.enter(record)
    try:
        yield queue
    finally:
        await queue.close()
