"""Runs of programs on one backend, in short."""

from __future__ import annotations

from collections.abc import Sequence

from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import Stock
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler import SchedulerConfig
from benchmarks.steps import Steps


def run_virtual(
    programs: Sequence[ProgramShape],
    scheduling: SchedulerConfig | Stock,
    *,
    engine: VirtualOptions | None = None,
    step_time: StepTimeModel | None = None,
) -> RunOutcome:
    return drive(Virtual(scheduling, engine, step_time), programs)


def simulate(
    programs: Sequence[ProgramShape], config: SchedulerConfig, *, batch: int, step_s: float
) -> RunOutcome:
    return drive(Steps(config, batch, step_s), programs)
