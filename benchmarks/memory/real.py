"""Contenders on real engines with little memory, one after the other."""

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
"""Tokens of a block: vLLM's attention on CPUs wants multiples of it. Virtual time has the same."""
SLOTS = 4


@dataclass(frozen=True, slots=True)
class Engines:
    """Runs contenders on engines with these options, of a ``model`` in words.

    Each has an engine of its own, with a KV cache of so many blocks as the virtual one has, and
    begins with an empty prefix cache and nothing learned.
    """

    base: EngineOptions
    model: str
    open: Open = started

    async def calibrated(self) -> StepTimeModel:
        """What its steps take now: loads are shares of that, and virtual time goes by it."""
        engine = lab_engine(self.base, self.base.scheduler)
        async with self.open(engine):
            return await Calibration(engine).run(1)

    async def run(self, load: MemoryLoad, one: Contender) -> RunOutcome:
        """A contender's run."""
        size = one.sized(load.options)
        flags = {
            "--num-gpu-blocks-override": size.kv_blocks,
            "--block-size": size.block_size,
            "--max-model-len": size.max_model_len,
            "--max-num-batched-tokens": size.max_num_batched_tokens,
        }
        more = [str(word) for pair in flags.items() for word in pair]
        base = replace(self.base, max_num_seqs=size.max_num_seqs, flags=(*self.base.flags, *more))
        engine = engine_for(one, base)
        async with self.open(engine):
            await warm_up(engine, one, load.programs)
            return await serve(engine, one, load.programs, gate=one.make_gate(size))
