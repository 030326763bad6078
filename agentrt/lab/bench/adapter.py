"""``agentrt bench adapter``: what following LangGraph costs, per graph step and per LLM call.

Each case is a graph that runs on one event loop, first as LangGraph alone and then with
agentrt, or the other way round, by turns. CPU time is that of the thread: here all work is
done in it. Garbage is collected before each run, and as usual meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import operator
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Annotated, Any, NamedTuple, TypedDict

import click
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.following import idly_followed, unfollowed
from agentrt.lab.bench.results import WHOLE, Column, Figures, Results, ratios, show
from agentrt.lab.commands.options import count_option, json_option, note
from agentrt.runtime import Runtime
from agentrt.testing.scripted import ScriptedExecutor

COLUMNS = (
    Column("langgraph, CPU us", "langgraph_cpu_us", WHOLE),
    Column("agentrt, CPU us", "agentrt_cpu_us", WHOLE),
    Column("CPU ratio", "cpu_ratio"),
    Column("wall ratio", "wall_ratio"),
)


@click.command()
@count_option("--steps", default=1000, least=10)
@count_option("--calls", default=300, least=10)
@count_option("--repeat", default=7)
@json_option
def adapter(steps: int, calls: int, repeat: int, *, as_json: bool) -> None:
    """What agentrt adds to LangGraph's own cost, per graph step and per LLM call.

    Needs no model: graphs without one, with and without the follower, and graphs that call
    LangChain's fake chat model, or ChatAgentRT on a scripted executor. They take turns.
    """
    measured = asyncio.run(measure(steps, calls, repeat))
    show(measured.table(COLUMNS), measured.medians(), as_json=as_json)


class State(TypedDict, total=False):
    """What the graphs pass on: how often to go on, how often they did, a part's number."""

    goal: int
    done: Annotated[int, operator.add]
    part: int


class Case(NamedTuple):
    """A graph to run with ``goal``; ``unit`` is what its cost is divided among.

    ``base`` is LangGraph alone, ``ours`` the same with agentrt, inside ``around``.
    """

    name: str
    unit: str
    goal: int
    base: Any
    ours: Any
    around: Callable[[], AbstractContextManager[None]] = nullcontext


async def measure(steps: int, calls: int, repeats: int) -> Results:
    """Every case, ``repeats`` times, after a run that warms up and does not count."""
    measured = Results({"case": "case", "per": "per"})
    async with _cases(steps, calls) as cases:
        for repeat in range(repeats + 1):
            note(f"repeat {repeat} of {repeats}" if repeat else "warming up")
            for case in cases:
                figures = await _compare(case, ours_first=bool(repeat % 2))
                if repeat:
                    measured.add(case.name, case.unit, figures=figures)
    return measured


@asynccontextmanager
async def _cases(steps: int, calls: int) -> AsyncIterator[list[Case]]:
    loop, fan = loop_graph(), fan_graph()
    async with Runtime(ScriptedExecutor(lambda call: "word")) as runtime:
        fake = _calls(GenericFakeChatModel(messages=map(AIMessage, itertools.repeat("word"))))
        chat = _calls(ChatAgentRT(runtime=runtime))
        yield [
            Case(f"loop of one node x {steps}", "step", steps, loop, loop),
            Case("the same, a handler that does nothing", "step", steps, loop, loop, idly_followed),
            Case(f"Send to {steps} nodes, and a join", "step", steps, fan, fan),
            Case(f"{calls} calls of a fake model", "call", calls, fake, fake),
            Case(f"{calls} calls of ChatAgentRT", "call", calls, fake, chat),
        ]


async def _compare(case: Case, *, ours_first: bool) -> Figures:
    costs: dict[bool, Figures] = {}
    for ours in (ours_first, not ours_first):
        around = case.around() if ours else unfollowed()
        costs[ours] = await _cost(case.ours if ours else case.base, case.goal, around)
    names = {ours: "agentrt" if ours else "langgraph" for ours in (False, True)}
    figures = {f"{names[o]}_{n}_us": costs[o][n] for o in names for n in ("cpu", "wall")}
    return figures | dict(ratios(costs[True], costs[False], ("cpu", "wall"), "_ratio"))


async def _cost(graph: Any, goal: int, around: AbstractContextManager[None]) -> Figures:
    """Microseconds per unit."""
    gc.collect()
    with around:
        cpu, wall = time.thread_time(), time.perf_counter()
        state = await graph.ainvoke({"goal": goal, "done": 0}, {"recursion_limit": goal + 10})
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    assert state["done"] == goal
    return {"cpu": 1e6 * cpu / goal, "wall": 1e6 * wall / goal}


def loop_graph(work: Callable[[State], Any] | None = None) -> Any:
    """A node that runs ``goal`` times, one superstep each; ``work`` is awaited in it."""

    async def node(state: State) -> State:
        if work is not None:
            await work(state)
        return {"done": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges(
        "node", lambda state: "node" if state["done"] < state["goal"] else END, ["node", END]
    )
    return graph.compile(name="loop")


def fan_graph() -> Any:
    """A superstep of ``goal`` nodes, and a node that joins them."""

    async def part(state: State) -> State:
        return {"done": 1}

    async def join(state: State) -> State:
        return {}

    graph = StateGraph(State)
    graph.add_node("part", part)
    graph.add_node("join", join)
    graph.add_conditional_edges(
        START, lambda state: [Send("part", {"part": i}) for i in range(state["goal"])], ["part"]
    )
    graph.add_edge("part", "join")
    return graph.compile(name="fan")


def _calls(model: BaseChatModel) -> Any:
    async def call(state: State) -> None:
        await model.ainvoke("Say a word.", max_tokens=4)

    return loop_graph(call)
