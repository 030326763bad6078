"""Answers to parked programs that come back, while they do: none is lost, and none counts twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from agentrt import Context
from tests.serving.programs.parking import asks, of, served


async def test_two_answers_at_once_are_one(tmp_path: Path) -> None:
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        [question] = (await local.parked(run))["questions"]
        path = f"/v1/questions/{question['id']}"
        sent = [local.client.post(path, json={"answer": str(n)}) for n in range(5)]
        codes = [answer.status_code for answer in await asyncio.gather(*sent)]
        assert Counter(codes) == {200: 1, 409: 4}
        assert (await local.done(run))[1] == str(codes.index(200))


async def test_an_answer_that_comes_too_late_while_the_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question was parked as it was looked for, and is answered once that is known."""
    async with served(tmp_path / "j", asks) as local:
        read = local.parking._waits.question

        async def late(question_id: str) -> object:
            monkeypatch.setattr(local.parking._waits, "question", read)
            await local.answer(question, "yes")
            await local.done(run)
            return await read(question_id)

        run = await local.started("asks", input="tea")
        [question] = (await local.parked(run))["questions"]
        monkeypatch.setattr(local.parking._waits, "question", late)
        await local.answer(question, "no", 409)


async def test_a_question_whose_program_is_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code has begun again, and is yet to come to it: it is listed and found, whoever looks
    when, and may be answered.
    """
    goes_on, begins = asyncio.Event(), asyncio.Semaphore(0)

    async def code(ctx: Context) -> str:
        begins.release()
        await goes_on.wait()
        return str(await ctx.human("go on?"))

    async with served(tmp_path / "j", of(code)) as local:
        read = local.parking._waits.question

        async def late(question_id: str) -> object:
            monkeypatch.setattr(local.parking._waits, "question", read)
            answering.append(asyncio.create_task(local.answer(question, "yes")))
            await begins.acquire()
            while (found := await read(question_id)) is not None:
                pass
            return found

        goes_on.set()
        run = await local.started("main")
        [question] = (await local.parked(run))["questions"]
        goes_on.clear()
        await begins.acquire()
        answering: list[asyncio.Task[object]] = []
        monkeypatch.setattr(local.parking._waits, "question", late)
        found = await local.client.get(f"/v1/questions/{question['id']}")
        assert found.json() == question
        for program, seen in ((None, [question]), (run, [question]), ("main-9", [])):
            assert (
                await local.questions(**({} if program is None else {"program": program})) == seen
            )
        assert not answering[0].done()
        goes_on.set()
        await answering[0]
        assert await local.done(run) == "yes"


async def test_an_answer_that_its_program_has_not_seen_yet(tmp_path: Path) -> None:
    """The answer is not lost, because a program with an unread answer is not parked."""
    async with served(tmp_path / "j", asks) as local:
        run = await local.started("asks", input="tea")
        [question] = (await local.until(run, lambda run: run["questions"]))["questions"]
        if question["id"] in local.server.runtime.questions.open:
            local.clock.now += 3600.0
            local.server.runtime.questions.answer(question["id"], "yes")
            await local.parking.sweep()
        assert (await local.done(run))[1] == "yes"
