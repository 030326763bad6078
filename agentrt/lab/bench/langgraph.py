"""The same LangGraph agents on stock vLLM through an OpenAI client, and on agentrt.

All agents of a repeat arrive at once, with courses drawn from the repeat's seed. The sides
take turns: while one works, the others have nothing to do. Each side's prefix cache is emptied
before its turn. Every side must use the same tokens, prompt and output, or there is no result.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from agentrt.errors import InvariantError
from agentrt.integrations.langgraph import follow
from agentrt.lab.bench.react import Plan, draw_plans, first_state, react_graph
from agentrt.lab.bench.unfollowed import unfollowed
from agentrt.lab.bench.watch import started_in
from agentrt.lab.reports.tables import Spread, markdown, percentile
from agentrt.runtime.run import Run

STOCK = "stock"
FCFS = "agentrt, fcfs"
"""The side that schedules as stock does, and counts its steps."""
_STEPS = ("mean_steps", "p95_steps")
_RATIOS = ("mean_s", "p95_s", "programs_per_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class Side:
    """Where the agents run: a chat model, and what makes its engine ready for a turn.

    ``followed`` sides are agentrt's own, whose engines count steps.
    """

    name: str
    model: BaseChatModel
    prepare: Callable[[], Awaitable[None]]
    followed: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """One side in one repeat: latency of its programs, throughput, and the work done.

    ``mean_steps`` and ``p95_steps`` are latencies in engine steps, None where nobody counts.
    """

    mean_s: float
    p95_s: float
    programs_per_s: float
    tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    mean_steps: float | None = None
    p95_steps: float | None = None
    preemptions: int | None = None


class LangGraphBench:
    """Runs ``agents`` agents of a mix on every side, and keeps all outcomes. The first is stock."""

    def __init__(
        self, sides: Sequence[Side], agents: int, mix: str, tell: Callable[[str], None]
    ) -> None:
        self._sides = sides
        self._agents = agents
        self._mix = mix
        self._tell = tell
        self.outcomes: dict[str, list[Outcome]] = {side.name: [] for side in sides}

    async def run(self, repeats: int, seed: int) -> None:
        """All sides, ``repeats`` times, in an order that changes with the repeat."""
        for side in self._sides:
            self._tell(f"warming up: {side.name}")
            await self._once(side, draw_plans(2, seed, self._mix))
        for repeat in range(repeats):
            plans = draw_plans(self._agents, seed + repeat, self._mix)
            first = repeat % len(self._sides)
            for side in (*self._sides[first:], *self._sides[:first]):
                self._tell(f"repeat {repeat + 1} of {repeats}: {self._agents} agents, {side.name}")
                self.outcomes[side.name].append(await self._once(side, plans))
            self._check_work(repeat)

    async def _once(self, side: Side, plans: Sequence[Plan]) -> Outcome:
        await side.prepare()
        graph = react_graph(side.model)
        with unfollowed() if not side.followed else nullcontext(), _watched(side) as runs:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_one(graph, plan)) for plan in plans]
            wall = time.perf_counter() - began
        return _outcome([task.result() for task in tasks], wall, runs)

    def _check_work(self, repeat: int) -> None:
        """Raise `InvariantError` unless all sides used the same tokens in this repeat."""
        used = {
            name: (some[repeat].prompt_tokens, some[repeat].output_tokens)
            for name, some in self.outcomes.items()
        }
        if len(set(used.values())) > 1:
            raise InvariantError(f"the sides used unequal tokens (prompt, output): {used}")

    # -- the table ---------------------------------------------------------------------

    def table(self) -> str:
        """A row per side. Medians (least-most) over the repeats; ratios are to stock in the same.

        Below 1 is better for a latency, above 1 for a throughput. Stock does not tell its
        steps: their ratios are to `FCFS`, if that was measured.
        """
        head = (
            *("", "mean, s", "p95, s", "mean / stock", "p95 / stock"),
            *("programs/s / stock", "tokens/s / stock", "tokens/s"),
            *("mean, steps", "p95, steps", "mean, steps / fcfs", "p95, steps / fcfs"),
            *("preemptions", "prompt tokens", "output tokens"),
        )
        return markdown(head, [self._row(side.name) for side in self._sides])

    def _row(self, name: str) -> tuple[object, ...]:
        some = self.outcomes[name]
        return (
            name,
            Spread.of([o.mean_s for o in some]),
            Spread.of([o.p95_s for o in some]),
            *(self._ratio(name, measure) for measure in _RATIOS),
            *(_whole(some, field) for field in ("tokens_per_s", *_STEPS)),
            *(self._ratio(name, measure, FCFS) or "" for measure in _STEPS),
            *(_whole(some, field) for field in ("preemptions", "prompt_tokens", "output_tokens")),
        )

    def _ratio(self, name: str, measure: str, base: str = STOCK) -> Spread | None:
        """A side's measure over that of ``base``, None where either was not measured."""
        pairs = [
            (getattr(mine, measure), getattr(other, measure))
            for mine, other in zip(self.outcomes[name], self.outcomes.get(base, ()), strict=False)
        ]
        if not pairs or None in pairs[0]:
            return None
        return Spread.of([mine / other for mine, other in pairs])

    def medians(self) -> dict[str, dict[str, float]]:
        """The medians of the table, for a program to read."""
        return {
            name: {
                field: statistics.median(values)
                for field in Outcome.__slots__
                if None not in (values := [getattr(o, field) for o in some])
            }
            | self._median_ratios(name, _RATIOS, STOCK)
            | self._median_ratios(name, _STEPS, FCFS)
            for name, some in self.outcomes.items()
        }

    def _median_ratios(self, name: str, measures: Sequence[str], base: str) -> dict[str, float]:
        ratios = {measure: self._ratio(name, measure, base) for measure in measures}
        suffix = base.rpartition(" ")[2]
        return {f"{m}_to_{suffix}": ratio.median for m, ratio in ratios.items() if ratio}


def _watched(side: Side) -> AbstractContextManager[list[Run]]:
    return started_in(follow().registry) if side.followed else nullcontext([])


async def _one(graph: Any, plan: Plan) -> tuple[float, list[tuple[int, int]]]:
    """The latency of one agent in seconds, and the tokens of its calls."""
    began = time.perf_counter()
    state = await graph.ainvoke(first_state(plan))
    return time.perf_counter() - began, state["used"]


def _outcome(
    ended: Sequence[tuple[float, list[tuple[int, int]]]], wall: float, runs: Sequence[Run]
) -> Outcome:
    latencies = [latency for latency, _ in ended]
    prompt = sum(one for _, used in ended for one, _ in used)
    output = sum(one for _, used in ended for _, one in used)
    reports = [run.report(0.0) for run in runs]
    steps = [float(report.last_step - report.first_step) for report in reports]
    return Outcome(
        mean_s=statistics.fmean(latencies),
        p95_s=percentile(latencies, 0.95),
        programs_per_s=len(ended) / wall,
        tokens_per_s=output / wall,
        prompt_tokens=prompt,
        output_tokens=output,
        mean_steps=statistics.fmean(steps) if steps else None,
        p95_steps=percentile(steps, 0.95) if steps else None,
        preemptions=sum(report.preemptions for report in reports) if reports else None,
    )


def _whole(some: Sequence[Outcome], field: str) -> str:
    values = [getattr(outcome, field) for outcome in some]
    return "" if None in values else f"{statistics.median(values):.0f}"
