"""When crons are due where clocks change: once a local day, whatever the clocks do."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from agentrt.serving.langgraph.crons.routes import next_time

CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/Santiago": ("2026-09-06", "2026-04-05"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),  # by half an hour
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),  # at midnight
    "Asia/Kolkata": ("2026-03-29", "2026-10-25"),  # never
}


def walk(schedule: str, zone: str, day: str, days: int = 3) -> list[str]:
    """When it is due, from the noon before that day on."""
    local = ZoneInfo(zone)
    at = (datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=local)).timestamp() - 86400
    end, due = at + days * 86400, list[str]()
    while (following := next_time(schedule, zone, at)) is not None and following <= end:
        assert following > at
        at = following
        due.append(f"{datetime.fromtimestamp(at, local):%d %H:%M%z}")
    return due


@pytest.mark.parametrize(
    ("schedule", "zone", "day", "due"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["29 03:00+0200", "30 02:30+0200"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["25 02:30+0200", "26 02:30+0100"]),
        ("0 0 * * *", "America/Santiago", "2026-09-06", ["06 01:00-0300", "07 00:00-0300"]),
        ("0 23 * * *", "America/Santiago", "2026-04-05", ["04 23:00-0300", "05 23:00-0400"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["04 02:30+1100", "05 02:15+1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", ["05 01:45+1100", "06 01:45+1030"]),
        ("@daily", "Asia/Beirut", "2026-03-29", ["29 01:00+0300", "30 00:00+0300"]),
        ("30 2 25 10 *", "Europe/Berlin", "2026-10-25", ["25 02:30+0200"]),
        ("30 2 * * 0 30", "Europe/Berlin", "2026-10-25", ["25 02:30+0200"]),
    ],
)
def test_a_time_that_is_repeated_or_skipped_is_due_once(
    schedule: str, zone: str, day: str, due: list[str]
) -> None:
    assert walk(schedule, zone, day)[: len(due)] == due
    assert len(walk(schedule, zone, day)) <= 3


def test_each_hour_that_passes_is_an_hour() -> None:
    found = walk("0 * * * *", "Europe/Berlin", "2026-10-25", 2)
    assert len(found) == 48
    assert found.count("25 02:00+0200") == found.count("25 02:00+0100") == 1
    assert len(walk("@hourly", "Europe/Berlin", "2026-03-29", 2)) == 48


def reference(schedule: str, zone: str, begin: datetime, end: datetime) -> list[float]:
    """By looking at every minute: of a schedule of minutes and hours."""
    minutes, hours = (field.split(",") for field in schedule.split()[:2])
    local, due = ZoneInfo(zone), set[float]()
    at = begin
    while at <= end:
        here = at.astimezone(local)
        fits = str(here.minute) in minutes and (hours == ["*"] or str(here.hour) in hours)
        if fits and (hours == ["*"] or not here.fold):
            due.add(at.timestamp())
        before = (at - timedelta(minutes=1)).astimezone(local)
        wall = before.replace(tzinfo=None) + timedelta(minutes=1)
        while hours != ["*"] and wall < here.replace(tzinfo=None):  # what was skipped
            if str(wall.minute) in minutes and str(wall.hour) in hours:
                due.add(at.timestamp())
            wall += timedelta(minutes=1)
        at += timedelta(minutes=1)
    return sorted(due)


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("index", [0, 1])
def test_due_times_agree_with_a_check_of_every_minute(zone: str, index: int) -> None:
    rng, day = random.Random(f"{zone} {index}"), CHANGES[zone][index]
    begin = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=UTC) - timedelta(hours=30)
    end = begin + timedelta(hours=66)
    for _ in range(12):
        minutes = sorted(rng.sample((0, 5, 15, 29, 30, 31, 45, 59), rng.randint(1, 3)))
        hours = sorted(rng.sample((0, 1, 2, 3, 4, 22, 23), rng.randint(1, 3)))
        hour = "*" if rng.random() < 0.2 else ",".join(map(str, hours))
        schedule = f"{','.join(map(str, minutes))} {hour} * * *"
        at, due = begin.timestamp() - 1, list[float]()
        while (following := next_time(schedule, zone, at)) is not None:
            at = following
            if at > end.timestamp():
                break
            due.append(at)
        assert due == reference(schedule, zone, begin, end), schedule
