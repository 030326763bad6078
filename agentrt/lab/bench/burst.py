"""A burst of long and short programs at once on a real engine: what each policy makes of it.

Every policy runs the same programs in the same order, with outputs of fixed length, on
one engine whose prefix cache is emptied in between; policies alternate within a repeat.
Latencies are counted in engine steps, which a noisy machine does not change, and in
seconds. A program's ideal is its latency with the engine to itself, measured first.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.lab.reports.tables import Spread, markdown, percentile
from agentrt.program import Context, Program
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig

BASELINE = "fcfs"
UNITS = ("steps", "s")


@dataclass(frozen=True, slots=True)
class Shape:
    """A program of ``calls`` calls in a row, each ``tokens`` long, over one growing chat."""

    name: str
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Burst:
    """How many programs of which shape arrive at once."""

    shapes: Mapping[Shape, int]

    def order(self, seed: int) -> list[Shape]:
        """All programs, in an order drawn with ``seed``."""
        programs = [shape for shape, count in self.shapes.items() for _ in range(count)]
        random.Random(seed).shuffle(programs)
        return programs


LONG = Shape("long", 4, 128)
SHORT = Shape("short", 2, 16)
Latency = dict[str, float]
"""One program's latency by unit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy in one repeat: mean, P95 and slowdown by unit, and what it cost."""

    mean: Latency
    p95: Latency
    slowdown: Latency
    preemptions: int
    recomputed_tokens: int


def chat_program(shape: Shape, topic: int) -> Program:
    """The program of a shape; ``topic`` tells its prompt from those of the others."""

    async def converse(ctx: Context) -> None:
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": f"Tell me about the number {topic}."}
        ]
        for _ in range(shape.calls):
            reply = await ctx.llm(chat, max_tokens=shape.tokens, ignore_eos=True)
            chat += [reply.message, {"role": "user", "content": "Go on."}]

    return Program(converse, shape.name)


class BurstBench:
    """Runs bursts on one open runtime and keeps every outcome."""

    def __init__(
        self,
        runtime: Runtime,
        engine: VLLMEngine,
        config: SchedulerConfig,
        burst: Burst,
        tell: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._config = config
        self._burst = burst
        self._tell = tell
        self._ideal: dict[Shape, Latency] = {}
        self.outcomes: dict[str, list[Outcome]] = {}

    async def run(self, policies: Sequence[str], repeats: int, seed: int) -> None:
        """All policies, ``repeats`` times, in an order that changes with the repeat."""
        await self._measure_ideals()
        for repeat in range(repeats):
            turn = [*policies[repeat % len(policies) :], *policies[: repeat % len(policies)]]
            for policy in turn:
                self._tell(f"repeat {repeat + 1} of {repeats}: {policy}")
                outcome = await self._once(policy, self._burst.order(seed + repeat))
                self.outcomes.setdefault(policy, []).append(outcome)

    async def _measure_ideals(self) -> None:
        for shape in [shape for shape, count in self._burst.shapes.items() if count]:
            self._tell(f"a {shape.name} program alone")
            await self._prepare(BASELINE)
            (self._ideal[shape],), _ = await self._latencies([shape])

    async def _once(self, policy: str, order: Sequence[Shape]) -> Outcome:
        await self._prepare(policy)
        latencies, rows = await self._latencies(order)
        by_unit = {unit: [latency[unit] for latency in latencies] for unit in UNITS}
        slow = {
            unit: statistics.fmean(
                latency[unit] / self._ideal[shape][unit]
                for latency, shape in zip(latencies, order, strict=True)
            )
            for unit in UNITS
        }
        return Outcome(
            mean={unit: statistics.fmean(values) for unit, values in by_unit.items()},
            p95={unit: percentile(values, 0.95) for unit, values in by_unit.items()},
            slowdown=slow,
            preemptions=sum(row.usage.preemptions for row in rows),
            recomputed_tokens=sum(row.usage.recomputed_tokens for row in rows),
        )

    async def _prepare(self, policy: str) -> None:
        await self._engine.configure(replace(self._config, policy=policy))
        await self._engine.forget_prefixes()

    async def _latencies(self, order: Sequence[Shape]) -> tuple[list[Latency], list[Any]]:
        programs = [chat_program(shape, topic) for topic, shape in enumerate(order)]
        runs = [self._runtime.start(program) for program in programs]
        for run in runs:
            await run.wait()
        reports = [run.report(self._runtime.now()) for run in runs]
        latencies = [{"steps": float(r.last_step - r.first_step), "s": r.wall_s} for r in reports]
        return latencies, reports

    # -- the table ---------------------------------------------------------------------

    def table(self) -> str:
        """Ratios to FCFS, repeat by repeat, as median (least-most); below 1 is better."""
        measures = [(m, unit) for unit in UNITS for m in ("mean", "p95", "slowdown")]
        head = ("policy", *(f"{m}, {unit}" for m, unit in measures), "preemptions", "recomputed")
        rows = [
            (
                policy,
                *(str(self._ratio(policy, measure, unit)) for measure, unit in measures),
                f"{statistics.median(o.preemptions for o in outcomes):.0f}",
                f"{statistics.median(o.recomputed_tokens for o in outcomes):.0f}",
            )
            for policy, outcomes in self.outcomes.items()
        ]
        return markdown(head, sorted(rows, key=lambda row: row[0] != BASELINE))

    def ratios(self) -> dict[str, dict[str, float]]:
        """The medians of the table, for a program to read."""
        return {
            policy: {
                f"{measure}_{unit}": self._ratio(policy, measure, unit).median
                for unit in UNITS
                for measure in ("mean", "p95", "slowdown")
            }
            for policy in self.outcomes
        }

    def _ratio(self, policy: str, measure: str, unit: str) -> Spread:
        return Spread.of(
            [
                getattr(mine, measure)[unit] / getattr(stock, measure)[unit]
                for mine, stock in zip(self.outcomes[policy], self.outcomes[BASELINE], strict=True)
            ]
        )
