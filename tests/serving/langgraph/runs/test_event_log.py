"""Which events of a run's stream are kept, and for which readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from agentrt.serving.langgraph.database.connections import Address, Database, open_database
from agentrt.serving.langgraph.database.runs import Runs
from agentrt.serving.langgraph.runs import streams
from agentrt.serving.langgraph.runs.streams import EventLog, FellBehindError, replay
from tests.serving.langgraph.graphs import TURN_S


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as database:
        yield database


async def numbers(log: EventLog, after: int = 0) -> list[int]:
    return [one.number async for one in log.follow(after)]


async def test_listeners_hear_all_in_order(database: Database) -> None:
    """Whenever they come, and while it is written."""
    log = EventLog("r", database, resumable=False)
    await log.put([("values", b"1")])
    early = asyncio.create_task(numbers(log))
    late = asyncio.create_task(numbers(log, 2))
    for n in range(2, 6):
        await log.put([("values", str(n).encode())])
        await asyncio.sleep(0)
    log.close()
    assert await early == [1, 2, 3, 4, 5]
    assert await late == [3, 4, 5]
    assert await numbers(log) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("bound", "most"), [("MAX_EVENTS", 3), ("MAX_BYTES", 130)])
async def test_what_is_held_is_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(streams, bound, most)
    log = EventLog("r", database, resumable=False)
    for _ in range(10):
        await log.put([("values", b"x" * 40)])
    log.close()
    assert await numbers(log, 7) == [8, 9, 10]
    with pytest.raises(FellBehindError, match="events 7 to 7"):
        await numbers(log, 6)


async def test_events_that_are_larger_than_the_limit_reach_readers_that_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest event also reaches a reader that comes later."""
    monkeypatch.setattr(streams, "MAX_BYTES", 30)
    log = EventLog("r", database, resumable=False)
    reading = asyncio.create_task(numbers(log))
    await asyncio.sleep(0)
    for _ in range(3):
        await log.put([("values", b"x" * 40)])
    log.close()
    assert await reading == [1, 2, 3]
    assert await numbers(log, 2) == [3]
    with pytest.raises(FellBehindError, match="events 1 to 2"):
        await numbers(log)


async def test_a_resumable_log_reads_on_from_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_EVENTS", 3)
    log = EventLog("r", database, resumable=True)
    await log.put([("values", str(n).encode()) for n in range(1200)])
    log.close()
    assert await numbers(log, 0) == list(range(1, 1201))
    assert [one.number async for one in replay(database, "r", 1190)] == list(range(1191, 1201))


async def test_a_second_attempt_counts_on(database: Database) -> None:
    first = EventLog("r", database, resumable=True)
    await first.put([("values", b"1"), ("values", b"2")])
    second = EventLog("r", database, resumable=True)
    await second.put([("values", b"3")])
    second.close()
    assert await numbers(second) == [1, 2, 3]


async def test_an_event_that_was_stored_by_a_failed_write_keeps_its_number(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled write, or a connection that breaks, may leave the event in the database."""
    log, write = EventLog("r", database, resumable=True), database.write

    async def stored_but_failed(*statements: Any) -> None:
        await write(*statements)
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", stored_but_failed)
        with pytest.raises(ConnectionResetError):
            await log.put([("values", b"1")])
    await log.put([("values", b"2")])
    assert [event.data async for event in replay(database, "r", 0)] == [b"1", b"2"]


async def test_readers_get_an_event_that_was_stored_by_a_failed_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that were there before, and one that comes while the next event is numbered."""
    log, write = EventLog("r", database, resumable=True), database.write

    async def stored_but_failed(*statements: Any) -> None:
        await write(*statements)
        raise ConnectionResetError

    early = asyncio.create_task(numbers(log))
    await log.put([("values", b"1")])
    with monkeypatch.context() as patch:
        patch.setattr(database, "write", stored_but_failed)
        with pytest.raises(ConnectionResetError):
            await log.put([("values", b"2")])
    third = await log.numbered([("values", b"3")])
    late = asyncio.create_task(numbers(log))
    await asyncio.sleep(0)
    await database.write(*log.inserts(third))
    await log.publish(third)
    log.close()
    assert await early == await late == [1, 2, 3]


async def test_the_oldest_stored_events_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STORED", 600)
    log = EventLog("r", database, resumable=True)
    for _ in range(10):
        await log.put([("values", b"1")] * 100)
    kept = [one.number async for one in replay(database, "r", 400)]
    assert kept == list(range(401, 1001))


async def test_a_reader_is_told_which_stored_events_were_deleted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STORED", 600)
    monkeypatch.setattr(streams, "MAX_EVENTS", 3)
    log = EventLog("r", database, resumable=True)
    for _ in range(10):
        await log.put([("values", b"1")] * 100)
    log.close()
    for read in (log.follow, partial(replay, database, "r")):
        with pytest.raises(FellBehindError, match=r"events 8 to 400 .* Last-Event-ID 400$"):
            [event async for event in read(7)]
        for after, may_skip in ((400, False), (7, True)):
            events = [event.number async for event in read(after, may_skip=may_skip)]
            assert events == list(range(401, 1001))


async def test_a_reader_ends_where_the_events_of_its_run_were_deleted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is deleted or rolled back as the reader is behind."""
    monkeypatch.setattr(streams, "MAX_EVENTS", 3)
    log = EventLog("r", database, resumable=True)
    await log.put([("values", b"1")] * 10)
    await Runs(database, cast("Any", None)).remove("r")
    log.close()
    async with asyncio.timeout(TURN_S):
        with pytest.raises(FellBehindError, match="from 3 on were deleted"):
            await numbers(log, 2)
        assert [event.number async for event in log.follow(2, may_skip=True)] == []
