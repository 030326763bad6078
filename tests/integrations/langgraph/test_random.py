"""Random graphs against the truth, found by playing LangGraph's rules on sets.

A graph's nodes run in supersteps. Each starts from everything that had ended in the steps
before, does its body (calls, gathers, tools, chains, threads, whole subgraphs), and may send
workers. The truth never asks LangGraph anything: it plays the triggers itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import StructuredTool
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from agentrt.runtime.run import Run
from tests.integrations.langgraph.probe import Probe, edges

Body = list[Any]
"""Steps: ``call``, or a pair of ``gather``, ``tools``, ``lcel`` (bodies), ``thread`` (a count
of calls), ``graph`` (a `Shape`)."""


@dataclass
class Shape:
    """A random graph. ``edges`` lead forward, ``joins`` wait for all of their nodes, ``sends``
    gives a node's number of workers, and ``rounds`` is how often the whole is gone through."""

    bodies: list[Body]
    edges: list[tuple[int, int]] = field(default_factory=list)
    joins: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    sends: dict[int, int] = field(default_factory=dict)
    worker: Body = field(default_factory=list)
    rounds: int = 1


def draw_body(rng: random.Random, depth: int) -> Body:
    body: Body = []
    for _ in range(rng.randint(0 if depth else 1, 3)):
        kind = rng.choice(["call", "call", "call", "gather", "tools", "lcel", "thread", "graph"])
        if kind == "call" or depth >= 3:
            body.append("call")
        elif kind == "thread":
            body.append((kind, rng.randint(1, 2)))
        elif kind == "graph":
            body.append((kind, draw_shape(rng, depth + 1)))
        else:
            branches = [draw_body(rng, depth + 2) for _ in range(rng.randint(1, 3))]
            body.append((kind, branches))
    return body


def draw_shape(rng: random.Random, depth: int = 0) -> Shape:
    size = rng.randint(1, 2 if depth else 5)
    shape = Shape([draw_body(rng, depth + 1) for _ in range(size)], rounds=rng.choice([1, 1, 2]))
    for node in range(1, size):
        if node > 1 and rng.random() < 0.3:
            shape.joins.append((tuple(sorted(rng.sample(range(node), 2))), node))
        else:
            before = rng.sample(range(node), rng.randint(0, min(2, node)))
            shape.edges += [(one, node) for one in sorted(before)]
    if rng.random() < 0.4:
        shape.sends[rng.randrange(size)] = rng.randint(1, 3)
        shape.worker = draw_body(rng, depth + 2)
    return shape


def entries(shape: Shape) -> list[int]:
    led = {to for _, to in shape.edges} | {to for _, to in shape.joins}
    return [node for node in range(len(shape.bodies)) if node not in led]


class Truth:
    """Plays a shape on sets: what had ended before each emission, by label."""

    def __init__(self) -> None:
        self.before: dict[str, frozenset[str]] = {}

    def parents(self) -> dict[str, set[str]]:
        found = {}
        for label, known in self.before.items():
            above = frozenset[str]().union(*(self.before[one] for one in known))
            found[label] = set(known - above)
        return found

    def emit(self, label: str, known: frozenset[str]) -> frozenset[str]:
        self.before[label] = known
        return known | {label}

    def graph(self, shape: Shape, label: str, known: frozenset[str]) -> frozenset[str]:
        for turn in range(shape.rounds):
            known = self.round(shape, f"{label}.{turn}", known)
        return known

    def round(self, shape: Shape, label: str, known: frozenset[str]) -> frozenset[str]:
        runs: Counter[int] = Counter()
        arrived: dict[int, set[int]] = {i: set() for i in range(len(shape.joins))}
        ready, workers = entries(shape), list[str]()
        while ready or workers:
            ends = [known]
            sent: list[str] = []
            for node in ready:
                name = f"{label}/n{node}:{runs[node]}"
                runs[node] += 1
                ends.append(self.body(shape.bodies[node], name, known))
                sent += [f"{name}/w{index}" for index in range(shape.sends.get(node, 0))]
            ends += [self.body(shape.worker, name, known) for name in workers]
            known = frozenset().union(*ends)
            ready, workers = self.triggered(shape, ready, arrived), sent
        return known

    @staticmethod
    def triggered(shape: Shape, ran: list[int], arrived: dict[int, set[int]]) -> list[int]:
        after = {to for one, to in shape.edges if one in ran}
        for index, (needs, to) in enumerate(shape.joins):
            arrived[index] |= set(needs) & set(ran)
            if arrived[index] == set(needs):
                arrived[index] = set()
                after.add(to)
        return sorted(after)

    def body(self, body: Body, label: str, known: frozenset[str]) -> frozenset[str]:
        for index, step in enumerate(body):
            here = f"{label}/{index}"
            if step == "call":
                known = self.emit(here, known)
                continue
            kind, inner = step
            if kind == "thread":
                for number in range(inner):
                    known = self.emit(f"{here}-{number}", known)
            elif kind == "graph":
                known = self.graph(inner, here, known)
            else:
                ends = []
                for number, branch in enumerate(inner):
                    ends.append(self.body(branch, f"{here}-{number}", known))
                    if kind == "tools":
                        ends.append(self.emit(f"{here}-{number}-tool", known))
                known = known.union(*ends)
        return known


class GraphState(TypedDict, total=False):
    label: Annotated[str, lambda old, new: new or old]


class Turns(TypedDict):
    turn: int


class Player:
    """Plays the same shape on LangGraph, with every call at its label."""

    def __init__(self, model: Probe) -> None:
        self.model = model

    async def graph(self, shape: Shape, label: str, **config: Any) -> None:
        if shape.rounds == 1:
            await self.round(shape, f"{label}.0", **config)
            return

        async def turn(state: Turns) -> Turns:
            await self.round(shape, f"{label}.{state['turn']}")
            return {"turn": state["turn"] + 1}

        builder = StateGraph(Turns)
        builder.add_node("turn", turn)
        builder.add_edge(START, "turn")
        builder.add_conditional_edges(
            "turn", lambda state: "turn" if state["turn"] < shape.rounds else "__end__"
        )
        await builder.compile().ainvoke({"turn": 0}, **config)

    async def round(self, shape: Shape, label: str, **config: Any) -> None:
        runs: Counter[int] = Counter()
        builder = StateGraph(GraphState)

        async def work(state: GraphState) -> GraphState:
            await self.body(shape.worker, state["label"])
            return {}

        builder.add_node("worker", work)
        for node, body in enumerate(shape.bodies):
            self.add_node(builder, shape, node, body, f"{label}/n{node}", runs)
        for node in entries(shape):
            builder.add_edge(START, f"n{node}")
        for one, to in shape.edges:
            builder.add_edge(f"n{one}", f"n{to}")
        for needs, to in shape.joins:
            builder.add_edge([f"n{one}" for one in needs], f"n{to}")
        await builder.compile(name="random").ainvoke({"label": label}, **config)

    def add_node(
        self, builder: Any, shape: Shape, node: int, body: Body, label: str, runs: Counter[int]
    ) -> None:
        async def run(state: GraphState) -> GraphState:
            name = f"{label}:{runs[node]}"
            runs[node] += 1
            await self.body(body, name)
            return {}

        def send(state: GraphState) -> list[Send]:
            name = f"{label}:{runs[node] - 1}"
            return [Send("worker", {"label": f"{name}/w{i}"}) for i in range(shape.sends[node])]

        builder.add_node(f"n{node}", run)
        if node in shape.sends:
            builder.add_conditional_edges(f"n{node}", send, ["worker"])

    async def body(self, body: Body, label: str) -> None:
        for index, step in enumerate(body):
            here = f"{label}/{index}"
            if step == "call":
                await self.model.ainvoke(here)
            else:
                await getattr(self, f"do_{step[0]}")(step[1], here)

    async def do_thread(self, count: int, here: str) -> None:
        def calls() -> None:
            for number in range(count):
                self.model.invoke(f"{here}-{number}")

        await asyncio.to_thread(calls)

    async def do_graph(self, shape: Shape, here: str) -> None:
        await self.graph(shape, here)

    async def do_gather(self, branches: list[Body], here: str) -> None:
        await asyncio.gather(*(self.body(b, f"{here}-{i}") for i, b in enumerate(branches)))

    async def do_tools(self, branches: list[Body], here: str) -> None:
        def make(branch: Body, name: str) -> StructuredTool:
            async def work() -> str:
                await self.body(branch, name)
                return name

            return StructuredTool.from_function(
                coroutine=work, name=f"{name}-tool", description="Do a body."
            )

        tools = [make(branch, f"{here}-{i}") for i, branch in enumerate(branches)]
        await asyncio.gather(*(tool.ainvoke({}) for tool in tools))

    async def do_lcel(self, branches: list[Body], here: str) -> None:
        def make(branch: Body, name: str) -> Any:
            async def work(_: Any) -> None:
                await self.body(branch, name)

            return RunnableLambda(work) | RunnableLambda(lambda _: None)

        await RunnableParallel(
            {str(i): make(branch, f"{here}-{i}") for i, branch in enumerate(branches)}
        ).ainvoke(None)


def config_of(index: int) -> dict[str, Any]:
    """Some graphs run their nodes one or two at a time: a superstep is one all the same."""
    config: dict[str, Any] = {"metadata": {"thread_id": str(index)}}
    if index % 3:
        config["max_concurrency"] = index % 3
    return config


async def test_random_graphs_have_exactly_the_true_parents(model: Probe, runs: list[Run]) -> None:
    """40 programs at once."""
    shapes = [draw_shape(random.Random(f"0/{index}")) for index in range(40)]
    players = [
        Player(model).graph(shape, "g", config=config_of(index))
        for index, shape in enumerate(shapes)
    ]
    await asyncio.gather(*players)
    found = {int(str(run.row.session)): run for run in runs}
    assert len(found) == len(runs) == 40
    sizes = []
    for index, shape in enumerate(shapes):
        truth = Truth()
        truth.graph(shape, "g", frozenset())
        assert edges(found[index]) == truth.parents(), index
        sizes.append(len(truth.before))
    assert sum(sizes) > 500
    assert max(sizes) > 50
