"""Crons in the database, and the task that starts their runs.

A run is entered in the transaction that sets its cron's next time, so no time has two runs,
whenever the server is killed. Times that passed while it was down are one run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

import sqlalchemy as sa
from langgraph_sdk import Auth

from agentrt.serving.langgraph.auth import Caller, User
from agentrt.serving.langgraph.cron_bodies import CronBody, CronCount, CronSearch, next_time
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.expiry import Deadlines
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.quotas import Quotas
from agentrt.serving.langgraph.responses import encode, not_found, timestamp
from agentrt.serving.langgraph.run_starts import StartRoutes
from agentrt.serving.langgraph.tables import Filter, crons, dumps, has, runs
from agentrt.serving.tenants import BusyError

LONGEST_WAIT_S = 30.0
RETRY_S = 5.0
"""When a run is tried again that found no room."""
_NO_ROOM = (429, 503, 507)
_TIMES = ("end_time", "next_run_date", "created_at", "updated_at")
_USER = "langgraph_auth_user"

_log = logging.getLogger(__name__)


def cron_json(row: sa.Row[Any]) -> dict[str, Any]:
    """A cron as clients see it."""
    one = dict(row._mapping)
    del one["tenant"]
    user = json.loads(one.pop("user"))
    one["user_id"] = user.get("langgraph_auth_user_id", "")
    one["payload"] = json.loads(one["payload"])
    return one | {key: timestamp(one[key]) for key in _TIMES if one[key] is not None}


class Crons:
    """The crons of all tenants; every request of a client names its tenant."""

    def __init__(
        self, database: Database, quotas: Quotas, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._quotas = quotas
        self.clock = clock
        self.coming = Deadlines(clock)

    async def add(
        self, caller: Caller, key: UUID, thread: UUID | None, body: CronBody, metadata: Any
    ) -> sa.Row[Any]:
        """A new cron. Raises 507 where the tenant has as many as it may."""
        now = self.clock()
        row = {
            "cron_id": str(key),
            "tenant": caller.tenant,
            "assistant_id": body.assistant_id,
            "thread_id": None if thread is None else str(thread),
            "user": encode(caller.config()).decode(),
            "created_at": now,
            **self._settings(thread, body, metadata, now),
        }
        async with self._database.writing() as connection:
            await connection.execute(sa.insert(crons).values(row))
            await self._quotas.new_cron(connection, caller.tenant)
        return await self._told(caller.tenant, key)

    async def change(
        self,
        tenant: str,
        key: UUID,
        thread: UUID | None,
        body: CronBody,
        metadata: Any,
        only: Filter,
    ) -> sa.Row[Any]:
        """Replace what a cron does; its next time counts from now."""
        values = self._settings(thread, body, metadata, self.clock())
        await self._database.write(sa.update(crons).where(*_is(tenant, key, only)).values(values))
        return await self._told(tenant, key)

    def _settings(
        self, thread: UUID | None, body: CronBody, metadata: Any, now: float
    ) -> dict[str, Any]:
        return {
            "payload": dumps(body.payload()),
            "schedule": body.schedule,
            "timezone": body.timezone,
            "on_run_completed": (body.on_run_completed or "delete") if thread is None else None,
            "enabled": body.enabled,
            "metadata": metadata,
            "end_time": body.end(),
            "next_run_date": self.next_of(body),
            "updated_at": now,
        }

    async def _told(self, tenant: str, key: UUID) -> sa.Row[Any]:
        """The cron as it is stored now; whoever waits for the nearest time hears of its own."""
        row = await self.get(tenant, key)
        if row.enabled and row.next_run_date is not None:
            self.coming.add(row.next_run_date)
        return row

    def next_of(self, body: CronBody) -> float | None:
        """When such a cron is due next, from now on."""
        return next_time(body.schedule, body.timezone, self.clock(), body.end())

    async def get(self, tenant: str, key: UUID, only: Filter = None) -> sa.Row[Any]:
        """The cron, or 404."""
        row = await self._database.first(sa.select(crons).where(*_is(tenant, key, only)))
        if row is None:
            raise not_found("cron", key)
        return row

    async def remove(self, tenant: str, key: UUID, only: Filter) -> None:
        """Forget a cron; what it has started goes on. Raises 404."""
        await self.get(tenant, key, only)
        await self._database.write(sa.delete(crons).where(*_is(tenant, key, only)))

    async def search(
        self, tenant: str, body: CronSearch, only: Filter
    ) -> tuple[Sequence[sa.Row[Any]], dict[str, str]]:
        """A page of those that match, and its headers."""
        return await self._database.page(crons, _matching(tenant, body, only), "cron_id", body)

    async def count(self, tenant: str, body: CronCount, only: Filter) -> int:
        """How many match."""
        return await self._database.count(crons, _matching(tenant, body, only))

    # -- by the clock ------------------------------------------------------------------

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

    async def nearest(self, now: float) -> float | None:
        """When the next one is due."""
        c = crons.c
        query = sa.select(sa.func.min(c.next_run_date)).where(c.enabled, c.next_run_date > now)
        row = await self._database.first(query)
        return None if row is None else row[0]

    async def waits(self, cron: sa.Row[Any]) -> bool:
        """Whether a run of the cron has not begun: it stands for later times, too, or they would
        pile up where its runs take longer than the time between them.
        """
        c = runs.c
        own = (c.tenant == cron.tenant, c.kwargs.contains(cron.cron_id, autoescape=True))
        return await self._database.count(runs, [c.status == "pending", *own]) > 0

    async def skip(self, claim: sa.Update) -> None:
        """Set a cron's next time without a run."""
        await self._database.write(claim)


class CronClock:
    """Starts the runs of crons in time. A server has one, as a background task."""

    def __init__(self, crons: Crons, starts: StartRoutes, auth: Auth | None) -> None:
        self._crons = crons
        self._starts = starts
        self._auth = auth

    async def go_on(self) -> None:
        """Start what is due, and wait until something is, or might be."""
        coming, now = self._crons.coming, self._crons.clock()
        coming.forget()
        if not await self.start_due(now):
            coming.add(now + RETRY_S)
        if (nearest := await self._crons.nearest(now)) is not None:
            coming.add(nearest)
        await coming.passed(LONGEST_WAIT_S)

    async def start_due(self, now: float) -> bool:
        """Start a run of each cron that is due. False if there was no room for some."""
        started = [await self._start(key, now) for key in await self._crons.due(now)]
        return all(started)

    async def _start(self, key: str, now: float) -> bool:
        row = await self._crons.find_due(key, now)
        if row is None:
            return True
        claim = _claim(row, now)
        try:
            if await self._crons.waits(row):
                await self._crons.skip(claim)
                return True
            body = CronBody.model_validate_json(row.payload)
            thread = None if row.thread_id is None else UUID(row.thread_id)
            caller = _caller(row, self._auth)
            await self._starts.start(caller, thread, body.run(thread), claim=claim)
        except BusyError:
            return False
        except Exception as error:  # hooks and factories are the user's, and may raise anything
            if getattr(error, "status_code", None) in _NO_ROOM or is_outage(error):
                return False
            _log.warning("cron %s: a run was not started: %r", key, error)
            await self._crons.skip(claim)
        return True


def _claim(row: sa.Row[Any], now: float) -> sa.Update:
    """Take the time that a cron is due: whoever does it first starts the run."""
    following = None
    with suppress(ValueError, ZoneInfoNotFoundError):  # it is due no more, as by its last year
        following = next_time(row.schedule, row.timezone, now, row.end_time)
    c = crons.c
    this = (c.cron_id == row.cron_id, c.enabled, c.next_run_date == row.next_run_date)
    return sa.update(crons).where(*this).values(next_run_date=following)


def _caller(row: sa.Row[Any], auth: Auth | None) -> Caller:
    """Who made the cron: hooks are asked as if it were their request."""
    user: Mapping[str, Any] | None = json.loads(row.user).get(_USER)
    return Caller(row.tenant, None if user is None else User(user), auth)


def _is(tenant: str, key: UUID, only: Filter) -> list[sa.ColumnElement[bool]]:
    own = [crons.c.tenant == tenant, crons.c.cron_id == str(key)]
    return [*own, has(crons.c.metadata, only)] if only else own


def _matching(tenant: str, body: CronCount, only: Filter) -> list[sa.ColumnElement[bool]]:
    c = crons.c
    wanted = {"assistant_id": body.assistant_id, "thread_id": body.thread_id}
    conditions = [c.tenant == tenant]
    conditions += [c[name] == str(value) for name, value in wanted.items() if value is not None]
    if body.enabled is not None:
        conditions.append(c.enabled == body.enabled)
    return conditions + [has(c.metadata, one) for one in (body.metadata, only) if one]
