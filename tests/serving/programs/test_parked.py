"""Programs that do nothing but wait leave memory, and come back with the answer or their time."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import BaseModel, field_validator

from agentrt import Context, tool
from agentrt.journal.postgres import PostgresStore
from agentrt.serving import observability
from agentrt.serving.programs import parked
from tests.journal.killing import nodes
from tests.serving.langgraph.postgres import cluster
from tests.serving.programs.parking import WAIT_S, Local, asks, of, served


async def metrics(local: Local) -> dict[str, str]:
    lines = (await local.client.get("/metrics")).text.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


async def test_clients_see_no_difference(tmp_path: Path) -> None:
    """A parked run and its question are as before; with its answer it resumes, and pays for nothing
    twice. Its metrics are those of one program.
    """
    async with served(tmp_path / "j", asks, apis=[observability.api]) as local:
        run = await local.started("asks", input="tea")
        before = await local.until(run, lambda run: run["questions"])
        parked = await local.parked(run)
        assert local.server.runtime.runs == local.server.live == {}
        assert not local.server.under_way
        for found in (before, parked):
            assert found["state"] == "waiting for a human"
        same = {"parked": None, "questions": None}
        assert parked | same == before | same
        assert (parked["calls"], parked["output_tokens"]) == (1, 2)
        [question] = before["questions"]
        [again] = parked["questions"]
        assert {**again, "created_at": 0} == {**question, "created_at": 0}
        assert await local.questions() == await local.questions(program=run) == [again]
        assert await local.questions(program="asks-9") == []
        assert (await local.client.get(f"/v1/questions/{question['id']}")).json() == again
        await local.answer(question, 7, 422)
        assert local.server.runtime.runs == {}
        await local.answer(question, "yes")
        assert await local.done(run) == ["said tea", "yes", "said tea again"]
        assert len(local.engine.calls) == 2
        await local.answer(question, "no", 409)
        assert await local.questions() == []
        counted = await metrics(local)
    assert {name: value for name, value in counted.items() if "_ended_total" in name} == {
        'agentrt_programs_ended_total{state="done",tenant="default",type="asks"}': "1.0"
    }
    assert counted['agentrt_calls_total{tenant="default",type="asks"}'] == "2.0"


async def test_metrics_do_not_count_runs_of_an_earlier_server(tmp_path: Path) -> None:
    """A server counts its own calls, and not those in the journal."""
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        [question] = (await local.parked(run))["questions"]
    async with served(tmp_path / "j", asks, apis=[observability.api]) as local:
        await local.answer(question, "yes")
        await local.done(run)
        counted = await metrics(local)
    assert counted['agentrt_calls_total{tenant="default",type="asks"}'] == "1.0"
    assert counted['agentrt_output_tokens_total{tenant="default",type="asks"}'] == "4.0"


async def test_another_tenant_sees_nothing_of_it(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        await local.parked(run)
        assert await local.parking.describe("other", "asks", run) is None
        assert not await local.parking.cancel("other", "asks", run)
        assert not await local.parking.cancel("default", "other", run)


async def test_a_parked_run_that_is_cancelled_is_over(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        [question] = (await local.parked(run))["questions"]
        cancelled = await local.client.post(f"/v1/programs/asks/runs/{run}/cancel")
        assert cancelled.json()["state"] == (await local.run(run))["state"] == "cancelled"
        await local.answer(question, "yes", 404)
        assert await local.questions() == []
    async with served(tmp_path / "j", asks) as local:
        assert (await local.run(run))["state"] == "cancelled"
        assert local.server.runtime.runs == {}


async def test_a_finally_block_does_not_run_when_its_program_is_parked(tmp_path: Path) -> None:
    released: list[str] = []

    @tool(idempotent=True)
    async def release() -> None:
        released.append("once")

    async def code(ctx: Context) -> str:
        try:
            return str(await ctx.human("go on?"))
        except asyncio.CancelledError:
            return "gave up"
        finally:
            await ctx.tool(release)

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.parked(run))["questions"]
        assert released == []
        await local.answer(question, "yes")
        assert await local.done(run) == "yes"
    assert released == ["once"]


async def test_code_that_catches_the_parking_has_not_ended(tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        try:
            return str(await ctx.human("go on?"))
        except asyncio.CancelledError:
            return "gave up"

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        await local.parked(run)
    assert ("0", "program", "main", "open") in nodes(tmp_path / "j")
    async with served(tmp_path / "j", of(code)) as local:
        [question] = (await local.run(run))["questions"]
        await local.answer(question, "yes")
        assert await local.done(run) == "yes"


async def test_the_question_of_a_parked_program_may_be_a_reply(tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        return str(await ctx.human(await ctx.llm("tea")))

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.until(run, lambda run: run["questions"]))["questions"]
        [parked] = (await local.parked(run))["questions"]
        assert parked["question"] == question["question"]
        await local.answer(parked, "yes")
        assert await local.done(run) == "yes"


async def test_an_answer_to_a_program_that_is_being_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waits until no code of the program runs; clients see the run as parked."""
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 3600.0)  # the test holds the program
    leaves, may_leave = asyncio.Event(), asyncio.Event()

    async def code(ctx: Context) -> str:
        try:
            return str(await ctx.human("go on?"))
        finally:
            leaves.set()
            await may_leave.wait()

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.until(run, lambda run: run["questions"]))["questions"]
        while not leaves.is_set():
            await local.park()
        assert (await local.run(run))["parked"]
        assert [one["id"] for one in await local.questions()] == [question["id"]]
        answering = asyncio.create_task(local.answer(question, "yes"))
        for _ in range(10):
            await local.questions()
        assert not answering.done()
        may_leave.set()
        await answering
        assert await local.done(run) == "yes"


async def test_a_program_that_ignores_its_cancellation_is_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)

    async def code(ctx: Context) -> str:
        try:
            return str(await ctx.human("go on?"))
        except asyncio.CancelledError:
            await asyncio.Event().wait()
            raise

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        async with asyncio.timeout(WAIT_S):
            await local.parked(run)
        [question] = await local.questions()
        await local.answer(question, "yes")
        assert await local.done(run) == "yes"


async def test_after_a_restart_only_unparked_programs_resume(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        await local.parked(run)
        other = await local.started("asks", input="milk")
        await local.until(other, lambda run: run["questions"] or not run["parked"])
        while not await local.questions(program=other):
            await asyncio.sleep(0)
    async with served(tmp_path / "j", asks) as local:
        assert list(local.server.runtime.runs) == [other]
        [question] = (await local.run(run))["questions"]
        await local.answer(question, "yes")
        assert await local.done(run) == ["said tea", "yes", "said tea again"]
        assert len(local.engine.calls) <= 2


async def test_a_server_that_drains_does_not_wait_for_humans(tmp_path: Path) -> None:
    """It parks programs that wait for humans."""
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        await local.until(run, lambda run: run["questions"] or run["parked"])
        local.server.draining, local.server.park_s = True, 1e6
        await local.park()
        while local.server.under_way:
            await asyncio.sleep(0)
    async with served(tmp_path / "j", asks) as local:
        assert local.server.runtime.runs == {}
        assert (await local.run(run))["parked"]


def hours_later(path: Path) -> None:
    """The server was away for so long."""
    with closing(sqlite3.connect(path)) as journal:
        journal.execute("UPDATE agentrt_waits SET due = due - 7200")
        journal.execute("UPDATE agentrt_starts SET started = started - 7200")
        until = "json_set(options, '$.until', json_extract(options, '$.until') - 7200)"
        journal.execute(f"UPDATE agentrt_programs SET options = {until}")
        journal.commit()


async def test_times_come_while_a_program_is_parked(tmp_path: Path) -> None:
    """A sleep, and a question's timeout; who answers after that is too late."""

    async def code(ctx: Context) -> list[str]:
        await ctx.sleep(3600)
        return [await ctx.human("now?", timeout=3600, default="nobody"), str(await ctx.llm("end"))]

    path = tmp_path / "j"
    async with served(path, of(code)) as local:
        run = await local.started("main")
        assert (await local.parked(run))["state"] == "running"
    hours_later(path)
    async with served(path, of(code)) as local:
        assert (await local.run(run))["state"] == "running"
        await local.until(run, lambda run: run["state"] == "waiting for a human")
        [question] = (await local.parked(run))["questions"]
        assert question["expires_at"] > question["created_at"] + 3590
    hours_later(path)
    async with served(path, of(code)) as local:
        assert await local.questions() == []
        await local.answer(question, "me", 409)
        assert await local.done(run) == ["nobody", "said end"]
        await local.answer(question, "me", 409)


async def test_a_program_that_cannot_begin_delays_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five whose journal is damaged are due before it, and two are brought back in a sweep."""
    monkeypatch.setattr(parked, "_AT_ONCE", 2)

    async def code(ctx: Context) -> str:
        said = str(await ctx.llm("tea"))
        await ctx.sleep(3600)
        return said

    path = tmp_path / "j"
    async with served(path, of(code)) as local:
        runs = [await local.started("main") for _ in range(6)]
        for run in runs:
            await local.parked(run)
    hours_later(path)
    with closing(sqlite3.connect(path)) as journal, journal:
        journal.execute("UPDATE agentrt_ends SET place = 9 WHERE program <> ?", (runs[-1],))
        journal.execute("UPDATE agentrt_waits SET due = due + 1 WHERE program = ?", (runs[-1],))
    async with served(path, of(code)) as local:
        assert await local.done(runs[-1]) == "said tea"
        assert [(await local.run(run))["state"] for run in runs[:-1]] == ["failed"] * 5


async def test_a_deadline_comes_while_a_program_is_parked(tmp_path: Path) -> None:
    path = tmp_path / "j"
    async with served(path, asks) as local:
        run = await local.started("asks", input="tea", deadline=3600)
        [question] = (await local.parked(run))["questions"]
    hours_later(path)
    async with served(path, asks) as local:
        found = await local.until(run, lambda run: run["state"] == "cancelled")
        assert found["error"]["type"] == "DeadlineExceeded"
        assert await local.questions() == []
        await local.answer(question, "yes", 404)
        assert not local.server.runtime.runs


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("that is odd")
        return number


async def test_an_answer_that_only_the_program_can_refuse(tmp_path: Path) -> None:
    async def code(ctx: Context) -> int:
        return int((await ctx.human("which?", schema=Even)).number)

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.parked(run))["questions"]
        await local.answer(question, {"number": "x"}, 422)
        await local.answer(question, {"number": 3}, 422)
        await local.parked(run)
        await local.answer(question, {"number": 4})
        assert await local.done(run) == 4


async def test_a_program_that_waits_for_its_client_is_not_parked(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks) as local:
        path = "/v1/programs/asks/runs"
        waiting = asyncio.create_task(local.client.post(path, json={"input": "tea"}))
        while not (questions := await local.questions()):
            await asyncio.sleep(0)
        await local.park()
        assert len(local.server.runtime.runs) == 1
        await local.answer(questions[0], "yes")
        assert (await waiting).json()["state"] == "done"


async def test_parking_that_is_off(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks, park_s=0.0) as local:
        run = await local.started("asks", input="tea")
        [question] = (await local.until(run, lambda run: run["questions"]))["questions"]
        await local.park()
        assert not (await local.run(run))["parked"]
        await local.answer(question, "yes")
        assert (await local.done(run))[1] == "yes"


async def test_on_postgresql(tmp_path: Path) -> None:
    with cluster() as url:

        def opened() -> PostgresStore:
            return PostgresStore(url, "postgresql://here", {})

        async with served(opened, asks) as local:
            run = await local.started("asks", input="tea", deadline=3600)
            [question] = (await local.parked(run))["questions"]
        async with served(opened, asks) as local:
            assert local.server.runtime.runs == {}
            assert await local.questions() == [question]
            await local.park()
            await local.answer(question, "yes")
            assert await local.done(run) == ["said tea", "yes", "said tea again"]
            assert await local.questions() == []
