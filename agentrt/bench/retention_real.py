"""The retention benchmark on a real engine: its times are the machine's, noise included.

Programs are chains of calls with fixed output lengths; a prompt is what came before, the
model's own output included. Between two calls the program sleeps for its tool's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agentrt.bench.retention import Result
from agentrt.errors import ConfigError
from agentrt.executors.boundary import Boundary
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.virtual import tokens
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.scheduler.config import SchedulerConfig
from agentrt.simulator.machine import prompt_tokens
from agentrt.workloads.shape import ProgramShape

_VOCABULARY = 40_000
_FIRST = 1_000
"""Token ids that every model of interest has, and that are no special ones."""


class RealRun:
    """Runs programs on one open engine, whose cache is emptied before."""

    def __init__(self, engine: VLLMEngine, config: SchedulerConfig) -> None:
        self._engine = engine
        self._config = config
        self._runs = 0

    async def __call__(self, programs: Sequence[ProgramShape], retention: str) -> Result:
        """All programs to their end. Raises `ConfigError` for one that is no chain."""
        for program in programs:
            _check_chain(program)
        await self._engine.configure(replace(self._config, retention=retention))
        await self._engine.forget_prefixes()
        self._runs += 1
        ended = await asyncio.gather(*(self._program(program) for program in programs))
        reports = [report for _, reports in ended for report in reports]
        return Result.of(
            [latency for latency, _ in ended],
            sum(report.returned_tokens for report in reports),
            sum(report.lost_tokens for report in reports),
            sum(report.preemptions for report in reports),
        )

    async def _program(self, program: ProgramShape) -> tuple[float, list[CallReport]]:
        """Its latency (seconds), and the reports of its calls."""
        await asyncio.sleep(program.arrives_s)
        clock = asyncio.get_running_loop().time
        name, started = f"{program.program_id}/run {self._runs}", clock()
        prompt = _words(f"system of {program.type}", program.system_tokens)
        reports: list[CallReport] = []
        for index, call in enumerate(program.calls):
            if index:
                await self._tool(name, call.tool, call.gap_s)
            fresh = max(0, prompt_tokens(call) - len(prompt))
            prompt = [*prompt, *_words(f"prompt of {program.program_id}/{index}", fresh)]
            reply = await self._call(program, name, index, prompt)
            prompt = [*prompt, *reply.token_ids]
            reports.append(reply.report)
        latency = clock() - started
        await self._engine.end_program(name)
        return latency, reports

    async def _tool(self, name: str, tool: str, seconds: float) -> None:
        self._engine.boundary(Boundary(name, "tool", tool))
        await asyncio.sleep(seconds)
        self._engine.boundary(Boundary(name, "returned", tool))

    async def _call(self, program: ProgramShape, name: str, index: int, prompt: list[int]) -> Reply:
        shape = program.calls[index]
        call = Call(
            call_id=f"{name}/{index}",
            program_id=name,
            program_type=program.type,
            spec=CallSpec(
                prompt_token_ids=tuple(prompt), max_tokens=shape.output_tokens, ignore_eos=True
            ),
            node=shape.node,
        )
        replies = [
            chunk.reply
            async for chunk in self._engine.generate(call, stream=False)
            if chunk.reply is not None
        ]
        return replies[-1]


def _words(name: str, count: int) -> list[int]:
    """Tokens of a text of its own."""
    return [_FIRST + token * 7919 % _VOCABULARY for token in tokens(name, 0, count)]


def _check_chain(program: ProgramShape) -> None:
    for index, call in enumerate(program.calls):
        if index and (call.after != (index - 1,) or call.extends != index - 1):
            raise ConfigError(
                f"program {program.program_id}: call {index} does not follow the one before; "
                "on a real engine this benchmark runs chains only"
            )
