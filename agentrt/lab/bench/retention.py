"""What keeping programs' contexts saves when memory is short: vLLM's order against ours.

The same agents with tools arrive at the same times over the same KV cache, under each retention in
turn. *Lost* tokens had been computed for a program's earlier calls and were not in the cache when
it came back from a tool; after a human's answer none are counted. In virtual time vLLM's real
scheduler and KV-cache manager decide, and a step takes what the step-time model says; on a real
engine times are the machine's, noise included. `agentrt.lab.bench.retention_bfcl` has programs
that run real tools.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Protocol

from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.lab.backends.real import run_real
from agentrt.lab.backends.virtual import run_virtual
from agentrt.lab.engine.engines import LabEngine
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Ran
from agentrt.lab.reports.tables import Spread, markdown, percentile
from agentrt.lab.runs.grid import turns
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.generate import generate
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig

BASELINE = "lru"
SMALL_CPU = StepTimeModel(0.05, 0.75e-3, 1e-3, 0.0, "SmolLM2-135M, rounded", "one CPU core")
"""About what a step of a small model takes on one core (docs/results/overhead.md)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's time is lognormal: its median (seconds), its spread, and how often it is used."""

    median_s: float
    spread: float
    weight: int


TOOLS = {"search": Tool(2.0, 0.5, 6), "shell": Tool(6.0, 0.8, 3), "build": Tool(40.0, 0.7, 1)}
"""Ours. The median over all is near 3 s, and the mean near 9 s."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One program's end: its latency in seconds and in engine steps, and its calls' tokens.

    ``prefill_tokens`` of prompts were computed, for whatever reason. Returned and lost are
    counted at a tool's return, or between two calls, and not after a human's answer.
    """

    latency_s: float
    steps: int = 0
    prefill_tokens: int = 0
    returned_tokens: int = 0
    lost_tokens: int = 0
    preemptions: int = 0


class TimedProgram(Protocol):
    """A program that runs on a runtime itself, and when it arrives."""

    @property
    def arrives_s(self) -> float: ...

    async def run(self, runtime: Runtime) -> Ended: ...


@dataclass(frozen=True, slots=True)
class Result:
    """One run: tokens, latencies of programs, and how often calls were preempted.

    ``step_cpu_s`` is CPU time a step, of a virtual engine and what drives it.
    """

    returned_tokens: int
    lost_tokens: int
    mean_s: float
    p95_s: float
    preemptions: int = 0
    prefill_tokens: int = 0
    mean_steps: float = 0.0
    p95_steps: float = 0.0
    step_cpu_s: float = 0.0

    @classmethod
    def of_ran(cls, ran: Ran, *, in_steps: bool, step_cpu_s: float = 0.0) -> Result:
        """From a run of shapes; ``in_steps`` if a program's engine steps are of interest."""
        ends = [Ended(one.latency_s, one.steps if in_steps else 0) for one in ran.outcomes]
        used, humans = ran.counts.usage, ran.after_humans.usage
        return replace(
            cls.of(ends),
            returned_tokens=used.returned_tokens - humans.returned_tokens,
            lost_tokens=used.lost_tokens - humans.lost_tokens,
            preemptions=used.preemptions,
            prefill_tokens=used.uncached_tokens + used.recomputed_tokens,
            step_cpu_s=step_cpu_s,
        )

    @classmethod
    def of(cls, programs: Sequence[Ended]) -> Result:
        """From the ends of all programs."""
        seconds = [one.latency_s for one in programs]
        steps = [float(one.steps) for one in programs]
        return cls(
            sum(one.returned_tokens for one in programs),
            sum(one.lost_tokens for one in programs),
            statistics.fmean(seconds),
            percentile(seconds, 0.95),
            sum(one.preemptions for one in programs),
            sum(one.prefill_tokens for one in programs),
            statistics.fmean(steps),
            percentile(steps, 0.95),
        )


Results = dict[tuple[int, str], list[Result]]
"""By KV-cache blocks and retention, repeat by repeat."""
Run = Callable[[Sequence[ProgramShape], int, str], Result]
"""Runs programs over so many blocks under a retention."""


def agents(
    count: int, calls: int, rate: float, seed: int, gap_scale: float = 1.0
) -> list[ProgramShape]:
    """ReAct agents of the BFCL workload's sizes, with named tools, ``rate`` a second.

    Each is cut after so many calls. Tools take ``gap_scale`` times their time.
    """
    rng = Random(f"tools/{seed}")
    shapes = generate("react", count, seed)
    programs = [_with_tools(program, rng, gap_scale) for program in shapes]
    return poisson(_cut(programs, calls), rate, seed)


def recorded(
    programs: Sequence[ProgramShape], count: int, calls: int, rate: float, seed: int
) -> list[ProgramShape]:
    """``count`` programs of a trace, drawn without return, each cut after so many calls."""
    drawn = Random(f"drawn/{seed}").sample(list(programs), count)
    return poisson(_cut(drawn, calls), rate, seed)


def virtual(options: VirtualOptions, step_time: StepTimeModel, policy: str) -> Run:
    """Runs in virtual time; of ``options`` the blocks are replaced."""
    # Whatever is loaded or compiled at the first use: CPU time is measured below.
    run_virtual([ProgramShape("first", "", (CallShape(1),))], SchedulerConfig(), engine=options)

    def run(programs: Sequence[ProgramShape], blocks: int, retention: str) -> Result:
        config = SchedulerConfig(policy=policy, retention=retention)
        engine = replace(options, kv_blocks=blocks)
        began_s = time.process_time()
        ran = run_virtual(programs, config, engine=engine, step_time=step_time)
        cpu_s = time.process_time() - began_s
        return Result.of_ran(ran, in_steps=False, step_cpu_s=cpu_s / ran.counts.steps)

    return run


class RealRun:
    """Runs programs on one open runtime, whose engine's cache is emptied before."""

    def __init__(self, runtime: Runtime, config: SchedulerConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._runs = 0

    async def __call__(self, programs: Sequence[Any], retention: str) -> Result:
        """All programs to their end: shapes, or BFCL's tasks."""
        engine = self._runtime.executor
        assert isinstance(engine, VLLMEngine)
        await engine.configure(replace(self._config, retention=retention))
        await engine.forget_prefixes()
        self._runs += 1
        if isinstance(programs[0], ProgramShape):
            assert isinstance(engine, LabEngine)
            run = f"/run {self._runs}"
            return Result.of_ran(
                await run_real(engine, programs, run=run, watched=False), in_steps=True
            )
        return Result.of(await asyncio.gather(*(self._task(one) for one in programs)))

    async def _task(self, program: TimedProgram) -> Ended:
        await asyncio.sleep(program.arrives_s)
        return await program.run(self._runtime)


def measure(
    run: Run,
    traces: Sequence[Sequence[ProgramShape]],
    blocks: Sequence[int],
    retentions: Sequence[str],
    tell: Callable[[str], None],
) -> Results:
    """Every trace under every retention, in an order that changes with the trace."""
    results: Results = {}
    for size in blocks:
        for repeat, programs in enumerate(traces):
            for retention in turns(retentions, repeat):
                tell(f"{size} blocks, repeat {repeat + 1} of {len(traces)}: {retention}")
                result = run(programs, size, retention)
                results.setdefault((size, retention), []).append(result)
    return results


def table(results: Results) -> str:
    """Ratios to ``lru`` in the same repeat, as median (least-most); below 1 is better."""
    head = ("blocks", "retention", "lost of returned", *(f"{name}, ratio" for name in _SHOWN))
    order = sorted(results, key=lambda key: (key[0], key[1] != BASELINE, key[1] == "cost"))
    rows = [_row(results, blocks, retention) for blocks, retention in order]
    return markdown((*head, "mean s"), rows)


def ratios(results: Results) -> list[dict[str, object]]:
    """The medians of the table and the runs behind them, for a program to read.

    A ratio to what there is none of is None.
    """
    found: list[dict[str, object]] = []
    for (blocks, retention), mine in results.items():
        entry: dict[str, object] = {
            "blocks": blocks,
            "retention": retention,
            "lost_tokens": statistics.median(one.lost_tokens for one in mine),
            "returned_tokens": statistics.median(one.returned_tokens for one in mine),
            "runs": [asdict(one) for one in mine],
        }
        for name, value in _TOLD.items():
            ratio = _to_baseline(mine, results[blocks, BASELINE], value)
            entry[name] = ratio and ratio.median
        found.append(entry)
    return found


_SHOWN: dict[str, Callable[[Result], float]] = {
    "lost": lambda one: one.lost_tokens,
    "prefill": lambda one: one.prefill_tokens,
    "mean": lambda one: one.mean_s,
    "P95": lambda one: one.p95_s,
    "CPU a step": lambda one: one.step_cpu_s,
}
_TOLD: dict[str, Callable[[Result], float]] = {
    **_SHOWN,
    "mean steps": lambda one: one.mean_steps,
    "P95 steps": lambda one: one.p95_steps,
}


def _row(results: Results, blocks: int, retention: str) -> Sequence[object]:
    mine, stock = results[blocks, retention], results[blocks, BASELINE]
    share = statistics.median(one.lost_tokens / max(1, one.returned_tokens) for one in mine)
    columns = [_to_baseline(mine, stock, value) or "-" for value in _SHOWN.values()]
    seconds = statistics.median(one.mean_s for one in mine)
    return blocks, retention, f"{share:.1%}", *columns, f"{seconds:.0f}"


def _to_baseline(
    mine: Sequence[Result], stock: Sequence[Result], value: Callable[[Result], float]
) -> Spread | None:
    """None where the baseline has nothing to be compared with."""
    pairs = zip(mine, stock, strict=True)
    found = [value(ours) / value(theirs) for ours, theirs in pairs if value(theirs)]
    return Spread.of(found) if found else None


def _cut(programs: Sequence[ProgramShape], calls: int) -> list[ProgramShape]:
    return [replace(one, calls=one.calls[:calls], hint_tokens=None) for one in programs]


def _with_tools(program: ProgramShape, rng: Random, scale: float) -> ProgramShape:
    """The program with a tool, and its time, before each call that has a parent."""
    calls = []
    for call in program.calls:
        name = rng.choices(list(TOOLS), [tool.weight for tool in TOOLS.values()])[0]
        tool = TOOLS[name]
        gap_s = scale * tool.median_s * rng.lognormvariate(0.0, tool.spread)
        calls.append(replace(call, gap_s=gap_s, tool=name) if call.after else call)
    return replace(program, calls=tuple(calls))
