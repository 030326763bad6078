"""What retention saves when memory is short: agents with tools, vLLM's order against ours.

The same programs arrive at the same times over the same KV cache, under each retention in
turn. *Lost* tokens had been computed for a program's earlier calls and were not in the cache
when it came back. In virtual time vLLM's real scheduler and KV-cache manager decide, and a
step takes what the step-time model says; `agentrt.bench.retention_real` takes a real engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from agentrt.bench.table import Spread, markdown, percentile
from agentrt.executors.vllm.step_time import StepTimeModel
from agentrt.executors.vllm.virtual import VirtualOptions
from agentrt.scheduler.config import SchedulerConfig
from agentrt.simulator.virtual import run_virtual
from agentrt.workloads.arrivals import poisson
from agentrt.workloads.generate import generate
from agentrt.workloads.shape import ProgramShape

BASELINE = "lru"
SMALL_CPU = StepTimeModel(0.05, 0.75e-3, 1e-3, 0.0, "SmolLM2-135M, rounded", "one CPU core")
"""About what a step of a small model takes on one core (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's time is lognormal: its median (seconds), its spread, and how often it is used."""

    median_s: float
    spread: float
    weight: int


TOOLS = {"search": Tool(2.0, 0.5, 6), "shell": Tool(6.0, 0.8, 3), "build": Tool(40.0, 0.7, 1)}
"""Ours. The median over all is near 3 s, and the mean near 9 s."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run: tokens, latencies of programs (seconds), and how often calls were preempted."""

    returned_tokens: int
    lost_tokens: int
    mean_s: float
    p95_s: float
    preemptions: int = 0

    @classmethod
    def of(
        cls, latencies: Sequence[float], returned: int, lost: int, preemptions: int = 0
    ) -> Result:
        """From the programs' latencies and the calls' tokens."""
        mean_s = statistics.fmean(latencies)
        return cls(returned, lost, mean_s, percentile(latencies, 0.95), preemptions)


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

    def run(programs: Sequence[ProgramShape], blocks: int, retention: str) -> Result:
        config = SchedulerConfig(policy=policy, retention=retention)
        engine = replace(options, kv_blocks=blocks)
        ran = run_virtual(programs, config, engine=engine, step_time=step_time)
        latencies = [one.ended_s - one.arrived_s for one in ran.outcomes]
        counts = ran.counts
        return Result.of(latencies, counts.returned_tokens, counts.lost_tokens, counts.preemptions)

    return run


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
            at = repeat % len(retentions)
            for retention in [*retentions[at:], *retentions[:at]]:
                tell(f"{size} blocks, repeat {repeat + 1} of {len(traces)}: {retention}")
                result = run(programs, size, retention)
                results.setdefault((size, retention), []).append(result)
    return results


def table(results: Results) -> str:
    """Ratios to ``lru`` in the same repeat, as median (least-most); below 1 is better."""
    head = (
        "blocks",
        "retention",
        "lost of returned",
        "lost, ratio",
        "mean latency, ratio",
        "P95 latency, ratio",
        "mean s",
    )
    order = sorted(results, key=lambda key: (key[0], key[1] != BASELINE, key[1] == "cost"))
    return markdown(head, [_row(results, *key) for key in order])


def ratios(results: Results) -> list[dict[str, object]]:
    """The medians of the table, for a program to read; a ratio to no loss at all is None."""
    found = []
    for (blocks, retention), mine in results.items():
        lost, mean, p95 = _to_baseline(mine, results[blocks, BASELINE])
        found.append(
            {
                "blocks": blocks,
                "retention": retention,
                "lost_tokens": statistics.median(one.lost_tokens for one in mine),
                "returned_tokens": statistics.median(one.returned_tokens for one in mine),
                "lost": lost and lost.median,
                "mean": mean.median,
                "p95": p95.median,
            }
        )
    return found


def _row(results: Results, blocks: int, retention: str) -> Sequence[object]:
    mine = results[blocks, retention]
    lost, mean, p95 = _to_baseline(mine, results[blocks, BASELINE])
    share = statistics.median(one.lost_tokens / max(1, one.returned_tokens) for one in mine)
    seconds = statistics.median(one.mean_s for one in mine)
    return blocks, retention, f"{share:.1%}", lost or "-", mean, p95, f"{seconds:.0f}"


def _to_baseline(
    mine: Sequence[Result], stock: Sequence[Result]
) -> tuple[Spread | None, Spread, Spread]:
    pairs = list(zip(mine, stock, strict=True))
    lost = [ours.lost_tokens / theirs.lost_tokens for ours, theirs in pairs if theirs.lost_tokens]
    return (
        Spread.of(lost) if lost else None,
        Spread.of([ours.mean_s / theirs.mean_s for ours, theirs in pairs]),
        Spread.of([ours.p95_s / theirs.p95_s for ours, theirs in pairs]),
    )


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
