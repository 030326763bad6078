"""What clients send about crons, and when a cron is due."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Literal
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from croniter import croniter
from pydantic import AfterValidator, Field, ValidationError, model_validator

from agentrt.serving.langgraph.bodies import Body, Label, Object, SortedPage
from agentrt.serving.langgraph.responses import invalid, summary
from agentrt.serving.langgraph.run_bodies import RunBody, RunTerms, Strategy


def next_time(
    schedule: str, timezone: str | None, after: float, end: float | None = None
) -> float | None:
    """When ``schedule`` is due next (seconds since 1970), if that is before ``end``.

    Raises `ValueError` for what is no cron expression, and for one that is never due.
    """
    start = datetime.fromtimestamp(after, ZoneInfo(timezone or "UTC"))
    due: float = croniter(schedule, start).get_next(datetime).timestamp()
    return due if end is None or due <= end else None


_zones = cache(available_timezones)


def _known_zone(name: str | None) -> str | None:
    # Looked up by name in a set: `ZoneInfo` would look for a file of that name.
    if name is not None and name not in _zones():
        raise ValueError(f"there is no time zone {name!r}; one is such as Europe/Berlin")
    return name


def _zoned(time: datetime | None) -> datetime | None:
    if time is None:
        return None
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    datetime.fromtimestamp(zoned.timestamp(), UTC)  # raises where that is beyond the year 9999
    return zoned


class CronBody(RunTerms):
    """Runs by the clock: what they are, and when. A time without a zone is in UTC."""

    schedule: Annotated[str, Field(min_length=1, max_length=256)]
    timezone: Annotated[str | None, AfterValidator(_known_zone)] = None
    end_time: Annotated[datetime | None, AfterValidator(_zoned)] = None
    enabled: bool = True
    on_run_completed: Literal["delete", "keep"] | None = None
    multitask_strategy: Strategy = "enqueue"

    @model_validator(mode="after")
    def _due_some_time(self) -> CronBody:
        try:
            next_time(self.schedule, self.timezone, datetime.now(UTC).timestamp())
        except ValueError as error:
            raise ValueError(f"schedule {self.schedule!r}: {error}") from error
        return self

    def end(self) -> float | None:
        """The time after which no run starts (seconds since 1970)."""
        return None if self.end_time is None else self.end_time.timestamp()

    def next_time(self, now: float) -> float | None:
        """When a run is due next."""
        return next_time(self.schedule, self.timezone, now, self.end())

    def payload(self) -> Object:
        """What the client gave, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)

    def run(self, thread: UUID | None) -> RunBody:
        """One of its runs, in ``thread`` or in a thread of its own."""
        names = {*RunTerms.model_fields, "multitask_strategy"}
        given = self.model_dump(include=names, exclude_unset=True)
        return RunBody(**given, on_completion=self.on_run_completed if thread is None else None)


_CHANGEABLE = set(CronBody.model_fields) - {
    "assistant_id", "multitask_strategy", "checkpoint_during"
}  # fmt: skip


def changed(payload: Object, given: Object) -> CronBody:
    """A cron's body with what a client changes; metadata are merged. Raises 422."""
    if unknown := sorted(given.keys() - _CHANGEABLE):
        raise invalid(f"{', '.join(unknown)}: not supported here")
    metadata = {**payload.get("metadata", {}), **(given.get("metadata") or {})}
    try:
        return CronBody.model_validate({**payload, **given, "metadata": metadata})
    except ValidationError as error:
        faults = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise invalid(summary(faults)) from None


class CronCount(Body):
    """Which crons."""

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
    """Which crons, some at a time."""

    sort_by: Literal[
        "cron_id", "assistant_id", "thread_id", "next_run_date", "end_time", "created_at",
        "updated_at",
    ] = "created_at"  # fmt: skip
    select: list[CronField] | None = Field(default=None, max_length=64)
