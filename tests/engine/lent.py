"""Executors that outlive the runtime or the set that they are lent to, and what is known there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.cached_blocks import ShowsCachedBlocks
from agentrt.executors.replicas import ReplicaSet
from agentrt.request import Call
from agentrt.scheduler.totals import ProgramTotals, Visits


class Lent:
    """Does not start or close what it lends, and counts the ``calls``. A dead one stays dead."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    async def start(self, progress: Progress) -> None:
        alive = getattr(self._executor, "alive", None)
        if alive is not None and not alive():
            raise EngineDiedError("what was lent is dead")

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls += 1
        async with contextlib.aclosing(self._executor.generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        """Its owner closes it."""

    # Asked of the class, as protocols are.
    async def aborted(self, call_id: str) -> Any:
        return await self._executor.aborted(call_id)

    async def end_program(
        self, program_id: str, totals: ProgramTotals | None = None
    ) -> Visits | None:
        return await self._executor.end_program(program_id, totals)

    async def snapshot(self) -> Any:
        return await self._executor.snapshot()


async def knows_what_they_hold(replicas: ReplicaSet) -> None:
    """The router's index is what each engine holds when it is asked."""
    dispatcher = replicas.routing.dispatcher
    for replica in replicas.replicas:
        assert isinstance(replica.executor, ShowsCachedBlocks)
        found = await replica.executor.held()
        assert found is not None
        note, _ = found
        assert note.stored
        assert dispatcher.cached_blocks.blocks(replica.view.index) == set(note.stored)
