"""What following LangGraph costs: CPU and wall time per graph step and per LLM call.

Each case is a graph that runs on one event loop, first as LangGraph alone and then with
agentrt, or the other way round, by turns. CPU time is that of the thread: here all work is
done in it. Garbage is collected before each run, and as usual meanwhile.
"""

from __future__ import annotations

import gc
import itertools
import operator
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.unfollowed import idly_followed, unfollowed
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.runtime import Runtime
from agentrt.testing.scripted import ScriptedExecutor

Samples = Mapping[str, Sequence["Sample"]]


class State(TypedDict, total=False):
    """What the graphs pass on: how often to go on, how often they did, a part's number."""

    goal: int
    done: Annotated[int, operator.add]
    part: int


@dataclass(frozen=True, slots=True)
class Case:
    """A graph to run with ``goal``; ``unit`` is what its cost is divided among.

    ``base`` is LangGraph alone, ``ours`` the same with agentrt, inside ``around``.
    """

    name: str
    unit: str
    goal: int
    base: Any
    ours: Any
    around: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per unit."""

    cpu_us: float
    wall_us: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of a case: LangGraph alone, and with agentrt."""

    unit: str
    base: Cost
    ours: Cost


async def measure(
    steps: int, calls: int, repeats: int, tell: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Every case, ``repeats`` times, after a run that warms up and does not count."""
    samples: dict[str, list[Sample]] = {}
    async with _cases(steps, calls) as cases:
        for repeat in range(repeats + 1):
            tell(f"repeat {repeat} of {repeats}" if repeat else "warming up")
            for case in cases:
                sample = await _compare(case, ours_first=bool(repeat % 2))
                if repeat:
                    samples.setdefault(case.name, []).append(sample)
    return samples


@asynccontextmanager
async def _cases(steps: int, calls: int) -> AsyncIterator[list[Case]]:
    loop, fan = loop_graph(), fan_graph()
    async with Runtime(ScriptedExecutor(lambda call: "word")) as runtime:
        fake = GenericFakeChatModel(messages=_said())
        chat = ChatAgentRT(runtime=runtime)
        yield [
            Case(f"loop of one node x {steps}", "step", steps, loop, loop),
            Case("the same, a handler that does nothing", "step", steps, loop, loop, idly_followed),
            Case(f"Send to {steps} nodes, and a join", "step", steps, fan, fan),
            Case(f"{calls} calls of a fake model", "call", calls, _calls(fake), _calls(fake)),
            Case(f"{calls} calls of ChatAgentRT", "call", calls, _calls(fake), _calls(chat)),
        ]


async def _compare(case: Case, *, ours_first: bool) -> Sample:
    costs = {}
    for ours in (ours_first, not ours_first):
        around = case.around() if ours else unfollowed()
        costs[ours] = await _cost(case.ours if ours else case.base, case.goal, around)
    return Sample(case.unit, costs[False], costs[True])


async def _cost(graph: Any, goal: int, around: AbstractContextManager[None]) -> Cost:
    gc.collect()
    with around:
        cpu, wall = time.thread_time(), time.perf_counter()
        state = await graph.ainvoke({"goal": goal, "done": 0}, {"recursion_limit": goal + 10})
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    assert state["done"] == goal
    return Cost(1e6 * cpu / goal, 1e6 * wall / goal)


# -- graphs ----------------------------------------------------------------------------


def loop_graph(work: Callable[[State], Any] | None = None) -> Any:
    """A node that runs ``goal`` times, one superstep each; ``work`` is awaited in it."""

    async def node(state: State) -> State:
        if work is not None:
            await work(state)
        return {"done": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", _again, ["node", END])
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
    graph.add_conditional_edges(START, _parts, ["part"])
    graph.add_edge("part", "join")
    return graph.compile(name="fan")


def _again(state: State) -> str:
    return "node" if state["done"] < state["goal"] else END


def _parts(state: State) -> list[Send]:
    return [Send("part", {"part": number}) for number in range(state["goal"])]


def _calls(model: BaseChatModel) -> Any:
    async def call(state: State) -> None:
        await model.ainvoke("Say a word.", max_tokens=4)

    return loop_graph(call)


def _said() -> Iterator[AIMessage]:
    return map(AIMessage, itertools.repeat("word"))


# -- the table -------------------------------------------------------------------------


def table(samples: Samples) -> str:
    """A row per case: microseconds as medians, and ratios to LangGraph alone in the same repeat."""
    head = ("case", "per", "langgraph, CPU us", "agentrt, CPU us", "CPU ratio", "wall ratio")
    rows = [
        (
            name,
            some[0].unit,
            f"{statistics.median(s.base.cpu_us for s in some):.0f}",
            f"{statistics.median(s.ours.cpu_us for s in some):.0f}",
            _ratio(some, "cpu_us"),
            _ratio(some, "wall_us"),
        )
        for name, some in samples.items()
    ]
    return markdown(head, rows)


def medians(samples: Samples) -> list[dict[str, Any]]:
    """The medians of the table, for a program to read."""
    return [
        {"case": name, "per": some[0].unit}
        | {f"langgraph_{f}": statistics.median(getattr(s.base, f) for s in some) for f in _COSTS}
        | {f"agentrt_{f}": statistics.median(getattr(s.ours, f) for s in some) for f in _COSTS}
        | {f"{f.removesuffix('_us')}_ratio": _ratio(some, f).median for f in _COSTS}
        for name, some in samples.items()
    ]


_COSTS = ("cpu_us", "wall_us")


def _ratio(some: Sequence[Sample], field: str) -> Spread:
    return Spread.of([getattr(s.ours, field) / getattr(s.base, field) for s in some])
