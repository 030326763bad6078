"""A server's background work continues after any error; repeated failures are reported."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

import pytest

from agentrt.serving import background
from agentrt.serving.background import STUBBORN, Background


class Work:
    """Fails as often as it is told to; then it is done once, or continues for ever."""

    def __init__(self, fails: int, *, forever: bool = False) -> None:
        self.fails = fails
        self.forever = forever
        self.begun = 0
        self.well = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self.fails:
            raise sqlite3.OperationalError("database is locked\nor worse")
        self.well.set()
        if self.forever:
            await asyncio.Event().wait()


async def until_well(work: Work) -> None:
    async with asyncio.timeout(60):
        await work.well.wait()


async def test_background_work_continues_after_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Errors are reported until the work succeeds; the log has the first traceback."""
    caplog.set_level(logging.WARNING)
    tasks, work = Background(rest_s=0.001), Work(STUBBORN)
    told: list[tuple[object, list[str]]] = []

    async def watched() -> None:
        told.append((dict(tasks.failing()), tasks.stubborn()))
        await work()

    async with tasks.doing("sweep", watched, every_s=1000):
        await until_well(work)
        await asyncio.sleep(0)
        assert (dict(tasks.failing()), tasks.stubborn()) == ({}, [])
    text = "OperationalError: database is locked"
    assert told == [({}, []), *[({"sweep": text}, [])] * 2, ({"sweep": text}, ["sweep"])]
    assert [one.exc_info is not None for one in caplog.records] == [True, False]
    assert caplog.messages[1] == (
        f"background task sweep failed (2 in a row) and will be retried: {text}"
    )


async def test_background_work_continues_after_any_number_of_errors() -> None:
    tasks, work = Background(rest_s=0.0), Work(1100)
    async with tasks.doing("sweep", work, every_s=1000):
        await until_well(work)


async def test_endless_background_work_counts_as_healthy_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks, work = Background(rest_s=0.001), Work(1, forever=True)
    async with tasks.doing("on/alarm", work):
        await until_well(work)
        assert list(tasks.failing()) == ["on/alarm"]
        monkeypatch.setattr(background, "_STEADY_S", -1.0)
        assert tasks.failing() == {}


async def test_background_work_ends_with_its_block() -> None:
    tasks, work = Background(rest_s=1000), Work(1)
    async with tasks.doing("sweep", work):
        await asyncio.sleep(0)
        assert list(tasks.failing()) == ["sweep"]
    assert tasks.failing() == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert work.begun == 1
