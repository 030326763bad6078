"""Engines that die, hang or do not start, as a test requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agentrt.errors import EngineDiedError, EngineStartError
from agentrt.executors.base import Chunk, Executor, Notification, Progress
from agentrt.executors.replicas import Backoff
from agentrt.request import Call, CallSpec, Identity
from tests.doubles.scripted import ScriptedExecutor

TEXT = "one two three four five"
AT_ONCE = Backoff(first_s=0.0, tries=2)


class Mortal(ScriptedExecutor):
    """An engine that dies after ``dies_after`` chunks of its first call. An engine that is ``lame``
    does not start.

    An engine that ``hangs`` answers nothing from its first call on. ``beats`` says whether it then
    uses processor time; None means that it does not tell.
    """

    def __init__(
        self,
        dies_after: int | None = None,
        *,
        lame: bool = False,
        text: str = TEXT,
        hangs: bool = False,
        beats: bool | None = None,
        model: str = "scripted",
    ) -> None:
        super().__init__(lambda call: text, model=model)
        self.dies_after = dies_after
        self.lame = lame
        self.hangs = hangs
        self.dead = False
        self.closed = False
        self.notes: list[Notification] = []
        self._stuck = asyncio.Event()
        self._used = 0.0
        self._beats = beats

    async def start(self, progress: Progress) -> None:
        if self.lame:
            raise EngineStartError("no memory")
        await super().start(progress)

    def alive(self) -> bool:
        return not self.dead

    def notify(self, note: Notification) -> None:
        self.notes.append(note)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        count = 0
        async with aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                if self.dies_after is not None and count >= self.dies_after:
                    self.dead = True
                    raise EngineDiedError("killed")
                count += 1
                yield chunk
                if self.hangs:
                    await self._hang()

    async def snapshot(self) -> Any:
        if self._stuck.is_set():
            await asyncio.Event().wait()
        return await super().snapshot()

    async def close(self) -> None:
        self.closed = True
        await asyncio.sleep(0)
        await super().close()

    async def _hang(self) -> None:
        self._stuck.set()
        await asyncio.Event().wait()

    async def cpu_seconds(self) -> float | None:
        if self._beats:
            self._used += 0.01
        return None if self._beats is None else self._used


class Cast:
    """A factory of engines. A replica gets the engines of its part, one after another, and then
    healthy engines.
    """

    def __init__(self, *parts: list[Mortal]) -> None:
        self.parts = list(parts)
        self.models = [part[0].model if part else "scripted" for part in parts]
        self.made: list[tuple[int, Mortal]] = []

    def __call__(self, index: int) -> Executor:
        part = self.parts[index]
        mortal = part.pop(0) if part else Mortal(model=self.models[index])
        self.made.append((index, mortal))
        return mortal

    def latest(self, index: int) -> Mortal:
        """Return the engine that a replica has now."""
        return [mortal for owner, mortal in self.made if owner == index][-1]


def call_of(number: int = 0, program: str = "p", model: str | None = None) -> Call:
    spec = CallSpec(max_tokens=64, model=model)
    return Call(Identity(f"{program}/{number}", program, "t"), spec)
