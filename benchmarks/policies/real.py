"""The comparison on real engines in real time, one engine after the other.

vLLM's own scheduler, its priority policy, and agentrt's scheduler need three engines with the same
options. Each engine is started once in a repeat. Contenders that differ only in the settings of
agentrt's scheduler share an engine, which is reconfigured. The prefix cache is emptied before every
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.options import prepare_environment
from agentrt.lab.backends.real import (
    Open,
    about_engine,
    by_engine,
    engine_for,
    serve,
    warm_up,
)
from agentrt.lab.commands.progress import Meter, do_on_engines
from agentrt.lab.engine.engines import (
    LabEngine,
    started,
)
from agentrt.lab.engine.hardware import hardware
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.grid import RunResult, RunSpec, Setting, arrivals, turns
from agentrt.lab.runs.machine import Machine, vllm_version
from agentrt.lab.workloads.arrivals import Pressure, at_once
from benchmarks.policies.plan import Measured, Plan
from benchmarks.rivals.contenders import wrapper_of
from benchmarks.shapes import (
    engine_options,
    model_in_words,
)
from benchmarks.summaries import full_summary
from benchmarks.tables import about_workload
from benchmarks.workloads.source import Cut, WorkloadSource, short


@dataclass(slots=True)
class RealBench:
    """The runs of a comparison. ``results`` has the finished runs, also after an error.

    Loads that are shares of the engine's capacity are converted to rates. The capacity is measured
    first, with all programs of the first seed at once under vLLM's own scheduler.
    """

    base: EngineOptions
    source: WorkloadSource
    pressures: Sequence[Pressure]
    programs: int
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    open: Open
    progress: Callable[[int, str], None]
    results: list[RunResult] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)
    """The sizes of the first engine; the others have the same options."""
    per_s: float | None = None
    """The engine's capacity in programs per second; None if it was not measured."""

    async def run(self) -> None:
        """Do all runs. ``progress`` is called with the number of finished runs and a message."""
        groups = by_engine(self.contenders)
        for repeat, seed in enumerate(self.seeds):
            for group in turns(groups, repeat):
                engine = engine_for(group[0], self.base)
                self.progress(len(self.results), "loading an engine")
                async with self.open(engine):
                    await self._on(engine, turns(group, repeat), repeat, seed)

    async def _on(
        self, engine: LabEngine, order: Sequence[Contender], repeat: int, seed: int
    ) -> None:
        """Run a repeat of the contenders that share an engine."""
        self._fit(engine)
        await self._warm_up(engine, order[0], seed)
        for pressure in self.pressures:
            setting = Setting(self.source, self._in_programs(pressure), self.programs)
            for contender in order:
                turn = f"repeat {repeat + 1} of {len(self.seeds)}"
                message = f"{turn}, {setting.pressure}: {contender.name}"
                self.progress(len(self.results), message)
                spec = RunSpec(setting, seed, contender, _NO_MACHINE)
                run, wrap = f"/run {len(self.results)}", wrapper_of(contender, self._size())
                done = await serve(engine, contender, arrivals(spec), run=run, wrap=wrap)
                self.results.append(RunResult(spec, full_summary(done)))

    def _fit(self, engine: LabEngine) -> None:
        """Cut programs to the engine's maximum context."""
        self.sizes = self.sizes or engine.sizes()
        calls = self.source.cut.calls
        self.source = replace(self.source, cut=Cut(calls, engine.max_model_len))

    def _size(self) -> VirtualOptions:
        known = {field.name for field in fields(VirtualOptions)} & self.sizes.keys()
        return VirtualOptions(**{name: self.sizes[name] for name in known})

    async def _warm_up(self, engine: LabEngine, contender: Contender, seed: int) -> None:
        """Warm an engine up. If loads are shares of the capacity, also measure the capacity on the
        first engine.
        """
        programs = self.source.programs(self.programs, seed)
        await warm_up(engine, contender, short(programs))
        if self.per_s is None and self.pressures[0].kind == "load":
            self.progress(len(self.results), "measuring the capacity: all programs at once")
            done = await serve(engine, contender, at_once(programs), run="/capacity")
            self.per_s = done.summary().throughput_per_s

    def _in_programs(self, pressure: Pressure) -> Pressure:
        if self.per_s is None or pressure.kind != "load":
            return pressure
        return Pressure("rate", float(f"{pressure.value * self.per_s:.3g}"))


_NO_MACHINE = Machine()
"""The machine of a simulated run, which real runs do not need."""


# -- the command -----------------------------------------------------------------------

_SLOTS_ON_CPU = 4


@contextmanager
def measure(plan: Plan) -> Iterator[Measured]:
    """Do all runs on this machine, and yield the finished runs to report."""
    runs = len(plan.contenders) * len(plan.pressures) * len(plan.seeds)
    settings = plan.source, plan.pressures, plan.programs, plan.contenders, plan.seeds
    bench = RealBench(_engine_options(plan), *settings, started, Meter(runs).now)
    stop = do_on_engines(bench.run(), bench.results, runs)
    if stop is not None and not bench.results:  # no engine started in time
        raise stop
    yield _measured(plan, bench)
    if stop is not None:
        raise stop


def _engine_options(plan: Plan) -> EngineOptions:
    """Return the options of the engines, checked as far as possible before anything is loaded."""
    options, slots = plan.options, plan.options["max_num_seqs"]
    base = engine_options(options["model"], options["model_shape"], slots, plan.flags)
    prepare_environment(base)
    import torch

    if slots is None and not torch.cuda.is_available() and "--max-num-seqs" not in base.flags:
        return replace(base, max_num_seqs=_SLOTS_ON_CPU)
    return base


def _measured(plan: Plan, bench: RealBench) -> Measured:
    machine = hardware()
    model = model_in_words(plan.options["model"], plan.options["model_shape"])
    about = {
        "time": "real",
        "vllm": vllm_version(),
        "hardware": machine,
        "engine": {"model": model, "flags": list(plan.flags), **bench.sizes},
        "capacity_per_s": bench.per_s,
    }
    lines = [
        about_engine(model, plan.flags, bench.sizes, machine),
        about_workload(bench.source, plan.programs, plan.seeds),
    ]
    if bench.per_s is not None:
        lines.append(
            f"With all programs at once, stock served {bench.per_s:.3g} programs/s, which is 1x of "
            "--rate."
        )
    return Measured(about, "\n".join(lines), bench.results)
