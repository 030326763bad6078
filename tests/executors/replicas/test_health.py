"""An engine that works for a long time, or whose answer could not be read, counts as healthy."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrt.errors import EngineDiedError
from agentrt.executors.replicas import Health
from tests.executors.replicas.cast import Mortal


async def test_an_answer_that_a_busy_loop_has_not_read_counts() -> None:
    """A program blocks the loop again and again while the answer is on its way."""

    class Idle(Mortal):
        """An engine that uses no processor time, and answers after some passes of the loop."""

        async def snapshot(self) -> dict[str, object]:
            for _ in range(12):
                await asyncio.sleep(0)
            return {}

    async def block() -> None:
        while True:
            time.sleep(0.005)  # noqa: ASYNC251  # what a rude program does
            await asyncio.sleep(0)

    blocking = asyncio.create_task(block())
    await Health(stall_s=0.001, hang_s=0.002).check("replica-0", Idle(beats=False))
    blocking.cancel()


async def test_a_long_step_is_no_hang() -> None:
    class Busy(Mortal):
        async def snapshot(self) -> dict[str, object]:
            while self._used < 0.05:  # five questions after its pulse
                await asyncio.sleep(0)
            return {}

    engine = Busy(beats=True)
    await Health(stall_s=0.002, hang_s=30).check("replica-0", engine)
    assert engine._used > 0.04


async def test_an_engine_that_does_not_say_whether_it_works_is_given_its_time() -> None:
    """The engine is on another node, or a program blocks the loop that should read the engine's
    answer.
    """

    class Mute(Mortal):
        asked = 0

        async def cpu_seconds(self) -> float:
            self.asked += 1
            return await asyncio.Future()

        async def snapshot(self) -> dict[str, object]:
            while self.asked < 4:
                await asyncio.sleep(0)
            return {}

    engine = Mute()
    await Health(stall_s=0.001, hang_s=30).check("replica-0", engine)
    assert engine.asked == 4


@pytest.mark.parametrize(("says", "asked"), [((), 3), ((5.0, None, 5.0), 3)])
async def test_it_is_not_given_more(says: tuple[float | None, ...], asked: int) -> None:
    """The time in which the engine does not say whether it works counts. What it said before
    counts, too.
    """

    class Mute(Mortal):
        asked = 0

        async def cpu_seconds(self) -> float:
            self.asked += 1
            used = says[self.asked - 1] if self.asked <= len(says) else None
            return await asyncio.Future() if used is None else used

        async def snapshot(self) -> dict[str, object]:
            return await asyncio.Future()

    engine, health = Mute(), Health(stall_s=0.01, hang_s=0.06 if not says else 30)
    with pytest.raises(EngineDiedError):
        await health.check("replica-0", engine)
    assert engine.asked == asked
