"""The retention benchmark on a real engine: its times are the machine's, noise included.

Programs come from shapes here, with made-up words and fixed output lengths: a prompt is what
came before, the model's own output included. `agentrt.lab.bench.retention_bfcl` has programs that
run real tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrt.executors.base import Notification, last_reply
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.lab.bench.retention import Ended, Result
from agentrt.lab.engine.virtual import tokens
from agentrt.lab.runs.machine import prompt_tokens
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport, CallSpec, Identity, Reply, Usage
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig

_VOCABULARY = 40_000
_FIRST = 1_000
"""Token ids that every model of interest has, and that are no special ones."""


class RealProgram(Protocol):
    """A program that a real engine can run."""

    @property
    def arrives_s(self) -> float:
        """When it arrives, seconds from the run's start."""

    async def run(self, runtime: Runtime, run: int) -> Ended:
        """Run it to its end; ``run`` tells runs of the same program apart."""


class RealRun:
    """Runs programs on one open runtime, whose engine's cache is emptied before."""

    def __init__(self, runtime: Runtime, config: SchedulerConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._runs = 0

    async def __call__(self, programs: Sequence[RealProgram], retention: str) -> Result:
        """All programs to their end."""
        engine = engine_of(self._runtime)
        await engine.configure(replace(self._config, retention=retention))
        await engine.forget_prefixes()
        self._runs += 1
        return Result.of(await asyncio.gather(*(self._program(one) for one in programs)))

    async def _program(self, program: RealProgram) -> Ended:
        await asyncio.sleep(program.arrives_s)
        return await program.run(self._runtime, self._runs)


def engine_of(runtime: Runtime) -> VLLMEngine:
    """The runtime's embedded engine."""
    assert isinstance(runtime.executor, VLLMEngine)
    return runtime.executor


@dataclass(frozen=True, slots=True)
class ShapeProgram:
    """A shape with words. Tools are slept; calls without an order between them run at once."""

    shape: ProgramShape

    @property
    def arrives_s(self) -> float:
        return self.shape.arrives_s

    async def run(self, runtime: Runtime, run: int) -> Ended:
        clock = asyncio.get_running_loop().time
        walk = _Walk(self.shape, f"{self.shape.program_id}/run {run}", engine_of(runtime))
        started = clock()
        reports = await walk.to_end()
        latency_s = clock() - started
        await engine_of(runtime).end_program(walk.name)
        return ended(latency_s, reports, walk.at_tools(reports))


def ended(latency_s: float, reports: Sequence[CallReport], at_tools: Sequence[CallReport]) -> Ended:
    """A program's end, from the reports of its calls, and of those that followed no human."""
    first = min(report.arrived_step for report in reports)
    used, returned = sum(reports, Usage()), sum(at_tools, Usage())
    return Ended(
        latency_s=latency_s,
        steps=max(report.finished_step for report in reports) - first,
        prefill_tokens=used.uncached_tokens + used.recomputed_tokens,
        returned_tokens=returned.returned_tokens,
        lost_tokens=returned.lost_tokens,
        preemptions=used.preemptions,
    )


@dataclass(slots=True)
class _Walk:
    """A shape on its way through an engine: its calls' texts as they become known."""

    shape: ProgramShape
    name: str
    engine: VLLMEngine
    texts: dict[int, list[int]] = field(default_factory=dict)

    async def to_end(self) -> list[CallReport]:
        tasks: list[asyncio.Task[CallReport]] = []
        async with asyncio.TaskGroup() as group:
            for index, shape in enumerate(self.shape.calls):
                before = [tasks[parent] for parent in shape.after]
                tasks.append(group.create_task(self._after(before, index)))
        return [task.result() for task in tasks]

    def at_tools(self, reports: Sequence[CallReport]) -> list[CallReport]:
        """The reports of the calls that came after no human."""
        pairs = zip(self.shape.calls, reports, strict=True)
        return [report for shape, report in pairs if not shape.human]

    async def _after(self, before: Sequence[asyncio.Task[CallReport]], index: int) -> CallReport:
        for task in before:
            await task
        await self._gap(index)
        prompt = self._prompt(index)
        reply = await self._call(index, prompt)
        self.texts[index] = [*prompt, *reply.token_ids]
        return reply.report

    async def _gap(self, index: int) -> None:
        shape = self.shape.calls[index]
        if not shape.gap_s:
            return
        begin, end = ("human", "answered") if shape.human else ("tool", "returned")
        self.engine.notify(Notification(self.name, begin, shape.tool))
        await asyncio.sleep(shape.gap_s)
        self.engine.notify(Notification(self.name, end, shape.tool))

    def _prompt(self, index: int) -> list[int]:
        shape = self.shape.calls[index]
        if shape.extends is None:
            ids = _words(f"system of {self.shape.type}", self.shape.system_tokens)
        else:
            ids = self.texts[shape.extends]
        wanted = prompt_tokens(shape)
        own = _words(f"prompt of {self.shape.program_id}/{index}", max(0, wanted - len(ids)))
        return [*ids[:wanted], *own]

    async def _call(self, index: int, prompt: list[int]) -> Reply:
        shape = self.shape.calls[index]
        identity = Identity(f"{self.name}/{index}", self.name, self.shape.type, node=shape.node)
        spec = CallSpec(
            prompt_token_ids=tuple(prompt), max_tokens=shape.output_tokens, ignore_eos=True
        )
        return await last_reply(self.engine.generate(Call(identity, spec), stream=False))


def _words(name: str, count: int) -> list[int]:
    """Tokens of a text of its own."""
    return [_FIRST + token * 7919 % _VOCABULARY for token in tokens(name, 0, count)]
