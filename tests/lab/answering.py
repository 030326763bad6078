"""An engine of the laboratory that answers at once: what it is asked, and what it is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from agentrt.executors.base import Chunk, Notification
from agentrt.executors.chat_api import Frontend, Request, RequestFrontend
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallReport, Reply
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals
from tests.lab.virtual_world import text_of


class Engine:
    """Answers with as many tokens as were asked for, and notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.told: list[object] = []

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        yield Chunk("", Reply("", token_ids=(9,) * call.spec.max_tokens))

    async def probe(self, op: str) -> Any:
        self.told.append(op)
        if op == "start":
            return None
        reports = {
            call.call_id: asdict(
                CallReport(
                    service_s=1.0,
                    waiting_s=0.5,
                    arrived_step=index,
                    finished_step=index + 3,
                    prompt_tokens=10,
                    cached_tokens=4,
                )
            )
            for index, call in enumerate(self.calls)
        }
        return {"calls": reports, "steps": 20, "cpu_us": 100.0}

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        self.told.append(program_id)

    def notify(self, note: Notification) -> None:
        self.told.append(note.kind)


class WholeEngine(Engine):
    """It has sizes and a front end, too, whose tokens are characters. It is its own starting."""

    def __init__(self, most: int = 4096) -> None:
        super().__init__()
        self.max_model_len = most
        self.starts = 0

    def sizes(self) -> dict[str, int]:
        names = ("max_num_seqs", "kv_blocks", "block_size", "max_num_batched_tokens")
        return {**dict.fromkeys(names, 8), "max_model_len": self.max_model_len}

    async def configure(self, config: SchedulerConfig) -> None:
        self.told.append(config.policy)

    async def forget_prefixes(self) -> None:
        self.told.append("forget")

    @asynccontextmanager
    async def started(self, engine: object) -> AsyncIterator[None]:
        assert engine is self
        self.starts += 1
        yield

    async def front(self, engine: object) -> Frontend:
        return _Front(ExecutorInfo())


class _Front(RequestFrontend):
    async def render(self, request: Request) -> list[int]:
        assert "model" not in request
        return [ord(one) for one in text_of(request["messages"])]
