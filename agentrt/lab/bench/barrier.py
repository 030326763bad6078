"""What LangGraph's superstep barrier costs: one agent as a graph and as an agentrt program.

Both sides make the same calls with outputs of fixed length on one engine, whose prefix cache
is emptied in between, and take turns. Latencies are counted in engine steps, which a noisy
machine does not change, and in seconds.

A program needs as many steps as the longest path through its data edges has: no scheduler can
do with fewer. What its latency has beyond that is idle: it waits for a sibling whose words it
does not need, or for a seat in the batch. The data edges are those of the agentrt program.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.integrations.langgraph import follow
from agentrt.lab.bench.watch import started_in
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.program import Program
from agentrt.request import CallReport
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run

LANGGRAPH, AGENTRT = "langgraph", "agentrt"
SIDES = (LANGGRAPH, AGENTRT)
Edges = dict[str, set[str]]
"""The parents of each step, by the steps' names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One side in one repeat, as means over its programs: latency in steps and seconds, the
    longest path through its own edges and through the data edges (steps), and its tokens.
    """

    steps: float
    seconds: float
    path: float
    needed: float
    output_tokens: int
    prompt_tokens: int

    @property
    def idle(self) -> float:
        """The share of the latency that the data edges do not explain."""
        return 1 - self.needed / self.steps


class BarrierBench:
    """Runs both sides on one open runtime and keeps every outcome and the last runs.

    ``graph`` takes ``topic`` and ``notes``; ``program`` takes the topic. ``forget`` empties
    the prefix cache.
    """

    def __init__(
        self,
        runtime: Runtime,
        graph: Any,
        program: Program,
        forget: Callable[[], Awaitable[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._graph = graph
        self._program = program
        self._forget = forget
        self._tell = tell
        self.outcomes: dict[tuple[int, str], list[Outcome]] = {}
        self.last: dict[str, Run] = {}

    async def run(self, counts: Sequence[int], repeats: int) -> None:
        """Both sides with so many programs at once, ``repeats`` times, in turns."""
        for count in counts:
            for repeat in range(repeats):
                runs = {}
                for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                    self._tell(f"{_programs(count)}, repeat {repeat + 1} of {repeats}: {side}")
                    await self._forget()
                    runs[side] = await self._once(side, count)
                self._keep(count, runs)

    async def _once(self, side: str, count: int) -> list[Run]:
        topics = [f"how tea came to Europe, part {number + 1}" for number in range(count)]
        if side == AGENTRT:
            runs = [self._runtime.start(self._program, topic) for topic in topics]
            for run in runs:
                await run.wait()
            return runs
        with started_in(follow().registry) as found:
            async with asyncio.TaskGroup() as group:
                for topic in topics:
                    group.create_task(self._graph.ainvoke({"topic": topic, "notes": {}}))
        return found

    def _keep(self, count: int, runs: Mapping[str, list[Run]]) -> None:
        needs = edges(runs[AGENTRT][0])
        for side, some in runs.items():
            self.outcomes.setdefault((count, side), []).append(outcome(some, needs))
            if count == 1 or side not in self.last:
                self.last[side] = some[0]

    # -- the table ---------------------------------------------------------------------

    def table(self) -> str:
        """A row per side and number of programs. Ratios are to LangGraph in the same repeat."""
        head = (
            *("programs", "", "latency, steps", "critical path, steps", "idle share"),
            *("latency, s", "steps / langgraph", "s / langgraph", "output tokens"),
        )
        return markdown(head, [self._row(*key) for key in sorted(self.outcomes, key=_in_order)])

    def _row(self, count: int, side: str) -> tuple[object, ...]:
        some = self.outcomes[count, side]
        return (
            count,
            side,
            f"{statistics.median(o.steps for o in some):.0f}",
            f"{statistics.median(o.path for o in some):.0f}",
            Spread.of([o.idle for o in some]),
            Spread.of([o.seconds for o in some]),
            self._ratio(count, side, "steps"),
            self._ratio(count, side, "seconds"),
            f"{statistics.median(o.output_tokens for o in some):.0f}",
        )

    def _ratio(self, count: int, side: str, unit: str) -> Spread:
        pairs = zip(self.outcomes[count, side], self.outcomes[count, LANGGRAPH], strict=True)
        return Spread.of([getattr(mine, unit) / getattr(base, unit) for mine, base in pairs])

    def medians(self) -> list[dict[str, Any]]:
        """The medians of the table, for a program to read."""
        names = ("steps", "seconds", "path", "needed", "idle", "output_tokens", "prompt_tokens")
        return [
            {"programs": count, "side": side}
            | {name: statistics.median(getattr(o, name) for o in some) for name in names}
            | {
                f"{unit}_to_langgraph": self._ratio(count, side, unit).median
                for unit in ("steps", "seconds")
            }
            for (count, side), some in sorted(self.outcomes.items(), key=lambda i: _in_order(i[0]))
        ]


def edges(run: Run) -> Edges:
    """The parents of each step of a run, by the names of its nodes' functions."""
    names = [step_name(node.scope) for node in run.dag.nodes()]
    return {names[n.id]: {names[parent] for parent in n.parents} for n in run.dag.nodes()}


def step_name(scope: str) -> str:
    """The last name of a node's scope path."""
    return scope.rpartition("/")[2]


def outcome(runs: Sequence[Run], needs: Edges) -> Outcome:
    """What runs of one side were, where ``needs`` are the agent's data edges."""
    reports = [run.report(0.0) for run in runs]
    return Outcome(
        steps=statistics.fmean(r.last_step - r.first_step + 1 for r in reports),
        seconds=statistics.fmean(r.wall_s for r in reports),
        path=statistics.fmean(longest_path(run, edges(run)) for run in runs),
        needed=statistics.fmean(longest_path(run, needs) for run in runs),
        output_tokens=sum(r.output_tokens for r in reports),
        prompt_tokens=sum(r.prompt_tokens for r in reports),
    )


def longest_path(run: Run, parents: Edges) -> int:
    """Engine steps on the longest path of a run's calls, were ``parents`` its edges."""
    steps = {step_name(node.scope): _report(node.report).steps for node in run.dag.nodes()}
    ends: dict[str, int] = {}

    def end(name: str) -> int:
        if name not in ends:
            ends[name] = steps[name] + max((end(parent) for parent in parents[name]), default=0)
        return ends[name]

    return max(map(end, steps))


def _report(report: CallReport | None) -> CallReport:
    return report or CallReport()


def _in_order(key: tuple[int, str]) -> tuple[int, int]:
    return key[0], SIDES.index(key[1])


def _programs(count: int) -> str:
    return f"{count} program{'s' if count > 1 else ''} at once"
