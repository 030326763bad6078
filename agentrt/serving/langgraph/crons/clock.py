"""Starts the runs of crons in time.

A run is entered in the transaction that sets its cron's next time, so no time has two runs,
whenever the server is killed. Times that passed while it was down are one run.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

import sqlalchemy as sa
from langgraph_sdk import Auth

from agentrt.serving.langgraph.auth.hooks import Caller
from agentrt.serving.langgraph.crons.routes import CronBody, Crons, next_time
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.tables import crons, runs
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.tenants import BusyError

LOOK_S = 1.0
"""How often it is looked whether a cron is due; a run that found no room is tried again then."""
_NO_ROOM = (429, 503, 507)

_log = logging.getLogger(__name__)


class CronClock:
    """Starts what is due. A server has one, as a background task."""

    def __init__(
        self, crons: Crons, database: Database, starts: StartRoutes, auth: Auth | None
    ) -> None:
        self._crons = crons
        self._database = database
        self._starts = starts
        self._auth = auth

    async def look(self) -> None:
        """Start what is due now."""
        await self.start_due(self._crons.clock())

    async def start_due(self, now: float) -> bool:
        """Start a run of each cron that is due. False if there was no room for some."""
        started = [await self._start(key, now) for key in await self.due(now)]
        return all(started)

    async def due(self, now: float) -> list[str]:
        """The ids of those that are due, the longest first."""
        c = crons.c
        query = sa.select(c.cron_id).where(c.enabled, c.next_run_date <= now)
        return [row[0] for row in await self._database.rows(query.order_by(c.next_run_date))]

    async def find_due(self, key: str, now: float) -> sa.Row[Any] | None:
        """The cron, if it is due still."""
        c = crons.c
        where = (c.cron_id == key, c.enabled, c.next_run_date <= now)
        return await self._database.first(sa.select(crons).where(*where))

    async def _start(self, key: str, now: float) -> bool:
        row = await self.find_due(key, now)
        if row is None:
            return True
        claim = _claim(row, now)
        try:
            if await self._waits(row):
                await self._database.write(claim)
                return True
            body = CronBody.model_validate_json(row.payload)
            thread = None if row.thread_id is None else UUID(row.thread_id)
            # Hooks are asked as if whoever made the cron had started the run.
            caller = Caller.of_config(row.tenant, json.loads(row.user), self._auth)
            await self._starts.start(caller, thread, body.run(thread), claim=claim)
        except BusyError:
            return False
        except Exception as error:  # hooks and factories are the user's, and may raise anything
            if getattr(error, "status_code", None) in _NO_ROOM or is_outage(error):
                return False
            _log.warning("cron %s: a run was not started: %r", key, error)
            await self._database.write(claim)
        return True

    async def _waits(self, cron: sa.Row[Any]) -> bool:
        """Whether a run of the cron has not begun: it stands for later times, too, or they would
        pile up where its runs take longer than the time between them.
        """
        c = runs.c
        own = (c.tenant == cron.tenant, c.kwargs.contains(cron.cron_id, autoescape=True))
        return await self._database.count(runs, [c.status == "pending", *own]) > 0


def _claim(row: sa.Row[Any], now: float) -> sa.Update:
    """Set a cron's next time: whoever does it first starts the run."""
    following = None
    with suppress(ValueError, ZoneInfoNotFoundError):  # it is due no more, as by its last year
        following = next_time(row.schedule, row.timezone, now, row.end_time)
    c = crons.c
    this = (c.cron_id == row.cron_id, c.enabled, c.next_run_date == row.next_run_date)
    return sa.update(crons).where(*this).values(next_run_date=following)
