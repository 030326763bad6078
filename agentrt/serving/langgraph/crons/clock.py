"""Starts the runs of crons when they are due.

A run is stored in the same transaction that sets its cron's next time, so that each time has at
most one run, even if the server is killed. For all times that pass while no server runs, a cron
starts a single run.
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

from agentrt.serving.langgraph.auth.hooks import Requester
from agentrt.serving.langgraph.crons.routes import CronBody, Crons, next_time
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.tables import crons, runs
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.tenants import BusyError

LOOK_S = 1.0
"""Seconds between searches for crons that are due. A run for which the queue had no room is tried
again at the next search.
"""
_NO_ROOM = (429, 503, 507)

_log = logging.getLogger(__name__)


class CronClock:
    """Starts the runs of crons that are due. A background task of the server calls `look`."""

    def __init__(
        self, crons: Crons, database: Database, starts: StartRoutes, auth: Auth | None
    ) -> None:
        self._crons = crons
        self._database = database
        self._starts = starts
        self._auth = auth
        self._delayed: set[str] = set()
        """The ids of the crons whose run for the present time could not start yet."""

    async def look(self) -> None:
        """Start the runs that are due now."""
        await self.start_due(self._crons.clock())

    async def start_due(self, now: float) -> bool:
        """Start a run of each cron that is due at ``now`` (seconds since 1970), unless a run of the
        cron still waits. Returns False if a run could not start now and will be tried again.
        """
        started = [await self._start(key, now) for key in await self.due(now)]
        return all(started)

    async def due(self, now: float) -> list[str]:
        """Return the ids of the crons that are due at ``now``, in the order of their times."""
        c = crons.c
        query = sa.select(c.cron_id).where(c.enabled, c.next_run_date <= now)
        return [row[0] for row in await self._database.rows(query.order_by(c.next_run_date))]

    async def find_due(self, key: str, now: float) -> sa.Row[Any] | None:
        """Return a cron if it is still due, else None."""
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
            # Ask the hooks as if the user who created the cron had started the run.
            caller = Requester.of_config(row.tenant, json.loads(row.user), self._auth)
            await self._starts.start(caller, thread, body.run(thread), claim=claim)
        except BusyError:
            return False
        except Exception as error:  # hooks and factories may raise anything
            if getattr(error, "status_code", None) in _NO_ROOM or is_outage(error):
                if key not in self._delayed:
                    self._delayed.add(key)
                    _log.warning(
                        "cron %s: the run for this time could not start, and is tried again until "
                        "it starts: %r",
                        key,
                        error,
                    )
                return False
            _log.warning(
                "cron %s: the run for this time failed to start and is skipped: %r", key, error
            )
            await self._database.write(claim)
        self._delayed.discard(key)
        return True

    async def _waits(self, cron: sa.Row[Any]) -> bool:
        """Return whether a run of the cron is still waiting. In that case no further run is
        started, because waiting runs would accumulate if a run takes longer than the time between
        two runs.
        """
        c = runs.c
        own = (c.tenant == cron.tenant, c.kwargs.contains(cron.cron_id, autoescape=True))
        return await self._database.count(runs, [c.status == "pending", *own]) > 0


def _claim(row: sa.Row[Any], now: float) -> sa.Update:
    """Return the update that sets a cron's next time, which is NULL if the schedule has no later
    time. The update changes no row if, since ``row`` was read, the cron was disabled or deleted, or
    got another next time.
    """
    following = None
    with suppress(ValueError, ZoneInfoNotFoundError):  # no later time, or an unknown time zone
        following = next_time(row.schedule, row.timezone, now, row.end_time)
    c = crons.c
    this = (c.cron_id == row.cron_id, c.enabled, c.next_run_date == row.next_run_date)
    return sa.update(crons).where(*this).values(next_run_date=following)
