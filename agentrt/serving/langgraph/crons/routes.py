"""Crons, which start runs by a schedule: their bodies, their rows, and their routes.

A background task starts the runs of crons when they are due (`CronClock`). A run is stored in the
same transaction that sets its cron's next time, so that each time has at most one run, even if the
server is killed. For all times that pass while no server runs, a cron starts a single run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import sqlalchemy as sa
from croniter import croniter
from fastapi import Body as RequestBody
from fastapi import HTTPException, Response
from langgraph_sdk import Auth
from langgraph_sdk.schema import CronSortBy, MultitaskStrategy, OnCompletionBehavior
from pydantic import AfterValidator, Field, ValidationError, model_validator

from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import Body, Label, Object, RunBody, RunTerms, SortedPage
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.filters import Filter, visible
from agentrt.serving.langgraph.database.tables import crons, dumps, matching, runs, threads
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.responses import JSON, encode, invalid, not_found, row_json, summary
from agentrt.serving.langgraph.routes import PathThread, Routes, route
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.tenants import BusyError

_HOUR = 1
"""The position of the hour among the fields of a schedule."""


def next_time(
    schedule: str, timezone: str | None, after: float, end: float | None = None
) -> float | None:
    """Return when ``schedule`` is next due after ``after``, or None if that is later than ``end``.
    All times are in seconds since 1970.

    If the change to winter time repeats a time of day, the schedule is due only at the first
    occurrence. If the change to summer time skips a time of day, the schedule is due right after
    the change. A schedule with every hour (``*``) is due in each hour that passes.

    Raises `ValueError` for an invalid cron expression, and for an expression that is never due.
    Raises `ZoneInfoNotFoundError` for an unknown time zone.
    """
    zone = ZoneInfo(timezone or "UTC")
    times = croniter(schedule, datetime.fromtimestamp(after, zone))
    is_every_hour = times.expanded[_HOUR] == ["*"]
    while True:
        due: float = times.get_next(datetime).timestamp()
        if is_every_hour or not datetime.fromtimestamp(due, zone).fold:
            return due if end is None or due <= end else None


_zones = cache(available_timezones)


def _known_zone(name: str | None) -> str | None:
    # Look the name up in a set, because `ZoneInfo` would open a file with that name.
    if name is not None and name not in _zones():
        raise ValueError(f"unknown time zone {name!r}; use an IANA name such as Europe/Berlin")
    return name


def _zoned(time: datetime | None) -> datetime | None:
    if time is None:
        return None
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    datetime.fromtimestamp(zoned.timestamp(), UTC)  # raises outside the years 1 to 9999 in UTC
    return zoned


class CronBody(RunTerms):
    """A cron to create: its schedule and the fields of its runs. A time without a time zone is in
    UTC.
    """

    schedule: Annotated[str, Field(min_length=1, max_length=256)]
    timezone: Annotated[str | None, AfterValidator(_known_zone)] = None
    end_time: Annotated[datetime | None, AfterValidator(_zoned)] = None
    enabled: bool = True
    on_run_completed: OnCompletionBehavior | None = None
    multitask_strategy: MultitaskStrategy = "enqueue"

    @model_validator(mode="after")
    def _due_some_time(self) -> CronBody:
        try:
            next_time(self.schedule, self.timezone, datetime.now(UTC).timestamp())
        except ValueError as error:
            raise ValueError(f"schedule {self.schedule!r}: {error}") from error
        return self

    def end(self) -> float | None:
        """Return the time after which no run starts, in seconds since 1970; None means no limit."""
        return None if self.end_time is None else self.end_time.timestamp()

    def next_time(self, now: float) -> float | None:
        """Return when a run is next due after ``now``, in seconds since 1970; None if that is
        after `end`.
        """
        return next_time(self.schedule, self.timezone, now, self.end())

    def payload(self) -> Object:
        """Return the fields that the client set, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)

    def run(self, thread: UUID | None) -> RunBody:
        """Return the body of a run of the cron in ``thread``; None means a new thread."""
        names = {*RunTerms.model_fields, "multitask_strategy"}
        fields = self.model_dump(include=names, exclude_unset=True)
        return RunBody(**fields, on_completion=self.on_run_completed if thread is None else None)


_CHANGEABLE = set(CronBody.model_fields) - {
    "assistant_id", "multitask_strategy", "checkpoint_during"
}  # fmt: skip


def changed(payload: Object, changes: Object) -> CronBody:
    """Return a cron's body with a client's changes. New metadata are merged with the old metadata.
    Raises 422 for invalid changes.
    """
    if unknown := sorted(changes.keys() - _CHANGEABLE):
        raise invalid(f"{', '.join(unknown)}: not supported here")
    metadata = {} if changes.get("metadata") is None else changes["metadata"]
    if isinstance(metadata, dict):  # otherwise, the validation refuses it
        metadata = {**payload.get("metadata", {}), **metadata}
    try:
        return CronBody.model_validate({**payload, **changes, "metadata": metadata})
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise invalid(summary(faults)) from None


class CronCount(Body):
    """The conditions for crons to count."""

    assistant_id: Label | None = None
    thread_id: UUID | None = None
    enabled: bool | None = None
    metadata: Object | None = None


CronField = Literal[
    "cron_id", "assistant_id", "thread_id", "on_run_completed", "end_time", "schedule",
    "timezone", "created_at", "updated_at", "user_id", "payload", "next_run_date", "metadata",
    "enabled",
]  # fmt: skip


class CronSearch(CronCount, SortedPage):
    """The conditions of a search for crons, and the page and the fields to return."""

    sort_by: CronSortBy = "created_at"
    select: list[CronField] | None = Field(default=None, max_length=64)


# -- rows and routes -----------------------------------------------------------------------


_CRON = "/runs/crons/{cron_id}"


def cron_json(row: sa.Row[Any]) -> dict[str, Any]:
    """Return a cron in the form that clients get."""
    user = json.loads(row.user).get("langgraph_auth_user_id", "")
    about = {"user_id": user, "payload": json.loads(row.payload)}
    return row_json(row, "tenant", "user") | about


class Crons(Routes):
    """The crons of all tenants, and their routes. ``clock`` returns the time in seconds
    since 1970.
    """

    def __init__(
        self, state: TenantState, starts: StartRoutes, clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._database = state.storage.database
        self._starts = starts
        self.clock = clock

    # -- routes ------------------------------------------------------------------------

    @route("POST", "/runs/crons")
    @route("POST", "/threads/{thread_id}/runs/crons")
    async def create(self, body: CronBody, caller: CallerDep, thread: PathThread) -> JSON:
        """Create a cron whose runs are in a thread, or each in a new thread."""
        if thread is not None:
            await self._state.thread(caller, thread, "read", {"metadata": dict(body.metadata)})
        assistant = await self._starts.assistant(caller, thread, body.run(thread))
        key = uuid4()
        body = _with_cron_id(
            key, body.model_copy(update={"assistant_id": assistant["assistant_id"]})
        )
        self._check_time_is_left(body)
        value: dict[str, Any] = {
            "cron_id": key,
            "thread_id": thread,
            "user_id": None if caller.user is None else caller.user.identity,
            "schedule": body.schedule,
            "end_time": body.end_time,
            "payload": body.payload(),
            "metadata": dict(body.metadata),
        }
        await caller.authorize("crons", "create", value)
        metadata = caller.metadata_after("crons.create", value)
        return JSON(cron_json(await self.add(caller, key, thread, body, metadata)))

    @route("POST", "/runs/crons/search", writes=False)
    async def search(self, body: CronSearch, caller: CallerDep) -> JSON:
        """Return a page of the crons that meet the conditions."""
        conditions = await self._matching(caller, body, body.limit, body.offset)
        rows, headers = await self._database.page(crons, conditions, "cron_id", body)
        found_crons = [cron_json(row) for row in rows]
        if body.select:
            found_crons = [{key: cron[key] for key in body.select} for cron in found_crons]
        return JSON(found_crons, headers=headers)

    @route("POST", "/runs/crons/count", writes=False)
    async def count(self, body: CronCount, caller: CallerDep) -> JSON:
        """Return the number of crons that meet the conditions."""
        conditions = await self._matching(caller, body, 0, 0)
        return JSON(await self._database.count(crons, conditions))

    @route("GET", _CRON)
    async def read(self, cron_id: UUID, caller: CallerDep) -> JSON:
        """Return a cron."""
        only = await caller.authorize("crons", "read", {"cron_id": cron_id})
        return JSON(cron_json(await self.get(caller.tenant, cron_id, only)))

    @route("PATCH", _CRON)
    async def patch(
        self, cron_id: UUID, changes: Annotated[Object, RequestBody()], caller: CallerDep
    ) -> JSON:
        """Change a cron. The time of its next run is computed anew from the current time."""
        if not changes:
            raise HTTPException(400, "the body is empty; send the fields to change")
        settings_of = ("schedule", "end_time", "enabled", "on_run_completed")
        value: dict[str, Any] = {
            "cron_id": cron_id,
            **{key: changes.get(key) for key in settings_of},
        }
        metadata = changes.get("metadata")
        value["payload"] = dict(changes)
        value["metadata"] = dict(metadata) if isinstance(metadata, dict) else {}
        only = await caller.authorize("crons", "update", value)
        row = cron_json(await self.get(caller.tenant, cron_id, only))
        body = _with_cron_id(cron_id, changed(row["payload"], changes))
        thread = None if row["thread_id"] is None else UUID(row["thread_id"])
        await self._starts.assistant(caller, thread, body.run(thread))
        self._check_time_is_left(body)
        new_metadata = caller.metadata_after("crons.update", value)
        this = _is(caller.tenant, cron_id, only)
        async with self._database.writing() as connection:
            # Read the cron again under a lock, because another request may have changed it.
            locked = sa.select(crons).where(*this).with_for_update()
            stored = (await connection.execute(locked)).first()
            if stored is None:
                raise not_found("cron", cron_id)
            row = cron_json(stored)
            body = _with_cron_id(cron_id, changed(row["payload"], changes))
            self._check_time_is_left(body)
            metadata = {**row["metadata"], **new_metadata}
            settings = self._settings(thread, body, metadata, self.clock())
            await connection.execute(sa.update(crons).where(*this).values(settings))
        return JSON(cron_json(await self.get(caller.tenant, cron_id)))

    @route("DELETE", _CRON, 204)
    async def delete(self, cron_id: UUID, caller: CallerDep) -> Response:
        """Delete a cron. Runs that it has started continue."""
        only = await caller.authorize("crons", "delete", {"cron_id": cron_id})
        await self.get(caller.tenant, cron_id, only)
        this = _is(caller.tenant, cron_id, only)
        await self._database.write(sa.delete(crons).where(*this))
        return Response(status_code=204)

    # -- rows --------------------------------------------------------------------------

    async def add(
        self, caller: Requester, key: UUID, thread: UUID | None, body: CronBody, metadata: Any
    ) -> sa.Row[Any]:
        """Insert a new cron, and return its row. Raises 507 if the tenant has reached its limit of
        crons.
        """
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
            await self._state.quotas.adding(connection, crons, caller.tenant)
            await connection.execute(sa.insert(crons).values(row))
            await self._state.quotas.added(connection, crons, caller.tenant)
        return await self.get(caller.tenant, key)

    async def get(self, tenant: str, key: UUID, only: Filter | None = None) -> sa.Row[Any]:
        """Return a cron's row. Raises 404 if the cron does not exist or the filter ``only`` hides
        it.
        """
        row = await self._database.first(sa.select(crons).where(*_is(tenant, key, only)))
        if row is None:
            raise not_found("cron", key)
        return row

    async def _matching(
        self, caller: Requester, body: CronCount, limit: int, offset: int
    ) -> list[sa.ColumnElement[bool]]:
        assistant, thread = body.assistant_id, body.thread_id
        value: dict[str, Any] = {"assistant_id": assistant, "thread_id": thread}
        value |= {"limit": limit, "offset": offset, "metadata": dict(body.metadata or {})}
        only = await caller.authorize("crons", "search", value)
        # A user sees the crons of a thread only if the user sees the thread.
        of_thread = await caller.authorize("threads", "search", {"metadata": {}})
        if assistant is not None:
            row = await self._state.assistants.find(caller.tenant, assistant)
            assistant = row["assistant_id"]
        conditions = matching(
            crons,
            caller.tenant,
            {
                "assistant_id": assistant,
                "thread_id": None if thread is None else str(thread),
                "enabled": body.enabled,
            },
            [("metadata", body.metadata)],
            only,
        )
        if of_thread is not None:
            seen = sa.select(threads.c.thread_id).where(*visible(threads.c.metadata, of_thread))
            c = crons.c.thread_id
            conditions.append(sa.or_(c.is_(None), c.in_(seen)))
        return conditions

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
            "next_run_date": body.next_time(self.clock()),
            "updated_at": now,
        }

    def _check_time_is_left(self, body: CronBody) -> None:
        if body.next_time(self.clock()) is None:
            raise invalid(
                f"end_time {body.end_time}: no run would start before this time; set a later time"
            )


def _with_cron_id(key: UUID, body: CronBody) -> CronBody:
    """Return the body with the cron's id in the config of its runs."""
    configurable = {**body.config.configurable, "cron_id": str(key)}
    config = body.config.model_copy(update={"configurable": configurable})
    return body.model_copy(update={"config": config})


def _is(tenant: str, key: UUID, only: Filter | None) -> list[sa.ColumnElement[bool]]:
    return matching(crons, tenant, {"cron_id": str(key)}, only=only)


LOOK_S = 1.0
"""Seconds between searches for crons that are due. A run for which the queue had no room is tried
again at the next search.
"""
_NO_ROOM = (429, 503, 507)

_log = logging.getLogger(__name__)


# -- the clock ---------------------------------------------------------------------------


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
        except Exception as error:  # hooks and factories may raise anything
            has_no_room = getattr(error, "status_code", None) in _NO_ROOM
            if has_no_room or isinstance(error, BusyError) or is_outage(error):
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
