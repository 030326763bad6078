"""Runs programs' shapes on a virtual engine: real scheduling, virtual time, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrt.lab.driver import Driver, Progress
from agentrt.lab.engine.counts import EngineCounts
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualEngine, VirtualOptions
from agentrt.lab.outcome import Outcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.stock import Stock
from agentrt.lab.workloads.arrivals import Arrivals, Open
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals

__all__ = ["Progress", "VirtualRun", "run_virtual"]


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What came of a run: its programs in the order of their ends, and the engine's counts.

    ``after_humans`` counts those calls alone that came after a human's gap.
    """

    outcomes: list[Outcome]
    counts: EngineCounts
    after_humans: EngineCounts = field(default_factory=EngineCounts)


def run_virtual(
    programs: Sequence[ProgramShape] | Arrivals,
    config: SchedulerConfig | Stock,
    *,
    engine: VirtualOptions | None = None,
    step_time: StepTimeModel | None = None,
    progress: Progress | None = None,
) -> VirtualRun:
    """Run all programs to their end on one virtual engine, under our scheduler or vLLM's own.

    The same programs under the same settings give the same run. Raises `ConfigError`
    for a call that does not fit the engine.
    """
    arrivals = Open(programs) if isinstance(programs, Sequence) else programs
    return _Driver(arrivals, config, engine or VirtualOptions(), step_time or StepTimeModel()).run(
        progress
    )


class _Driver(Driver):
    """One engine: what is due is let in before each of its steps."""

    def __init__(
        self,
        arrivals: Arrivals,
        config: SchedulerConfig | Stock,
        options: VirtualOptions,
        step_time: StepTimeModel,
    ) -> None:
        super().__init__(arrivals, options, step_time)
        self._stock = config if isinstance(config, Stock) else None
        scheduling = config.scheduling if isinstance(config, Stock) else config
        self._engine = VirtualEngine(scheduling, options, step_time)

    @property
    def now(self) -> float:
        return self._engine.now

    def run(self, progress: Progress | None) -> VirtualRun:
        engine = self._engine
        self._welcome(self._arrivals.first())
        while self._coming or engine.busy:
            if not engine.busy:
                engine.wait_until(self._coming[0][0])
            while self._coming and self._coming[0][0] <= engine.now:
                self._arrive()
            if not engine.busy:
                continue
            for call_id, report in engine.step().items():
                if self._ended(call_id, report) and progress is not None:
                    progress(len(self.outcomes), self._known)
        return VirtualRun(self.outcomes, engine.counts, self.after_humans)

    def _submit(self, call: Call, prompt: Sequence[int]) -> None:
        self._engine.add(call, prompt)

    def _priority(self, live: LiveProgram, index: int) -> int:
        return 0 if self._stock is None else self._stock.priority(live, index)

    def _boundary(self, program_id: str, what: str, name: str) -> None:
        self._engine.boundary(program_id, what, name)

    def _forget(self, totals: ProgramTotals) -> None:
        self._engine.end_program(totals)
