"""Answers to parked programs whose code has changed, and events whose programs were parked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Event, program
from agentrt.journal import JournalOptions
from agentrt.serving.programs import parked
from agentrt.serving.triggers import Trigger, api_with
from tests.interrupts.byhand import ByHand
from tests.serving.programs.parking import of, served


async def test_changed_code_is_detected_at_the_answer(tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        return str(await ctx.human("go on?"))

    async def other(ctx: Context) -> str:
        return str(await ctx.human("stop?"))

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.parked(run))["questions"]
    async with served(tmp_path / "j") as local:
        refused = await local.answer(question, "yes", 409)
        assert "does not serve program 'main'" in refused["error"]["message"]
    async with served(tmp_path / "j", of(other)) as local:
        refused = await local.answer(question, "yes", 409)
        assert "diverged from its journal" in refused["error"]["message"]
        assert (await local.run(run))["state"] == "failed"


@pytest.mark.parametrize("reruns", [False, True])
async def test_a_question_that_changed_code_does_not_ask_any_more(
    tmp_path: Path, reruns: bool
) -> None:
    """It rests elsewhere; or it runs anew from there, and waits for a tool. Who answers is told so
    while the run continues, and whoever answers again, too.
    """
    may_end = asyncio.Event()

    async def code(ctx: Context) -> None:
        await asyncio.gather(ctx.human("here?"), ctx.human("and there?"))

    async def rests(ctx: Context) -> None:
        await asyncio.gather(ctx.human("here?"))

    async def works(ctx: Context) -> None:
        await asyncio.gather(ctx.human("here?"), ctx.tool(may_end.wait))

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        asked = {one["question"]: one for one in (await local.parked(run))["questions"]}
    changed, options = of(works if reruns else rests), JournalOptions(reruns=reruns)
    async with served(tmp_path / "j", changed, options=options) as local:
        for _ in range(2):
            refused = await local.answer(asked["and there?"], "yes", 409)
            assert (
                "does not ask it any more, because its code has changed"
                in refused["error"]["message"]
            )
            assert (await local.run(run))["state"] in ("running", "waiting for a human")
        await local.answer(asked["here?"], "yes")
        may_end.set()
        await local.done(run)


async def test_a_question_that_is_not_asked_again_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "_ASKS_WITHIN_S", 0.1)
    may_ask = asyncio.Event()

    async def code(ctx: Context) -> str:
        await may_ask.wait()
        return str(await ctx.human("go on?"))

    may_ask.set()
    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        [question] = (await local.parked(run))["questions"]
        may_ask.clear()
        refused = await local.answer(question, "yes", 409)
        assert "within 0.1 s; its code has changed, or is slow" in refused["error"]["message"]
        monkeypatch.undo()  # a program that is parked again meanwhile gets the time that it needs
        may_ask.set()
        await local.until(run, lambda run: run["questions"])
        await local.answer(question, "yes")
        assert await local.done(run) == "yes"


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_events_program_that_fails_after_it_was_parked(
    tmp_path: Path, restarts: bool
) -> None:
    """Its event is kept for people once, with the reason: in this server, or in the next one."""

    @program
    async def reacts(ctx: Context, event: dict[str, Any]) -> None:
        raise ValueError(await ctx.human(f"{event['topic']}?"))

    happened, apis = Event("oven", 300), [api_with([Trigger("#", "reacts")], pytest.fail)]
    sources = [ByHand(happened), ByHand()]
    async with served(tmp_path / "j", reacts, events=sources[0], apis=apis) as local:
        while not (questions := await local.questions()):
            await asyncio.sleep(0)
        [question] = questions
        while local.server.runtime.runs:
            await local.park()
        if not restarts:
            await local.answer(question, "too hot")
            await local.until("reacts-1", lambda run: run["state"] == "failed")
    async with served(tmp_path / "j", reacts, events=sources[1], apis=apis) as local:
        if restarts:
            await local.answer(question, "too hot")
            await local.until("reacts-1", lambda run: run["state"] == "failed")
    letter = (happened, "run reacts-1 failed: ValueError: too hot", "reacts", "default")
    here = sources.pop(restarts)
    assert (here.refused, sources[0].refused) == ([letter], [])
