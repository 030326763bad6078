"""Runs by the clock: what is due is started once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import httpx
import pytest
import pytest_asyncio
import sqlalchemy as sa
from fastapi import HTTPException
from langgraph_sdk.client import LangGraphClient
from sqlalchemy import Row

from agentrt import Runtime
from agentrt.serving.langgraph.auth.hooks import Requester, User
from agentrt.serving.langgraph.crons.routes import (
    CronBody,
    CronClock,
    Crons,
    _with_cron_id,
    cron_json,
    next_time,
)
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.runs import NewRun
from agentrt.serving.langgraph.database.tables import runs
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.tenant_state import TenantState, open_tenant_state
from agentrt.serving.server import ServedGraph, Server
from agentrt.serving.tenants import Limits, Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import steps_graph
from tests.serving.langgraph.runs.test_runs import IN, a_thread

CALLER = Requester("default", None, None)
NOON = datetime(2030, 5, 1, 12, tzinfo=UTC).timestamp()
MINUTE, HOUR = 60.0, 3600.0
"""Before any of these times, no run that the tests ask for by the real clock is due."""


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


# -- when ---------------------------------------------------------------------------------


def test_a_schedule_is_of_its_time_zone_also_when_clocks_change() -> None:
    """In spring 2:30 is not there: at 3. In a zone, and in none."""
    noon = at("2027-03-27T12:00", "Europe/Berlin")
    assert next_time("30 2 * * *", "Europe/Berlin", noon) == at("2027-03-28T03:00", "Europe/Berlin")
    assert next_time("30 2 * * *", None, noon) == at("2027-03-28T02:30")
    late = at("2027-03-28T12:00", "Europe/Berlin")
    assert next_time("30 2 * * *", "Europe/Berlin", late) == at("2027-03-29T02:30", "Europe/Berlin")


# -- by the clock -------------------------------------------------------------------------


class Home:
    """A server's crons with a clock of the test, and a queue that starts nothing."""

    def __init__(self, state: TenantState) -> None:
        self.now = NOON
        self.state = state
        self.queue = RunQueue(state)
        self.queue._open = False
        self.starts = StartRoutes(state, self.queue)
        database = state.storage.database
        self.crons = Crons(state, self.starts, lambda: self.now)
        self.clock = CronClock(self.crons, database, self.starts, None)

    async def add(self, schedule: str = "* * * * *", **given: Any) -> Row[Any]:
        thread = given.pop("thread", None)
        body = CronBody.model_validate({"assistant_id": "steps", "schedule": schedule, **given})
        found = await self.state.assistants.find("default", "steps")
        body = body.model_copy(update={"assistant_id": found["assistant_id"]})
        body = _with_cron_id(key := uuid4(), body)
        return await self.crons.add(CALLER, key, thread, body, {})

    async def after(self, seconds: float, *, begin: bool = True) -> int:
        """How many runs there are more, so much later, which then ``begin``."""
        before = len(await self.runs())
        self.now += seconds
        await self.clock.start_due(self.now)
        if begin:
            await self.state.storage.database.write(sa.update(runs).values(status="running"))
        return len(await self.runs()) - before

    async def runs(self) -> list[Any]:
        return await self.state.runs.active()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Home]:
    served = {"steps": ServedGraph(steps_graph(), "tests.py")}
    server = Server(Runtime(ScriptedExecutor()), (), served, f"sqlite:{folder / 'a.db'}")
    async with open_tenant_state(server) as state:
        yield Home(state)


@pytest_asyncio.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with opened(tmp_path) as home:
        yield home


async def test_each_time_has_one_run(home: Home) -> None:
    """1. Not yet. 2. Due: one run. 3. Asked again at the same time: none. 4. The next time."""
    row = await home.add(input=IN)
    assert row.next_run_date == NOON + MINUTE
    assert [await home.after(s) for s in (59, 1, 0, 30, 30)] == [0, 1, 0, 0, 1]
    [run, _] = await home.runs()
    assert run.kwargs["input"] == IN


async def test_times_missed_during_downtime_start_one_run(tmp_path: Path) -> None:
    """Another server finds the cron where the first one has left it."""
    async with opened(tmp_path) as home:
        await home.add()
        assert await home.after(MINUTE) == 1
    async with opened(tmp_path) as home:
        assert await home.after(MINUTE + 3 * HOUR + 5) == 1
        assert [await home.after(s) for s in (54, 1)] == [0, 1]


async def test_a_server_killed_in_the_middle_starts_neither_two_nor_none(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It ends before the run is in the queue: the run is in the database, and not due again.
    2. Two that find the same time due, start one.
    """
    enter = home.state.runs.enter_all

    async def killed_after(entries: Sequence[tuple[NewRun, Filter | None]]) -> None:
        await enter(entries)
        raise KeyboardInterrupt

    await home.add()
    home.now += MINUTE
    with monkeypatch.context() as patch:
        patch.setattr(home.state.runs, "enter_all", killed_after)
        with pytest.raises(KeyboardInterrupt):
            await home.clock.start_due(home.now)
    assert len(await home.runs()) == 1
    assert await home.after(0) == 0
    home.now += MINUTE
    [key] = await home.clock.due(home.now)
    seen = await home.clock.find_due(key, home.now)
    assert await home.after(0) == 1
    monkeypatch.setattr(home.clock, "find_due", _finding(seen))
    monkeypatch.setattr(home.clock, "due", _finding([key]))
    assert await home.after(0) == 0


def _finding(what: Any) -> Callable[..., Any]:
    async def found(*asked: Any) -> Any:
        return what

    return found


async def test_after_its_end_and_while_it_is_off_nothing_runs(home: Home) -> None:
    end = datetime.fromtimestamp(NOON + 2 * MINUTE, timezone(timedelta(hours=5)))
    await home.add(end_time=end.isoformat())
    await home.add(enabled=False)
    assert [await home.after(MINUTE) for _ in range(4)] == [1, 1, 0, 0]


async def test_a_cron_without_room_is_tried_again(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant at its limit, and a server that ends; nothing is lost, and nothing doubled. The log
    says once why no run starts.
    """
    await home.add()
    home.state.server.tenants = Tenants(lambda: 0.0, Limits(programs=1))
    assert [await home.after(MINUTE) for _ in range(2)] == [1, 0]
    assert not await home.clock.start_due(home.now)
    (record,) = caplog.records
    assert "may have at most 1; end a program first" in record.getMessage()
    home.state.server.draining = True
    home.state.server.tenants = Tenants(lambda: 0.0)
    assert await home.after(0) == 0
    home.state.server.draining = False
    assert [await home.after(s) for s in (10, 0)] == [1, 0]


async def test_a_thread_that_refuses_costs_one_time(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """With a run in its thread, and `reject`, the time passes without a run."""
    made, _ = await home.state.threads.create("default", _thread_body())
    thread = UUID(made["thread_id"])
    await home.add(thread=thread, multitask_strategy="reject")
    assert [await home.after(MINUTE) for _ in range(2)] == [1, 0]
    assert "failed to start" in caplog.text
    assert await home.after(0) == 0
    [run] = await home.runs()
    await home.state.runs.remove(run.run_id)
    assert await home.after(MINUTE) == 1


def _thread_body() -> Any:
    from agentrt.serving.langgraph.bodies import ThreadCreate

    return ThreadCreate()


@pytest.mark.parametrize(
    ("error", "again"), [(RuntimeError("a hook's own"), 0), (ConnectionError("away"), 1)]
)
async def test_a_failing_cron_does_not_delay_other_crons(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    again: int,
) -> None:
    """Hooks and factories may raise anything. What cannot be reached now is tried again, and the
    log says so once.
    """
    start = home.starts.start

    async def fails_for_one(caller: Any, thread: Any, body: Any, **more: Any) -> Any:
        if body.metadata.get("fails"):
            raise error
        return await start(caller, thread, body, **more)

    await home.add(metadata={"fails": True})
    await home.add(metadata={"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(home.starts, "start", fails_for_one)
        assert await home.after(MINUTE) == 1
        assert await home.after(0) == 0
    assert await home.after(0) == again
    assert len([record for record in caplog.records if repr(error) in record.getMessage()]) == 1


async def test_a_cron_that_is_due_for_the_last_time_runs_and_ends(home: Home) -> None:
    """Its year, the seventh field, has no later time. Others continue."""
    row = await home.add("1 12 1 5 * 0 2030")
    assert row.next_run_date == NOON + MINUTE
    await home.add("2 12 * * *")
    assert [await home.after(MINUTE) for _ in range(3)] == [1, 1, 0]
    assert (await home.crons.get("default", UUID(row.cron_id))).next_run_date is None


async def test_runs_of_a_cron_do_not_pile_up(home: Home) -> None:
    """A run that waits behind a long run stands for all times that pass meanwhile."""
    await home.add()
    assert [await home.after(MINUTE, begin=begins) for begins in (True, False)] == [1, 1]
    assert await home.after(MINUTE, begin=False) == 0
    await home.add()
    assert await home.after(MINUTE) == 1
    assert await home.after(MINUTE) == 2


async def test_deleting_a_thread_or_assistant_deletes_its_crons(home: Home) -> None:
    made, _ = await home.state.threads.create("default", _thread_body())
    row = await home.add(thread=UUID(made["thread_id"]))
    await home.state.threads.remove([made["thread_id"]])
    with pytest.raises(HTTPException, match="not found"):
        await home.crons.get("default", UUID(row.cron_id))
    assert await home.after(MINUTE) == 0


async def test_the_creator_of_a_cron_may_be_any_value_of_a_hook(home: Home) -> None:
    """Also what JSON does not have."""
    user = User({"identity": "ann", "groups": {"a"}})
    body = CronBody(assistant_id="steps", schedule="@daily")
    row = await home.crons.add(Requester("default", user, None), uuid4(), None, body, {})
    assert cron_json(row)["user_id"] == "ann"


# -- by clients ---------------------------------------------------------------------------


async def test_a_run_is_started_by_itself(client: LangGraphClient) -> None:
    """A client makes a cron of every second; its runs are in its thread, as it asked for."""
    thread = await a_thread(client)
    cron: Any = await client.crons.create_for_thread(
        thread, "steps", schedule="* * * * * *", input=IN, metadata={"of": "cron"}
    )
    assert cron["on_run_completed"] is None
    changed: Any = await client.crons.update(cron["cron_id"], metadata={"n": 1})
    assert changed["on_run_completed"] is None
    found: list[Any] = []
    while not found:
        await asyncio.sleep(0.02)
        found = await client.runs.list(thread, status="success")
    await client.crons.delete(cron["cron_id"])
    assert found[-1]["metadata"]["of"] == "cron"
    assert found[-1]["kwargs"]["config"]["configurable"]["cron_id"] == cron["cron_id"]
    values: Any = (await client.threads.get_state(thread))["values"]
    assert values["steps"][:2] == ["in", "first"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"schedule": "every day"}, "schedule 'every day'"),
        ({"schedule": "0 0 30 2 *"}, "failed to find next date"),
        ({"schedule": "H H * * *"}, "hash_id"),
        ({"timezone": "Mars/Olympus"}, "unknown time zone 'Mars/Olympus'"),
        ({"timezone": "../../etc/passwd"}, "unknown time zone"),
        ({"end_time": "2020-01-01T00:00:00Z"}, "no run would start"),
        ({"end_time": "tomorrow"}, "end_time"),
        ({"end_time": "9999-12-31T23:59:59-01:00"}, "end_time: year 10000 is out of range"),
        ({"end_time": "9999-12-31T23:59:59.999999Z"}, "end_time: year 10000 is out of range"),
        ({"end_time": "0001-01-01T00:00:00+14:00"}, "end_time: year 0 is out of range"),
        ({"interrupt_before": ["nowhere"]}, "the graph has no node 'nowhere'"),
        ({"on_run_completed": "burn"}, "on_run_completed"),
        ({"retries": 3}, "retries: not supported here"),
        ({"metadata": [1]}, "metadata: Input should be a valid dictionary"),
        ({"metadata": 0}, "metadata: Input should be a valid dictionary"),
    ],
)
async def test_a_cron_that_could_not_run_is_refused(
    http: httpx.AsyncClient, wrong: dict[str, Any], says: str
) -> None:
    """When it is made, and when it is changed to that."""
    body = {"assistant_id": "steps", "schedule": "0 0 1 1 *", "enabled": False}
    answer = await http.post("/runs/crons", json={**body, **wrong})
    assert (answer.status_code, says in answer.text) == (422, True), answer.text
    key = (await http.post("/runs/crons", json=body)).json()["cron_id"]
    answer = await http.patch(f"/runs/crons/{key}", json=wrong)
    assert (answer.status_code, says in answer.text) == (422, True), answer.text
    await http.delete(f"/runs/crons/{key}")


async def test_crons_of_other_tenants_are_not_found(http: httpx.AsyncClient) -> None:
    body = {"assistant_id": "steps", "schedule": "0 0 1 1 *"}
    key = (await http.post("/runs/crons", json=body)).json()["cron_id"]
    other = {"x-agentrt-tenant": "other"}
    for method, path, sent in (
        ("GET", f"/runs/crons/{key}", None),
        ("PATCH", f"/runs/crons/{key}", {"enabled": False}),
        ("DELETE", f"/runs/crons/{key}", None),
    ):
        answer = await http.request(method, path, json=sent, headers=other)
        assert answer.status_code == 404
    assert (await http.post("/runs/crons/count", json={}, headers=other)).json() == 0
    assert (await http.delete(f"/runs/crons/{key}")).status_code == 204


async def test_no_change_of_a_cron_is_lost_if_several_come_at_once(
    client: LangGraphClient,
) -> None:
    cron: Any = await client.crons.create("steps", schedule="0 0 1 1 *", input=IN)
    key = cron["cron_id"]
    changes = [client.crons.update(key, metadata={f"key {n}": n}) for n in range(10)]
    await asyncio.gather(*changes)
    changed: Any = await client.http.get(f"/runs/crons/{key}")
    assert {f"key {n}" for n in range(10)} <= changed["metadata"].keys()
    assert {f"key {n}" for n in range(10)} <= changed["payload"]["metadata"].keys()
    await client.crons.delete(key)
