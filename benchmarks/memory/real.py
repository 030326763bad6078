"""Runs contenders on real engines, one after the other.

Each contender has an engine of its own. Its KV cache is as large as the contender's cache in
virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrt.cli.options import together
from agentrt.engines import EngineOptions
from agentrt.errors import ConfigError
from agentrt.executors.vllm.options import prepare_environment
from agentrt.lab.backends.real import Open, engine_for, serve, warm_up
from agentrt.lab.commands.calibrate import Calibration
from agentrt.lab.commands.options import Option, flag_option
from agentrt.lab.engine.engines import (
    lab_engine,
    started,
)
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import Contender
from benchmarks.cells import Load
from benchmarks.options import model_option, model_shape_option
from benchmarks.rivals.contenders import wrapper_of
from benchmarks.shapes import (
    engine_options,
    model_in_words,
)
from benchmarks.workloads.source import short

ON_CPU = 32
"""Tokens of a block, also in virtual time. vLLM's attention on CPUs needs multiples of 32."""
SLOTS = 4


@dataclass(frozen=True, slots=True)
class Engines:
    """A runner of contenders on engines with the options ``base``. ``model`` is the model's name
    for tables.

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

    async def run(self, load: Load, contender: Contender) -> RunOutcome:
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
            await warm_up(engine, contender, short(load.programs))
            return await serve(engine, contender, load.programs, wrap=wrapper_of(contender, size))


def real_options(about: str) -> Option:
    """Return ``--real``, which ``about`` describes, and the options that choose its model."""
    return together(
        flag_option("--real", about),
        model_option,
        model_shape_option,
    )


def engines_of(options: Mapping[str, Any]) -> Engines | None:
    """Return the real engines for ``--real``; None without this option. Options are checked before
    anything is loaded. Raises `ConfigError` for options that need ``--real``, and for options that
    exclude each other.
    """
    model, shape = options["model"], options["model_shape"]
    if not options["real"]:
        if model or shape:
            raise ConfigError(
                "--model and --model-shape: a model needs --real; add --real, or leave the model "
                "out"
            )
        return None
    if model and shape:
        raise ConfigError("--model and --model-shape exclude each other; leave one of them out")
    base = engine_options(model, shape, options["max_num_seqs"] or SLOTS, ())
    prepare_environment(base)
    return Engines(base, model_in_words(model, shape))
