"""The contenders of ``agentrt bench memory`` on real engines, in real time, one after the other.

Each has an engine of its own, with a KV cache of so many blocks as the virtual one has, and begins
with an empty prefix cache and nothing learned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.backends.real import run_real
from agentrt.lab.commands.calibrate import Calibration
from agentrt.lab.engine.engines import LabEngine, lab_engine, started
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import Ran
from agentrt.lab.runs.contenders import Stock
from agentrt.lab.runs.memory import Load
from agentrt.lab.runs.rivals import Rival
from agentrt.lab.workloads.arrivals import at_once
from agentrt.lab.workloads.shape import Cut

ON_CPU = 32
"""Tokens of a block: vLLM's attention on CPUs wants multiples of it. Virtual time has the same."""
SLOTS = 4
_WARM_UP = 3
"""So many programs run before those that count, cut after as many calls."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Runs contenders on engines with these options, of a ``model`` in words."""

    base: EngineOptions
    model: str
    open: Callable[[LabEngine], AbstractAsyncContextManager[object]] = started

    async def calibrated(self) -> StepTimeModel:
        """What its steps take now: loads are shares of that, and virtual time goes by it."""
        engine = lab_engine(self.base, self.base.scheduler)
        async with self.open(engine):
            return await Calibration(engine).run(1)

    async def run(self, load: Load, one: Rival) -> Ran:
        """A contender's run."""
        size, scheduling = one.sized(load.options), one.scheduling
        flags = {
            "--num-gpu-blocks-override": size.kv_blocks,
            "--block-size": size.block_size,
            "--max-model-len": size.max_model_len,
            "--max-num-batched-tokens": size.max_num_batched_tokens,
        }
        more = [str(word) for pair in flags.items() for word in pair]
        stock = scheduling if isinstance(scheduling, Stock) else None
        engine = lab_engine(
            replace(self.base, max_num_seqs=size.max_num_seqs, flags=(*self.base.flags, *more)),
            scheduling.scheduling if isinstance(scheduling, Stock) else scheduling,
        )
        async with self.open(engine):
            short = [Cut(calls=_WARM_UP).of(program) for program in load.programs[:_WARM_UP]]
            await run_real(engine, at_once(short), stock=stock, run="/warm-up")
            if not isinstance(scheduling, Stock):
                await engine.configure(scheduling)
            await engine.forget_prefixes()
            gate = None if one.gate is None else one.gate(size)
            return await run_real(engine, load.programs, stock=stock, gate=gate)
