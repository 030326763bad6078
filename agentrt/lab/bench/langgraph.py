"""``agentrt bench langgraph``: the same agents on stock vLLM, through ChatOpenAI, and on agentrt.

All agents of a repeat arrive at once, with plans drawn from the repeat's seed. The sides
take turns: while one works, the others have nothing to do. Each side's prefix cache is emptied
before its turn. Every side must use the same tokens, prompt and output, or there is no result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from statistics import fmean
from typing import Any, NamedTuple

import click
from langchain_core.language_models import BaseChatModel

from agentrt.cli.signals import Interrupts
from agentrt.errors import ConfigError, InvariantError
from agentrt.executors.base import Progress
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.engines import engine_of
from agentrt.lab.bench.following import runs_started, unfollowed
from agentrt.lab.bench.react import MIXES, Plan, draw_plans, first_state, react_graph
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, in_turns, ratios, show
from agentrt.lab.bench.servers import StockServer
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    json_option,
    model_option,
    note,
    policy_option,
    seed_option,
)
from agentrt.lab.reports.tables import percentile
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run
from agentrt.scheduler.policies import policy_class

STOCK = "stock"
FCFS = "agentrt, fcfs"
"""The side that schedules as stock does, and counts its steps."""
_STEPS = ("mean_steps", "p95_steps")
_RATIOS = ("mean_s", "p95_s", "programs_per_s", "tokens_per_s")
COLUMNS = (
    Column("mean, s", "mean_s"),
    Column("p95, s", "p95_s"),
    Column("mean / stock", "mean_s_to_stock"),
    Column("p95 / stock", "p95_s_to_stock"),
    Column("programs/s / stock", "programs_per_s_to_stock"),
    Column("tokens/s / stock", "tokens_per_s_to_stock"),
    Column("tokens/s", "tokens_per_s", WHOLE),
    Column("mean, steps", "mean_steps", WHOLE),
    Column("p95, steps", "p95_steps", WHOLE),
    Column("mean, steps / fcfs", "mean_steps_to_fcfs"),
    Column("p95, steps / fcfs", "p95_steps_to_fcfs"),
    Column("preemptions", "preemptions", WHOLE),
    Column("prompt tokens", "prompt_tokens", WHOLE),
    Column("output tokens", "output_tokens", WHOLE),
)
"""Ratios are to stock in the same repeat: below 1 is better for a latency, above 1 for a
throughput. Stock does not progress its steps: their ratios are to `FCFS`, if that was measured."""


@click.command(cls=ManyCommand)
@policy_option("atlas")
@count_option("--agents", default=16)
@click.option(
    "--mix",
    type=click.Choice(list(MIXES)),
    default="sized",
    show_default=True,
    help="Whether agents of many turns have long ones, too.",
)
@count_option("--repeat", default=5)
@seed_option
@count_option("--max-num-seqs", default=4)
@model_option
@json_option
def langgraph(**options: Any) -> None:
    """LangGraph agents on stock vLLM and on agentrt, with nothing changed but the model.

    ReAct agents with two tools and courses of fixed, unequal lengths all arrive at once:
    through ChatOpenAI at vLLM's own server, and through ChatAgentRT at an embedded engine
    with the same options under each policy. The sides take turns, and use the same tokens.
    """
    policies = options["policy"] or ("atlas",)
    for name in policies:
        policy_class(name)
    if find_spec("langchain_openai") is None:
        raise ConfigError("agentrt bench langgraph needs ChatOpenAI: pip install langchain-openai")
    measured = Interrupts(note).run(_measure(policies, options))
    medians = {row.pop("side"): row for row in measured.medians()}
    show(measured.table(COLUMNS), medians, as_json=options["as_json"])


async def _measure(policies: Sequence[str], options: dict[str, Any]) -> Results:
    async with (
        engine_of(options) as (runtime, engine, log),
        StockServer(engine.options, engine.model) as server,
    ):
        note("loading stock vLLM's server")
        await server.start(log.collect)
        sides = [_stock(server), *(_ours(runtime, engine, name) for name in policies)]
        return await measure(
            sides, options["agents"], options["mix"], options["repeat"], options["seed"], note
        )


class Side(NamedTuple):
    """Where the agents run: a chat model, and what makes its engine ready for a turn.

    ``followed`` sides are agentrt's own, whose engines count steps.
    """

    name: str
    model: BaseChatModel
    prepare: Callable[[], Awaitable[None]]
    followed: bool = True


def _stock(server: StockServer) -> Side:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    model = ChatOpenAI(
        model=server.NAME,
        base_url=server.base_url,
        api_key=SecretStr("none"),
        temperature=0,
        max_retries=0,
        extra_body={"ignore_eos": True},
    )
    return Side(STOCK, model, server.forget_prefixes, followed=False)


def _ours(runtime: Runtime, engine: VLLMEngine, policy: str) -> Side:
    async def prepare() -> None:
        await engine.configure(replace(engine.options.scheduler, policy=policy))
        await engine.forget_prefixes()

    return Side(f"agentrt, {policy}", ChatAgentRT(runtime=runtime), prepare)


async def measure(
    sides: Sequence[Side], agents: int, mix: str, repeats: int, seed: int, progress: Progress
) -> Results:
    """``agents`` agents of a mix on every side, by turns, in each repeat. The first is stock.

    Raises `InvariantError` unless all sides used the same tokens in each repeat.
    """
    for side in sides:
        progress(f"warming up: {side.name}")
        await _once(side, draw_plans(2, seed, mix))
    found: dict[tuple[int, str], Figures] = {}
    for repeat, side in in_turns(sides, repeats):
        progress(f"repeat {repeat + 1} of {repeats}: {agents} agents, {side.name}")
        plans = draw_plans(agents, seed + repeat, mix)
        found[repeat, side.name] = await _once(side, plans)
    measured = Results({"side": ""})
    for name in (side.name for side in sides):
        for repeat in range(repeats):
            mine, stock, fcfs = (found.get((repeat, one)) for one in (name, STOCK, FCFS))
            assert mine is not None
            _check_work(mine, stock or mine)
            to_others = {
                **ratios(mine, stock, _RATIOS, "_to_stock"),
                **ratios(mine, fcfs, _STEPS, "_to_fcfs"),
            }
            measured.add(name, figures={**mine, **to_others})
    return measured


def _check_work(mine: Figures, stock: Figures) -> None:
    used = [(one["prompt_tokens"], one["output_tokens"]) for one in (mine, stock)]
    if used[0] != used[1]:
        raise InvariantError(f"the sides used unequal tokens (prompt, output): {used}")


async def _once(side: Side, plans: Sequence[Plan]) -> Figures:
    await side.prepare()
    graph = react_graph(side.model)
    with nullcontext() if side.followed else unfollowed(), runs_started() as runs:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_one(graph, plan)) for plan in plans]
        wall_s = time.perf_counter() - began
    return _figures([task.result() for task in tasks], wall_s, runs)


async def _one(graph: Any, plan: Plan) -> tuple[float, list[tuple[int, int]]]:
    """The latency of one agent in seconds, and the tokens of its calls."""
    began = time.perf_counter()
    state = await graph.ainvoke(first_state(plan))
    return time.perf_counter() - began, state["used"]


def _figures(
    ended: Sequence[tuple[float, list[tuple[int, int]]]], wall_s: float, runs: Sequence[Run]
) -> Figures:
    """Latencies in seconds and in engine steps, where somebody counts them; throughput; work."""
    latencies = [latency for latency, _ in ended]
    output = sum(one for _, used in ended for _, one in used)
    reports = [run.report(0.0) for run in runs]
    steps = [float(report.last_step - report.first_step) for report in reports]
    return {
        "mean_s": fmean(latencies),
        "p95_s": percentile(latencies, 0.95),
        "programs_per_s": len(ended) / wall_s,
        "tokens_per_s": output / wall_s,
        "prompt_tokens": sum(one for _, used in ended for one, _ in used),
        "output_tokens": output,
        "mean_steps": fmean(steps) if steps else math.nan,
        "p95_steps": percentile(steps, 0.95) if steps else math.nan,
        "preemptions": sum(r.preemptions for r in reports) if reports else math.nan,
    }
