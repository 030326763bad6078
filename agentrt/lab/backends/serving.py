"""Contenders on real engines: how one is opened, told of, warmed up, made as new, and served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.backends.gates import Gate
from agentrt.lab.backends.real import run_real
from agentrt.lab.engine.engines import LabEngine, lab_engine
from agentrt.lab.engine.virtual import StockPolicy
from agentrt.lab.outcome import Ran
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import vllm_version
from agentrt.lab.workloads.arrivals import at_once
from agentrt.lab.workloads.shape import Cut, ProgramShape

Open = Callable[[LabEngine], AbstractAsyncContextManager[object]]
"""Starts an engine for a body, and stops it whatever happens."""
_WARM_UP = 3
"""So many programs run before those that count, cut after as many calls."""


def by_engine(everyone: Sequence[Contender]) -> list[list[Contender]]:
    """Those that can share an engine, the first one's first."""
    groups: dict[StockPolicy | None, list[Contender]] = {}
    for one in everyone:
        groups.setdefault(None if one.stock is None else one.stock.scheduling, []).append(one)
    return list(groups.values())


def about_engine(name: str, flags: Sequence[str], sizes: Mapping[str, Any], machine: str) -> str:
    """The real engine ``name`` and its ``machine``, in two sentences."""
    more = f", {' '.join(flags)}" if flags else ""
    return f"{_REAL.format(vllm_version(), machine)}\n{_SIZES.format(name, more, **sizes)}"


_REAL = """**Real time**: engines of vLLM {} on {}, one after the other;
what else ran on the machine is in the figures."""
_SIZES = """Engine: {}, {max_num_seqs} batch slots, {kv_blocks} KV blocks of {block_size} tokens,
{max_num_batched_tokens} tokens a step at most, calls of up to {max_model_len}{}."""


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
    ended: Callable[[int], object] = lambda count: None,
) -> Ran:
    """A contender's run: with an empty prefix cache, and nothing learned. ``ended`` hears how many
    programs have ended.
    """
    if one.config is not None:
        await engine.configure(one.config)
    await engine.forget_prefixes()
    return await run_real(engine, programs, stock=one.stock, gate=gate, run=run, ended=ended)
