"""The machine's clock is set, and it boots again, while programs wait: in memory, and parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import InterruptExpiredError
from agentrt.interrupts.events import EventSource, Subscription
from tests.doubles.machine import Machine, boots, is_set, passes
from tests.serving.programs.parking import Code, Local, of, served

HOUR_S = 3600.0
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Restart:
    """The server ends, and another begins after this."""

    meanwhile: Callable[[Machine], None]


Step = Callable[[Machine], None] | Restart
STORIES: dict[str, tuple[list[Step], float]] = {
    "nothing": ([passes(100)], 100),
    "set forward": ([passes(100), is_set(HOUR_S), passes(100)], 200),
    "set back": ([passes(100), is_set(-HOUR_S), passes(100)], 200),
    "to and fro": ([is_set(-9 * HOUR_S), passes(100), is_set(9 * HOUR_S), passes(100)], 200),
    "another process": ([passes(100), Restart(passes(100))], 200),
    "set forward, another process": ([is_set(HOUR_S), Restart(passes(100))], 100),
    "set forward while no process ran": ([Restart(is_set(HOUR_S)), passes(100)], 100),
    "set back while no process ran": ([passes(100), Restart(is_set(-HOUR_S))], 100),
    "to and fro between processes": (
        [Restart(is_set(HOUR_S)), passes(50), Restart(is_set(-HOUR_S)), passes(50)],
        100,
    ),
    "another boot": ([passes(100), Restart(boots(100))], 200),
    "set forward, another boot": ([is_set(HOUR_S), passes(100), Restart(boots(100))], 200),
    "set back, another boot": ([is_set(-HOUR_S), passes(100), Restart(boots(100))], 200),
    "another boot, set forward": ([Restart(boots(100)), is_set(HOUR_S), passes(100)], 200),
    "another boot, set back": ([Restart(boots(100)), is_set(-HOUR_S), passes(100)], 200),
    "two other boots": ([Restart(boots(100)), is_set(HOUR_S), Restart(boots(100))], 200),
    # How long it was off is not known, unless the clock is set later.
    "another boot with a clock that is behind": (
        [passes(100), Restart(boots(100, set_by=-HOUR_S)), passes(50)],
        150,
    ),
    "a clock that is behind until it is set": (
        [passes(100), Restart(boots(100, set_by=-HOUR_S)), passes(50), is_set(HOUR_S)],
        250,
    ),
}
"""What happens, and how much of a wait is over by that."""


async def sleeps(ctx: Context) -> str:
    await ctx.sleep(LIMIT_S)
    return "slept"


async def asks(ctx: Context) -> str:
    return str(await ctx.human("now?", timeout=LIMIT_S, default="nobody"))


async def asks_for_ever(ctx: Context) -> str:
    return str(await ctx.human("now?"))


KINDS: dict[str, tuple[Code, dict[str, Any]]] = {
    "sleep": (sleeps, {}),
    "question": (asks, {}),
    "deadline": (asks_for_ever, {"deadline": LIMIT_S}),
    "deadline of a sleep": (partial(lambda ctx: ctx.sleep(9 * LIMIT_S)), {"deadline": LIMIT_S}),
}
ENDS = {"sleep": "slept", "question": "nobody"}


@pytest.mark.parametrize("parked", [False, True], ids=["in memory", "parked"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("story", STORIES)
async def test_a_wait_takes_its_set_time(
    story: str, kind: str, parked: bool, tmp_path: Path
) -> None:
    """A second before its end it waits, and then it ends, however the clock was set."""
    (code, body), machine = KINDS[kind], Machine()
    steps, over_s = STORIES[story]
    opened = partial(served, tmp_path / "j", of(code), park_s=0.001 if parked else 0.0)

    async def waits(local: Local) -> None:
        if parked:
            await local.parked(run)
        else:
            await local.until(run, lambda _: is_waiting(local, run))
            await machine.looked()
        found = await local.run(run)
        assert found["state"] in ("running", "waiting for a human"), found
        assert found["parked"] == parked

    lives: list[list[Step]] = [[]]
    for step in steps:
        if isinstance(step, Restart):
            lives.append([])
        lives[-1].append(step)
    run = ""
    for number, life in enumerate(lives):
        if life and isinstance(life[0], Restart):
            life.pop(0).meanwhile(machine)  # type: ignore[union-attr]
        async with opened(machine=machine.clocks()) as local:
            run = run or await local.started("main", **body)
            await waits(local)
            for step in life:
                step(machine)  # type: ignore[operator]
                await waits(local)
            if number == len(lives) - 1:
                machine.passes(LIMIT_S - over_s - 1.0)
                await waits(local)
                machine.passes(1.0)
                found = await local.until(run, lambda run: run["state"] in ("done", "cancelled"))
                if "deadline" in kind:
                    assert found["error"]["type"] == "DeadlineExceeded"
                else:
                    assert found["result"] == ENDS[kind]


def is_waiting(local: Local, run: str) -> bool:
    live = local.server.runtime.runs.get(run)
    return live is not None and live.record is not None and bool(live.record.rests)


class Silence(EventSource):
    """Nothing happens, but may be ``waited_for``."""

    waited_for = False

    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        Silence.waited_for = True
        return Subscription()


@pytest.mark.parametrize("by", [HOUR_S, -HOUR_S])
async def test_a_wait_for_an_event_takes_its_set_time(by: float, tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        with pytest.raises(InterruptExpiredError):
            await ctx.event("news", timeout=LIMIT_S)
        return "none"

    machine = Machine()
    opened = partial(served, tmp_path / "j", of(code), park_s=0.0, events=Silence())
    for last in (False, True):
        async with opened(machine=machine.clocks()) as local:
            run = "main-1" if last else await local.started("main")
            while not Silence.waited_for:
                await asyncio.sleep(0)
            Silence.waited_for = False
            for _ in range(2):
                machine.is_set(by)
                machine.passes(100.0)
                await machine.looked()
                assert (await local.run(run))["state"] == "running"
            if last:
                machine.passes(LIMIT_S - 401.0)
                await machine.looked()
                assert (await local.run(run))["state"] == "running"
                machine.passes(1.0)
                assert await local.done(run) == "none"
            machine.is_set(by)


@pytest.mark.parametrize("parked", [False, True], ids=["in memory", "parked"])
async def test_people_see_the_time_of_day_as_it_is_set(parked: bool, tmp_path: Path) -> None:
    """When a question was asked, and when it expires: by the clock of the wall that they see."""
    machine = Machine()
    park_s = 0.001 if parked else 0.0
    async with served(tmp_path / "j", of(asks), park_s=park_s, machine=machine.clocks()) as local:
        run = await local.started("main")
        if parked:
            await local.parked(run)
        await local.until(run, lambda run: run["questions"])
        for by in (0.0, HOUR_S, -3 * HOUR_S):
            machine.is_set(by)
            machine.passes(10.0)
            [question] = await local.questions()
            [own] = (await local.run(run))["questions"]
            left = question["expires_at"] - machine.time_of_day
            passed = machine.time_of_day - question["created_at"]
            assert own == question
            assert left + passed == pytest.approx(LIMIT_S)
            assert passed == pytest.approx(machine.up - 500.0)


async def test_an_answer_in_time_counts_though_the_clock_was_set(tmp_path: Path) -> None:
    """By the time of day, the answer would be too late, or too early."""
    machine = Machine()
    async with served(tmp_path / "j", of(asks), machine=machine.clocks()) as local:
        first, second = [await local.started("main") for _ in range(2)]
        for run in (first, second):
            await local.parked(run)
        machine.is_set(HOUR_S)
        [question] = await local.questions(program=first)
        await local.answer(question, "me")
        assert await local.done(first) == "me"
        [question] = await local.questions(program=second)
        machine.is_set(-9 * HOUR_S)
        machine.passes(LIMIT_S)
        await local.answer(question, "me", 409)
        assert await local.done(second) == "nobody"
