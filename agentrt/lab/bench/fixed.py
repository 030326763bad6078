"""An executor whose calls all have the length that they allow: equal work on both sides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.request import Call, CallReport
from agentrt.scheduler.totals import ProgramTotals, Visits


class FixedLength:
    """``inner`` as an `Executor` that goes on to each call's ``max_tokens``, whatever it says."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        name: str = getattr(self._inner, "model", "")
        return name

    async def start(self, progress: Progress) -> None:
        await self._inner.start(progress)

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        longer = replace(call, spec=replace(call.spec, ignore_eos=True))
        return self._inner.generate(longer, stream=stream)

    async def aborted(self, call_id: str) -> CallReport:
        return await self._inner.aborted(call_id)

    async def end_program(
        self, program_id: str, totals: ProgramTotals | None = None
    ) -> Visits | None:
        return await self._inner.end_program(program_id, totals)

    async def snapshot(self) -> Mapping[str, Any]:
        return await self._inner.snapshot()

    async def close(self) -> None:
        await self._inner.close()
