"""Runs contenders on real engines with little memory, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.backends.real import Open, engine_for, serve, warm_up
from agentrt.lab.commands.calibrate import Calibration
from agentrt.lab.engine.engines import lab_engine, started
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import Contender
from benchmarks.memory.cells import MemoryLoad

ON_CPU = 32
"""Tokens of a block. vLLM's attention on CPUs needs multiples of 32; virtual time uses the same."""
SLOTS = 4


@dataclass(frozen=True, slots=True)
class Engines:
    """Runs contenders on engines with these options. ``model`` is the model's name for tables.

    Each contender has an engine of its own, whose KV cache has as many blocks as the virtual
    engine's. The engine starts with an empty prefix cache and without a history.
    """

    base: EngineOptions
    model: str
    open: Open = started

    async def calibrated(self) -> StepTimeModel:
        """Measure the step times, which determine the capacity and the steps of virtual time."""
        engine = lab_engine(self.base, self.base.scheduler)
        async with self.open(engine):
            return await Calibration(engine).run(1)

    async def run(self, load: MemoryLoad, contender: Contender) -> RunOutcome:
        """Run the programs under a contender."""
        size = contender.sized(load.options)
        flags = {
            "--num-gpu-blocks-override": size.kv_blocks,
            "--block-size": size.block_size,
            "--max-model-len": size.max_model_len,
            "--max-num-batched-tokens": size.max_num_batched_tokens,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        base = replace(self.base, max_num_seqs=size.max_num_seqs, flags=(*self.base.flags, *words))
        engine = engine_for(contender, base)
        async with self.open(engine):
            await warm_up(engine, contender, load.programs)
            return await serve(engine, contender, load.programs, gate=contender.make_gate(size))
