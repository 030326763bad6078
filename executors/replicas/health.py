"""Whether an engine is well: it is asked, and one that owes an answer must show that it works.

A long step keeps an engine from answering and is no fault; it costs processor time. An engine
that neither answers nor uses any has been stopped, or waits for what will never come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Executor

_TURNS = 20


@dataclass(frozen=True, slots=True)
class Health:
    """An engine is asked every ``every_s``, and may owe its answer for so long (seconds).

    One that uses no processor time for ``stall_s`` meanwhile counts as dead, and so does any
    after ``hang_s``. Those that cannot say how much they use have ``hang_s``.
    """

    every_s: float = 2.0
    stall_s: float = 3.0
    hang_s: float = 60.0

    async def ask(self, name: str, engine: Executor) -> None:
        """Return when the engine has answered. Raises `EngineDiedError`, or what it raises."""
        if not engine.alive():
            raise EngineDiedError(f"{name} is not alive any more")
        answer = asyncio.ensure_future(_answer(engine))
        try:
            await self._wait(name, engine, answer)
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _wait(self, name: str, engine: Executor, answer: asyncio.Future[None]) -> None:
        owed, used = 0.0, None
        while owed < self.hang_s:
            patience = min(self.stall_s, self.hang_s - owed)
            await asyncio.wait([answer], timeout=patience)
            await _read_what_is_there()
            if answer.done():
                return answer.result()
            owed += patience
            before, used = used, await self._cpu_seconds(engine)
            if used is not None and used == before:
                raise EngineDiedError(
                    f"{name} has not answered for {owed:g} s and does not work: it was stopped, "
                    "or waits without end"
                )
        raise EngineDiedError(f"{name} has not answered for {self.hang_s:g} s")

    async def _cpu_seconds(self, engine: Executor) -> float | None:
        """Processor time used so far; -1 where the engine cannot even say that."""
        try:
            async with asyncio.timeout(self.stall_s):
                return await engine.cpu_seconds()
        except TimeoutError:
            return -1.0


async def _read_what_is_there() -> None:
    """A program may have kept this loop busy: the answer may have come, and not be read yet."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _answer(engine: Executor) -> None:
    await engine.snapshot()
