"""Replays shapes of programs on a real engine, in real time.

A prompt is what came before in its program, the model's own output included, and then text of
its own; an output has the length that the shape says. Between calls a program sleeps for its
gap. How calls fared is what a `Probe` in the engine core saw, for every scheduler alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

from agentrt.executors.base import Chunk, Notification, last_reply
from agentrt.lab.engine.counts import EngineCounts
from agentrt.lab.engine.virtual import tokens
from agentrt.lab.outcome import Outcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.grid import Progress
from agentrt.lab.runs.stock import Stock
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport
from agentrt.scheduler.table import ProcessTable, ProgramTotals

_FIRST, _VOCABULARY = 1_000, 40_000
"""Token ids that every model of interest has, and that are no special ones."""


class Watched(Protocol):
    """What a replay asks of an engine: an `Executor` whose scheduler can be watched."""

    async def probe(self, op: str) -> Any:
        """``start`` or ``stop`` watching."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """As an `Executor`."""

    def notify(self, note: Notification) -> None:
        """As an `Executor`."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> object:
        """As an `Executor`."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a run: its programs, and what the engine counted."""

    outcomes: list[Outcome]
    counts: EngineCounts


async def replay(
    engine: Watched,
    programs: Sequence[ProgramShape],
    *,
    stock: Stock | None = None,
    run: str = "",
    progress: Progress | None = None,
) -> Replayed:
    """Run all programs to their end. ``run`` tells their names from those of other runs.

    Raises the engine's own error when a call fails; the engine is still watched then.
    """
    replayer = _Replayer(engine, stock, run, progress)
    await engine.probe("start")
    try:
        await replayer.all(programs)
    except BaseExceptionGroup as group:
        raise _first(group) from group
    return replayer.result(await engine.probe("stop"))


def _first(error: BaseException) -> BaseException:
    """The first that went wrong; the tasks beside it were cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Replayer:
    """The programs of one run."""

    def __init__(
        self, engine: Watched, stock: Stock | None, run: str, progress: Progress | None
    ) -> None:
        self._engine = engine
        self._stock = stock
        self._run = run
        self._progress = progress
        self._table = ProcessTable()
        self._began = 0.0
        self._ended: list[tuple[LiveProgram, float]] = []

    def _now(self) -> float:
        """Seconds since the run began."""
        return asyncio.get_running_loop().time() - self._began

    async def all(self, programs: Sequence[ProgramShape]) -> None:
        self._began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for program in programs:
                tasks.create_task(self._program(program))

    async def _program(self, shape: ProgramShape) -> None:
        await asyncio.sleep(max(0.0, shape.arrives_s - self._now()))
        row = self._table.start_program(
            f"{shape.program_id}{self._run}", shape.type, self._now(), tenant=shape.tenant
        )
        live = LiveProgram(shape, row, _words)
        async with asyncio.TaskGroup() as tasks:
            for index in live.first():
                tasks.create_task(self._call(live, index, tasks))
        self._ended.append((live, self._now()))
        self._table.end_program(row.program_id)
        await self._engine.end_program(row.program_id, ProgramTotals.of(row))
        if self._progress is not None:
            self._progress(len(self._ended))

    async def _call(self, live: LiveProgram, index: int, tasks: asyncio.TaskGroup) -> None:
        """A call after its gap; then those that waited for it."""
        await self._gap(live, index)
        priority = 0 if self._stock is None else self._stock.priority(live, index)
        call = live.emit(index, priority, with_prompt=True)
        self._table.call_arrived(live.row, call.call_id, self._now())
        reply = await last_reply(self._engine.generate(call, stream=False))
        live.outputs[index] = reply.token_ids
        live.reports[index] = reply.report
        self._table.call_ended(
            live.row, call.call_id, self._now(), live.path_s[index], reply.report
        )
        for child in live.children(index):
            tasks.create_task(self._call(live, child, tasks))

    async def _gap(self, live: LiveProgram, index: int) -> None:
        call, name = live.shape.calls[index], live.row.program_id
        if not call.gap_s:
            return
        away, back = ("human", "answered") if call.human else ("tool", "returned")
        if call.after:
            self._engine.notify(Notification(name, away, call.tool or "tool"))
        await asyncio.sleep(call.gap_s)
        if call.after:
            self._engine.notify(Notification(name, back, call.tool or "tool"))

    def result(self, seen: Mapping[str, Any]) -> Replayed:
        """With what the probe saw, for all schedulers alike."""
        counts = EngineCounts(steps=seen["steps"], cpu_us=seen["cpu_us"])
        outcomes = []
        for live, ended_s in self._ended:
            for index in live.reports:
                live.reports[index] = CallReport(**seen["calls"][live.call_id(index)])
                counts.add(live.reports[index])
            outcomes.append(_outcome(live, ended_s))
        return Replayed(outcomes, counts)


def _outcome(live: LiveProgram, ended_s: float) -> Outcome:
    shape, reports = live.shape, live.reports.values()
    return Outcome(
        program_id=shape.program_id,
        type=shape.type,
        tenant=shape.tenant,
        arrived_s=shape.arrives_s,
        ended_s=ended_s,
        ideal_s=nan,
        output_tokens=shape.output_tokens,
        service_s=sum(report.service_s for report in reports),
        waiting_s=sum(report.waiting_s for report in reports),
        tool_s=sum(call.gap_s for call in shape.calls),
        preemptions=sum(report.preemptions for report in reports),
        steps=live.engine_steps,
    )


def _words(name: str, count: int) -> list[int]:
    return [_FIRST + token * 7919 % _VOCABULARY for token in tokens(name, 0, count)]
