"""An engine that answers at once. Commands import it: it needs nothing of pytest's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from agentrt.engines import EngineOptions
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallReport, Reply


class EchoEngine(Executor):
    """Answers each call with its last message. A call that says 'hang' never ends.

    What the options leave open it settles when it starts, as vLLM does.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.model = options.model or "echo"
        self.max_num_seqs = options.max_num_seqs
        self.closed = False

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,), self.max_num_seqs)

    async def start(self, progress: Progress) -> None:
        progress("warming up")
        self.max_num_seqs = self.max_num_seqs or 16

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.messages
        text = str(call.spec.messages[-1]["content"])
        if text == "hang":
            await asyncio.Event().wait()
        report = CallReport(service_s=0.5, steps=2, prompt_tokens=3, output_tokens=2)
        yield Chunk(text, Reply(text, report=report))

    async def snapshot(self) -> Mapping[str, Any]:
        return {"programs": [], "steps": 7}

    async def close(self) -> None:
        self.closed = True
