"""Functions that run programs on a real engine in real time, under one contender after the other.

A prompt consists of the earlier prompt, the model's own output, and text that is made up or, for a
journal, recorded. The lengths of outputs come from the shapes of the programs. A `Probe` in the
engine core measures the calls in the same way for every scheduler.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from agentrt.errors import first_of
from agentrt.executors.base import Chunk, Notification, last_reply
from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.backends.base import Backend, BackendWrapper, CallEnded
from agentrt.lab.driver import Driver
from agentrt.lab.engine.engines import LabEngine, lab_engine
from agentrt.lab.engine.virtual import EngineCounts, StockPolicy, tokens
from agentrt.lab.outcome import Outcome, RunOutcome
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import vllm_version
from agentrt.lab.workloads.arrivals import at_once
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport, Reply
from agentrt.scheduler.table import ProgramTotals

_FIRST, _VOCABULARY = 1_000, 40_000
"""The first token id, and the number of token ids, that stand for ordinary text in the vocabularies
of all usual models.
"""
_MADE_UP = 1 << 32
"""A lower bound for the token ids that a trace makes up (`CallShape.prompt_ids`). No vocabulary has
such ids.
"""


class ProbedEngine(Protocol):
    """An `Executor` with a probe in its scheduler."""

    async def probe(self, op: str) -> Any:
        """Start or stop the probe: ``op`` is ``start`` or ``stop``."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """See `Executor.generate`."""

    def notify(self, note: Notification) -> None:
        """See `Executor.notify`."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> object:
        """See `Executor.end_program`."""


async def run_real(
    engine: ProbedEngine,
    programs: Sequence[ProgramShape],
    *,
    stock: Stock | None = None,
    wrap: BackendWrapper = lambda backend: backend,
    run: str = "",
    ended: Callable[[int], object] = lambda count: None,
) -> RunOutcome:
    """Run all programs to their end.

    ``run`` is a suffix of the programs' names, which must differ between runs on the same engine.
    ``wrap`` may put another backend in front of the engine. ``ended`` is called with the number of
    programs that have ended.

    Raises the engine's error if a call fails. The probe is not stopped in this case.
    """
    await engine.probe("start")
    backend = RealBackend(engine, stock, run, ended)
    try:
        ran = await backend.run(programs, wrap(backend))
    except BaseExceptionGroup as group:
        raise first_of(group) from group
    return backend.as_seen(ran, await engine.probe("stop"))


class RealBackend(Backend):
    """A backend with a started engine. Moments are seconds since the start of the run."""

    words = staticmethod(lambda name, count: _words(name, count))

    def __init__(
        self, engine: ProbedEngine, stock: Stock | None, run: str, ended: Callable[[int], object]
    ) -> None:
        self.run_name = run
        self._tell = ended
        self._engine = engine
        self._stock = stock
        self._tasks: asyncio.TaskGroup
        self._replies: asyncio.Queue[tuple[LiveProgram, int, Reply]] = asyncio.Queue()
        self._in_flight = 0
        self._ended: list[LiveProgram] = []
        self._began = 0.0

    async def run(self, programs: Sequence[ProgramShape], front: Backend) -> RunOutcome:
        """Run all programs to their end. ``front`` is this backend, or a backend in front of it."""
        driver = Driver(front, programs)
        self._began = self._clock()
        async with asyncio.TaskGroup() as self._tasks:
            while (arrival := front.next_moment(driver.next_arrival)) < math.inf or self._in_flight:
                await self._wait_until(arrival)
                driver.advance(self._clock() - self._began)
        return driver.result()

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()

    async def _wait_until(self, moment: float) -> None:
        """Wait until a moment, or until a reply arrives."""
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
            self._in_flight -= 1
            live.outputs[index] = reply.token_ids
            ended(live, index, reply.report)

    def submit(self, live: LiveProgram, index: int) -> None:
        self._in_flight += 1
        self._tasks.create_task(self._call(live, index))

    async def _call(self, live: LiveProgram, index: int) -> None:
        priority = 0 if self._stock is None else self._stock.priority(live, index)
        call = live.call(index, priority, with_prompt=True)
        prompt = call.spec.prompt_token_ids or ()
        if any(token >= _MADE_UP for token in prompt):
            ids = tuple(_word(token) if token >= _MADE_UP else token for token in prompt)
            call = replace(call, spec=replace(call.spec, prompt_token_ids=ids))
        reply = await last_reply(self._engine.generate(call, stream=False))
        self._replies.put_nowait((live, index, reply))

    def boundary(self, program_id: str, change: str, name: str) -> None:
        self._engine.notify(Notification(program_id, change, name))

    def program_ended(self, live: LiveProgram) -> None:
        self._ended.append(live)
        self._tell(len(self._ended))
        totals = ProgramTotals.of(live.row)
        self._tasks.create_task(self._end(totals))

    async def _end(self, totals: ProgramTotals) -> None:
        await self._engine.end_program(totals.program_id, totals)

    def as_seen(self, ran: RunOutcome, seen: Mapping[str, Any]) -> RunOutcome:
        """Return the run with the measurements of the probe."""
        counts = EngineCounts(steps=seen["steps"], cpu_us=seen["cpu_us"])
        outcomes: list[Outcome] = []
        for live, outcome in zip(self._ended, ran.outcomes, strict=True):
            for index in live.reports:
                live.reports[index] = CallReport(**seen["calls"][live.call_id(index)])
                counts.add(live.reports[index])
            times = outcome.arrived_s, outcome.ended_s
            outcomes.append(Outcome.of(live.shape, *times, live.reports))
        return replace(ran, outcomes=outcomes, engines=[counts])


# -- contenders on a real engine ------------------------------------------------------------

Open = Callable[[LabEngine], AbstractAsyncContextManager[object]]
"""A function that returns a context manager, which starts an engine, and stops it at the end."""
_REAL = """**Real time**: engines of vLLM {} on {}, one after the other;
other load on the machine affects the results."""
_SIZES = """Engine: {}, {max_num_seqs} batch slots, {kv_blocks} KV blocks of {block_size} tokens,
{max_num_batched_tokens} tokens a step at most, calls of up to {max_model_len}{}."""


def by_engine(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Group the contenders that can share an engine. The groups are in the order of their first
    contenders.
    """
    groups: dict[StockPolicy | None, list[Contender]] = {}
    for contender in contenders:
        key = None if contender.stock is None else contender.stock.scheduling
        groups.setdefault(key, []).append(contender)
    return list(groups.values())


def about_engine(name: str, flags: Sequence[str], sizes: Mapping[str, Any], machine: str) -> str:
    """Describe the real engine ``name`` and its ``machine``, for the head of a table."""
    shown_flags = f", {' '.join(flags)}" if flags else ""
    return f"{_REAL.format(vllm_version(), machine)}\n{_SIZES.format(name, shown_flags, **sizes)}"


def engine_for(contender: Contender, base: EngineOptions) -> LabEngine:
    """Return an engine with the contender's scheduler."""
    stock = contender.stock
    return lab_engine(base, contender.config or (stock.scheduling if stock else "fcfs"))


async def warm_up(
    engine: LabEngine, contender: Contender, programs: Sequence[ProgramShape]
) -> None:
    """Run a few short programs, because the first steps of an engine are slow."""
    await run_real(engine, at_once(programs), stock=contender.stock, run="/warm-up")


async def serve(
    engine: LabEngine,
    contender: Contender,
    programs: Sequence[ProgramShape],
    *,
    run: str = "",
    wrap: BackendWrapper = lambda backend: backend,
    ended: Callable[[int], object] = lambda count: None,
) -> RunOutcome:
    """Run the programs under a contender, with an empty prefix cache and without learned history.

    The other arguments are described in `run_real`.
    """
    if contender.config is not None:
        await engine.configure(contender.config)
    await engine.forget_prefixes()
    return await run_real(engine, programs, stock=contender.stock, wrap=wrap, run=run, ended=ended)


# -- made-up text ---------------------------------------------------------------------------


def _words(name: str, count: int) -> list[int]:
    return [_word(token) for token in tokens(name, 0, count)]


def _word(token: int) -> int:
    return _FIRST + token * 7919 % _VOCABULARY
