"""``agentrt bench barrier``: what LangGraph's superstep barrier costs one agent.

The agent as a graph and as an agentrt program: the same calls with outputs of fixed length on
one engine, whose prefix cache is emptied in between, by turns. Latencies are counted in engine
steps, which a noisy machine does not change, and in seconds.

A program needs as many steps as the longest path through its data edges has: no scheduler can
do with fewer. What its latency has beyond that is idle: it waits for a sibling whose words it
does not need, or for a slot in the batch. The data edges are those of the agentrt program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from agentrt.cli.load import load_program
from agentrt.cli.signals import Interrupts
from agentrt.errors import ProgramLoadError
from agentrt.executors.base import Progress
from agentrt.graph import Node
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.lab.bench.engines import engine_of
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, in_turns, ratios, show
from agentrt.lab.commands.options import count_option, json_option, model_option, note, numbers
from agentrt.program import Program
from agentrt.request import CallReport
from agentrt.runtime import Runtime
from agentrt.runtime.events import Event, ProgramStarted
from agentrt.runtime.run import Run

LANGGRAPH, AGENTRT = "langgraph", "agentrt"
COLUMNS = (
    Column("latency, steps", "steps", WHOLE),
    Column("critical path, steps", "path", WHOLE),
    Column("idle share", "idle"),
    Column("latency, s", "seconds"),
    Column("steps / langgraph", "steps_to_langgraph"),
    Column("s / langgraph", "seconds_to_langgraph"),
    Column("output tokens", "output_tokens", WHOLE),
)
Edges = dict[str, set[str]]
"""The parents of each step, by the steps' names."""


@click.command()
@click.option("--programs", default="1,4", show_default=True, metavar="N,N,…", help="At once.")
@count_option("--repeat", default=3)
@count_option("--max-num-seqs", default=4)
@model_option
@click.option(
    "--demos",
    type=click.Path(path_type=Path),
    default="demos",
    show_default=True,
    metavar="FOLDER",
    help="Where barrier_agentrt.py and barrier_langgraph.py are.",
)
@json_option
def barrier(**options: Any) -> None:
    """What LangGraph's superstep barrier costs one agent, on a real engine.

    The agent of demos/barrier_*.py as a LangGraph graph and as an agentrt program: the same
    calls with outputs of fixed length, by turns. Latencies in engine steps and in seconds.
    """
    counts = sorted(set(numbers(options["programs"], "--programs")))
    measured = Interrupts(note).run(_measure(counts, options))
    show(measured.table(COLUMNS), measured.medians(), as_json=options["as_json"])


async def _measure(counts: list[int], options: dict[str, Any]) -> Results:
    # The folder is on the import path once the program is loaded.
    path = options["demos"] / "barrier_agentrt.py"
    program = load_program(str(path))
    if not isinstance(program, Program):
        raise ProgramLoadError(f"{path}: no agentrt program in it, but a graph")
    build = import_module("barrier_langgraph").build
    async with engine_of(options) as (runtime, engine):
        graph = build(ChatAgentRT(runtime=runtime))
        bench = BarrierBench(runtime, graph, program, engine.forget_prefixes, note)
        await bench.run(counts, options["repeat"])
    return bench.measured


class BarrierBench:
    """Runs both sides on one open runtime, and keeps what was measured.

    ``graph`` takes ``topic`` and ``notes``; ``program`` takes the topic. ``forget`` empties
    the prefix cache.
    """

    def __init__(
        self,
        runtime: Runtime,
        graph: Any,
        program: Program,
        forget: Callable[[], Awaitable[None]],
        progress: Progress,
    ) -> None:
        self._runtime, self._graph, self._program = runtime, graph, program
        self._forget, self._progress = forget, progress
        self.measured = Results({"programs": "programs", "side": ""})

    async def run(self, counts: Sequence[int], repeats: int) -> None:
        """Both sides with so many programs at once, ``repeats`` times, in turns."""
        for count in counts:
            runs: dict[str, list[Run]] = {}
            for repeat, side in in_turns((LANGGRAPH, AGENTRT), repeats):
                programs = f"{count} program{'s' if count > 1 else ''} at once"
                self._progress(f"{programs}, repeat {repeat + 1} of {repeats}: {side}")
                await self._forget()
                runs[side] = await self._once(side, count)
                if len(runs) == 2:
                    self._keep(count, runs)
                    runs = {}

    async def _once(self, side: str, count: int) -> list[Run]:
        topics = [f"how tea came to Europe, part {number + 1}" for number in range(count)]
        if side == AGENTRT:
            runs = [self._runtime.start(self._program, topic) for topic in topics]
            for run in runs:
                await run.wait()
            return runs
        with runs_started() as found:
            async with asyncio.TaskGroup() as group:
                for topic in topics:
                    group.create_task(self._graph.ainvoke({"topic": topic, "notes": {}}))
        return found

    def _keep(self, count: int, runs: Mapping[str, list[Run]]) -> None:
        needs = edges(runs[AGENTRT][0])
        found = {side: _figures(runs[side], needs) for side in (LANGGRAPH, AGENTRT)}
        for side, mine in found.items():
            to_graph = ratios(mine, found[LANGGRAPH], ("steps", "seconds"), "_to_langgraph")
            self.measured.add(count, side, figures={**mine, **to_graph})


@contextmanager
def runs_started() -> Iterator[list[Run]]:
    """The runs of LangGraph's graphs that start meanwhile, in order; they stay after their end."""
    runs: list[Run] = []
    registry = follow().registry

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(registry.runs[event.program_id])

    registry.listen(saw)
    try:
        yield runs
    finally:
        registry.unlisten(saw)


def _figures(runs: Sequence[Run], needs: Edges) -> Figures:
    """Means over one side's runs: latency in steps and seconds, and the longest path through the
    side's own edges and through the data edges (steps); and all tokens.
    """
    reports = [run.report(0.0) for run in runs]
    steps = fmean(r.last_step - r.first_step + 1 for r in reports)
    needed = fmean(longest_path(run, needs) for run in runs)
    return {
        "steps": steps,
        "seconds": fmean(r.wall_s for r in reports),
        "path": fmean(longest_path(run, edges(run)) for run in runs),
        "needed": needed,
        "idle": 1 - needed / steps,  # the share of the latency that the data edges do not explain
        "output_tokens": sum(r.output_tokens for r in reports),
        "prompt_tokens": sum(r.prompt_tokens for r in reports),
    }


def edges(run: Run) -> Edges:
    """The parents of each step of a run, by the names of its nodes' functions."""
    names = [_name(node) for node in run.dag.nodes()]
    return {names[n.id]: {names[parent] for parent in n.parents} for n in run.dag.nodes()}


def longest_path(run: Run, parents: Edges) -> int:
    """Engine steps on the longest path of a run's calls, were ``parents`` its edges."""
    steps = {_name(node): (node.report or CallReport()).steps for node in run.dag.nodes()}
    ends: dict[str, int] = {}

    def end(name: str) -> int:
        if name not in ends:
            ends[name] = steps[name] + max((end(parent) for parent in parents[name]), default=0)
        return ends[name]

    return max(map(end, steps))


def _name(node: Node) -> str:
    """The last name of a node's scope path."""
    return node.scope.rpartition("/")[2]
