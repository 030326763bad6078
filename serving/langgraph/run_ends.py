"""Stores the ends of runs, as often as it takes: a full disk or a database that is away costs
time, and no run its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import sqlalchemy as sa

from agentrt.serving.background import Background
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.responses import encode, error_json
from agentrt.serving.langgraph.streams import LiveRun
from agentrt.serving.langgraph.tables import threads
from agentrt.serving.langgraph.tenant_state import TenantState

CANCELLED = {"error": "UserInterrupt", "message": "the run was cancelled"}
CANCEL_REASON = "the client cancelled it"
FIRST_REST_S = 0.5
_LONGEST_REST_S = 10.0
_WORK = "ends of runs"


async def store_end(
    live: LiveRun, background: Background, end: Callable[[], Awaitable[None]]
) -> None:
    """Do ``end`` again and again while the database is away, at once when the run is cancelled.

    Gives up when the server stops: the next one resumes the run. Raises what is no outage.
    """
    rest_s = FIRST_REST_S
    while live.action != "shutdown":
        try:
            await end()
        except Exception as error:
            if not is_outage(error):
                raise
            background.failed(_WORK, error)
            live.cannot_end(error)
            if live.closing:
                return
        else:
            background.went_well(_WORK)
            return
        await _rest(live, rest_s)
        rest_s = min(_LONGEST_REST_S, 2 * rest_s)


async def _rest(live: LiveRun, seconds: float) -> None:
    """Wait before the next try, until the run is stopped at most."""
    live.rest = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await live.rest.wait()
    live.rest = None


async def end_without_graph(
    state: TenantState,
    run_id: str,
    thread_id: str,
    error: Exception | None = None,
    *more: sa.Executable,
) -> bytes:
    """Store an end that needs nothing of the run's graph, with ``more``, and return its result.
    Without an ``error`` the run was cancelled.
    """
    if error is not None:
        fault = error_json(error)
        result = encode({"__error__": fault})
        status, reason = "error", None
    else:
        fault, status, reason = CANCELLED, "interrupted", CANCEL_REASON
        known = sa.select(threads.c["values"]).where(threads.c.thread_id == thread_id)
        row = await state.storage.database.first(known)
        result = encode((row and row[0]) or {})
    end = state.runs.end(run_id, status, result, reason)
    await state.threads.update_state(thread_id, {"status": status, "error": fault}, end, *more)
    return result
