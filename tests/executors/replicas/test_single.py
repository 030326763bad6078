"""A single engine that is replaced when it dies: its calls take longer, and nothing else
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrt.errors import EngineDiedError
from agentrt.executors.replicas import Backoff, Health, RestartedEngine
from agentrt.request import CallReport
from tests.executors.replicas.cast import AT_ONCE, TEXT, Cast, Mortal, call_of


@asynccontextmanager
async def opened(*engines: Mortal, **options: Any) -> AsyncIterator[tuple[RestartedEngine, Cast]]:
    cast = Cast(list(engines))
    one = RestartedEngine(lambda: cast(0), **{"backoff": AT_ONCE, **options})
    await one.start(lambda message: None)
    try:
        yield one, cast
    finally:
        await one.close()
        assert not one._supervisor._tasks
        assert not one._where


async def text_of(engine: RestartedEngine, *, stream: bool = True) -> str:
    return "".join([chunk.text async for chunk in engine.generate(call_of(), stream=stream)])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dies_after", [0, 1, 3])
async def test_a_call_goes_on_where_its_engine_died(dies_after: int, stream: bool) -> None:
    notices: list[str] = []
    async with opened(Mortal(dies_after), notice=notices.append) as (engine, cast):
        assert await text_of(engine, stream=stream) == TEXT
        died = stream or not dies_after
        assert len(cast.made) == 1 + died
        assert cast.made[0][1].closed == died
        assert engine.alive()
        assert (
            notices
            == ["the engine died and is restarted: killed", "the engine is back"][: 2 * died]
        )
        assert (await engine.snapshot()).get("deaths", 0) == died


async def test_it_is_not_well_while_it_starts_again_and_calls_wait() -> None:
    gate = asyncio.Event()

    class Slow(Mortal):
        async def start(self, progress: Any) -> None:
            await gate.wait()
            await super().start(progress)

    async with opened(Mortal(), Slow()) as (engine, cast):
        cast.latest(0).dead = True
        await engine._supervisor.check(engine.replicas[0])
        assert not engine.alive()
        assert await engine.snapshot() == {}
        reading = asyncio.create_task(text_of(engine))
        await asyncio.sleep(0)
        assert not reading.done()
        gate.set()
        assert await reading == TEXT
        assert engine.alive()


async def test_one_that_dies_again_and_again_is_given_up() -> None:
    mortals = (Mortal(0) for _ in range(9))
    async with opened(*mortals, backoff=Backoff(first_s=0.0, tries=2)) as (engine, cast):
        giving_up = asyncio.create_task(engine.given_up())
        with pytest.raises(EngineDiedError, match="no replica is left: the engine: killed"):
            await text_of(engine)
        assert await giving_up == "the engine: killed"
        assert len(cast.made) == 3
        assert not engine.alive()


async def test_one_that_hangs_lets_its_calls_and_questions_go() -> None:
    class Mute(Mortal):
        async def aborted(self, call_id: str) -> CallReport:
            await asyncio.Event().wait()
            raise AssertionError

        async def end_program(self, program_id: str, totals: Any = None) -> None:
            await asyncio.Event().wait()

    mute = Mute(hangs=True, beats=False)
    async with opened(mute, health=Health(stall_s=0.01, hang_s=0.1)) as (engine, cast):
        reading = asyncio.create_task(text_of(engine))
        asking = asyncio.create_task(engine.aborted("p/1"))
        ending = asyncio.create_task(engine.end_program("p"))
        async with asyncio.timeout(60):
            await mute._stuck.wait()
            await engine._supervisor.check(engine.replicas[0])
            assert await reading == TEXT
            assert await asking == CallReport()
            await ending
        assert cast.latest(0).ended == []


async def test_a_call_that_is_cancelled_while_its_engine_dies_is_cancelled() -> None:
    mute = Mortal(hangs=True)
    async with opened(mute) as (engine, _):
        reading = asyncio.create_task(text_of(engine))
        await mute._stuck.wait()
        reading.cancel()
        engine.replicas[0].cancel_scope.cancel("it died")
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await engine.aborted("p/0") == CallReport()
