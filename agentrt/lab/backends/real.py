"""A real engine, in real time: shapes get words, and outputs have the lengths that they say.

A prompt is what came before in its program, the model's own output included, and then text of
its own. How calls fared is what a `Probe` in the engine core saw, for every scheduler alike.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from agentrt.executors.base import Chunk, Notification, last_reply
from agentrt.lab.backends.base import Backend, CallEnded
from agentrt.lab.backends.gates import Gate
from agentrt.lab.driver import Driver
from agentrt.lab.engine.virtual import EngineCounts, tokens
from agentrt.lab.outcome import Outcome, Ran
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport, Reply
from agentrt.scheduler.table import ProgramTotals

_FIRST, _VOCABULARY = 1_000, 40_000
"""Token ids that every model of interest has, and that are no special ones."""
_MADE_UP = 1 << 32
"""Above the ids of any vocabulary: those of traces are (`CallShape.prompt_ids`)."""


class Watched(Protocol):
    """What is asked of an engine: an `Executor` whose scheduler can be watched."""

    async def probe(self, op: str) -> Any:
        """``start`` or ``stop`` watching."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """As an `Executor`."""

    def notify(self, note: Notification) -> None:
        """As an `Executor`."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> object:
        """As an `Executor`."""


async def run_real(
    engine: Watched,
    programs: Sequence[ProgramShape],
    *,
    stock: Stock | None = None,
    gate: Gate | None = None,
    run: str = "",
    ended: Callable[[int], object] = lambda count: None,
) -> Ran:
    """Run all programs to their end. Their names end in ``run``, so that runs differ.

    A ``gate`` before the engine holds calls back. ``ended`` hears how many have ended.

    Raises the engine's own error when a call fails; the engine is still watched then.
    """
    await engine.probe("start")
    backend = Real(engine, stock, run, ended)
    try:
        ran = await backend.run(programs, gate)
    except BaseExceptionGroup as group:
        raise _first(group) from group
    return backend.as_seen(ran, await engine.probe("stop"))


def _first(error: BaseException) -> BaseException:
    """The first that went wrong; the tasks beside it were cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Real(Backend):
    """One started engine; a moment is so many seconds after the run's start."""

    words = staticmethod(lambda name, count: _words(name, count))

    def __init__(
        self, engine: Watched, stock: Stock | None, run: str, ended: Callable[[int], object]
    ) -> None:
        self.run_name = run
        self._tell = ended
        self._engine = engine
        self._stock = stock
        self._tasks: asyncio.TaskGroup
        self._replies: asyncio.Queue[tuple[LiveProgram, int, Reply]] = asyncio.Queue()
        self._under_way = 0
        self._ended: list[LiveProgram] = []
        self._began = 0.0

    async def run(self, programs: Sequence[ProgramShape], gate: Gate | None = None) -> Ran:
        driver = Driver(self, programs, gate)
        self._began = self._clock()
        async with asyncio.TaskGroup() as self._tasks:
            while (arrival := self.next_moment(driver.next_arrival)) < math.inf or self._under_way:
                await self._wait_until(arrival)
                driver.advance(self._clock() - self._began)
        return driver.result()

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()

    async def _wait_until(self, moment: float) -> None:
        """Until then, or until a reply is there."""
        deadline = None if moment == math.inf else self._began + moment
        try:
            async with asyncio.timeout_at(deadline):
                self._replies.put_nowait(await self._replies.get())
        except TimeoutError:
            return

    def next_moment(self, arrival: float) -> float:
        return arrival

    def serve(self, moment: float, ended: CallEnded) -> None:
        while not self._replies.empty():
            live, index, reply = self._replies.get_nowait()
            self._under_way -= 1
            live.outputs[index] = reply.token_ids
            ended(live, index, reply.report)

    def submit(self, live: LiveProgram, index: int) -> None:
        self._under_way += 1
        self._tasks.create_task(self._call(live, index))

    async def _call(self, live: LiveProgram, index: int) -> None:
        priority = 0 if self._stock is None else self._stock.priority(live, index)
        call = live.call(index, priority, with_prompt=True)
        prompt = call.spec.prompt_token_ids or ()
        if any(token >= _MADE_UP for token in prompt):  # they say what is alike, and no more
            said = tuple(_word(token) if token >= _MADE_UP else token for token in prompt)
            call = replace(call, spec=replace(call.spec, prompt_token_ids=said))
        reply = await last_reply(self._engine.generate(call, stream=False))
        self._replies.put_nowait((live, index, reply))

    def boundary(self, program_id: str, what: str, name: str) -> None:
        self._engine.notify(Notification(program_id, what, name))

    def program_ended(self, live: LiveProgram) -> None:
        self._ended.append(live)
        self._tell(len(self._ended))
        totals = ProgramTotals.of(live.row)
        self._tasks.create_task(self._end(totals))

    async def _end(self, totals: ProgramTotals) -> None:
        await self._engine.end_program(totals.program_id, totals)

    def as_seen(self, ran: Ran, seen: Mapping[str, Any]) -> Ran:
        """The run as the probe saw it."""
        counts = EngineCounts(steps=seen["steps"], cpu_us=seen["cpu_us"])
        outcomes: list[Outcome] = []
        for live, outcome in zip(self._ended, ran.outcomes, strict=True):
            for index in live.reports:
                live.reports[index] = CallReport(**seen["calls"][live.call_id(index)])
                counts.add(live.reports[index])
            times = outcome.arrived_s, outcome.ended_s
            outcomes.append(Outcome.of(live.shape, *times, live.reports))
        return replace(ran, outcomes=outcomes, engines=[counts])


def _words(name: str, count: int) -> list[int]:
    return [_word(token) for token in tokens(name, 0, count)]


def _word(token: int) -> int:
    return _FIRST + token * 7919 % _VOCABULARY
