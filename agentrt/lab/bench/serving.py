"""Contenders on real engines: how one is opened, warmed up, made as new, and asked to serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.backends.gates import Gate
from agentrt.lab.backends.real import run_real
from agentrt.lab.engine.engines import LabEngine, lab_engine
from agentrt.lab.outcome import Ran
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.workloads.arrivals import at_once
from agentrt.lab.workloads.shape import Cut, ProgramShape

Open = Callable[[LabEngine], AbstractAsyncContextManager[object]]
"""Starts an engine for a body, and stops it whatever happens."""
_WARM_UP = 3
"""So many programs run before those that count, cut after as many calls."""


def engine_for(one: Contender, base: EngineOptions) -> LabEngine:
    """An engine under the contender's scheduler."""
    return lab_engine(base, one.config or (one.stock.scheduling if one.stock else "fcfs"))


async def warm_up(engine: LabEngine, one: Contender, programs: Sequence[ProgramShape]) -> None:
    """The first steps of an engine are slow: they are those of a few short programs."""
    short = [Cut(calls=_WARM_UP).of(program) for program in programs[:_WARM_UP]]
    await run_real(engine, at_once(short), stock=one.stock, run="/warm-up")


async def serve(
    engine: LabEngine,
    one: Contender,
    programs: Sequence[ProgramShape],
    *,
    run: str = "",
    gate: Gate | None = None,
) -> Ran:
    """A contender's run: with an empty prefix cache, and nothing learned."""
    if one.config is not None:
        await engine.configure(one.config)
    await engine.forget_prefixes()
    return await run_real(engine, programs, stock=one.stock, gate=gate, run=run)
