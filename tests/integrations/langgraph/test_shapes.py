"""Graphs whose DAG is known by hand: supersteps, fan-out, joins, cycles, subgraphs, tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send

from agentrt.graph import NodeKind, NodeState
from agentrt.runtime.run import Run, RunState
from tests.integrations.langgraph.probe import Probe, State, calls, edges, lone


class Item(TypedDict):
    n: int


async def test_a_superstep_waits_for_all_of_the_one_before(model: Probe, runs: list[Run]) -> None:
    """a leads to b (two calls) and c; d, after c alone, still waits for b."""
    graph = StateGraph(State)
    for name, said in {"a": ["a"], "b": ["b1", "b2"], "c": ["c"], "d": ["d"]}.items():
        graph.add_node(name, calls(model, *said))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("a", "c")
    graph.add_edge("c", "d")
    await graph.compile(name="barrier").ainvoke({})
    [run] = runs
    assert edges(run) == {
        "a": set(),
        "b1": {"a"},
        "b2": {"b1"},
        "c": {"a"},
        "d": {"b2", "c"},
    }
    assert (run.type, run.state) == ("barrier", RunState.DONE)
    scopes = {node.name: node.scope for node in run.dag.nodes()}
    assert scopes["b2"] == "barrier/b"


async def test_sent_workers_join(model: Probe, runs: list[Run]) -> None:
    async def work(state: Item) -> State:
        await model.ainvoke(f"work{state['n']}")
        return {}

    graph = StateGraph(State)
    graph.add_node("plan", calls(model, "plan"))
    graph.add_node("work", work)
    graph.add_node("reduce", calls(model, "reduce"))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda _: [Send("work", {"n": n}) for n in range(3)])
    graph.add_edge("work", "reduce")
    await graph.compile().ainvoke({})
    assert edges(runs[0]) == {
        "plan": set(),
        "work0": {"plan"},
        "work1": {"plan"},
        "work2": {"plan"},
        "reduce": {"work0", "work1", "work2"},
    }


async def test_a_cycle_unrolls(model: Probe, runs: list[Run]) -> None:
    async def turn(state: State) -> State:
        await model.ainvoke(f"turn{state.get('count', 0)}")
        return {"count": state.get("count", 0) + 1}

    graph = StateGraph(State)
    graph.add_node("turn", turn)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", lambda s: "turn" if s["count"] < 3 else END)
    await graph.compile().ainvoke({})
    assert edges(runs[0]) == {"turn0": set(), "turn1": {"turn0"}, "turn2": {"turn1"}}


async def test_gather_inside_a_node_keeps_its_branches_apart(model: Probe, runs: list[Run]) -> None:
    async def branch(name: str) -> None:
        await model.ainvoke(f"{name}1")
        await model.ainvoke(f"{name}2")

    async def node(state: State) -> State:
        await asyncio.gather(branch("x"), branch("y"))
        await model.ainvoke("end")
        return {}

    await lone(node).ainvoke({})
    assert edges(runs[0]) == {
        "x1": set(),
        "x2": {"x1"},
        "y1": set(),
        "y2": {"y1"},
        "end": {"x2", "y2"},
    }


@pytest.mark.parametrize("sync", [False, True])
async def test_subgraphs_nest(model: Probe, runs: list[Run], sync: bool) -> None:
    """A subgraph is a node of its own (inner), and is called from inside another (outer)."""

    def speak(*names: str) -> Any:
        def node(state: State) -> State:
            for name in names:
                model.invoke(name)
            return {}

        return node if sync else calls(model, *names)

    inner = StateGraph(State)
    inner.add_node("p", speak("p"))
    inner.add_node("q", speak("q1", "q2"))
    inner.add_node("r", speak("r"))
    inner.add_edge(START, "p")
    inner.add_edge(START, "q")
    inner.add_edge("p", "r")
    compiled = lone(speak("s"), "s", name="child")

    async def calling(state: State) -> State:
        await model.ainvoke("before")
        await compiled.ainvoke({})
        await model.ainvoke("after")
        return {}

    def calling_sync(state: State) -> State:
        model.invoke("before")
        compiled.invoke({})
        model.invoke("after")
        return {}

    graph = StateGraph(State)
    graph.add_node("inner", inner.compile())
    graph.add_node("outer", calling_sync if sync else calling)
    graph.add_node("last", speak("last"))
    graph.add_edge(START, "inner")
    graph.add_edge(START, "outer")
    graph.add_edge("inner", "last")
    whole = graph.compile()
    if sync:
        await asyncio.to_thread(lambda: whole.invoke({}))
    else:
        await whole.ainvoke({})
    [run] = runs
    assert edges(run) == {
        "p": set(),
        "q1": set(),
        "q2": {"q1"},
        "r": {"p", "q2"},
        "before": set(),
        "s": {"before"},
        "after": {"s"},
        "last": {"r", "after"},
    }
    assert {n.scope for n in run.dag.nodes() if n.name == "s"} == {"LangGraph/outer/s"}


def test_parallel_branches_of_a_sync_chain_stay_apart(model: Probe, runs: list[Run]) -> None:
    """Threads share their node's scope; the run tree tells their branches apart."""

    def pipe(name: str) -> Any:
        return (
            RunnableLambda(lambda _: f"{name}1")
            | model
            | RunnableLambda(lambda _: f"{name}2")
            | model
        )

    def node(state: State) -> State:
        RunnableParallel(a=pipe("a"), b=pipe("b"), c=pipe("c")).invoke("")
        model.invoke("end")
        return {}

    lone(node).invoke({})
    found = edges(runs[0])
    assert found["end"] == {"a2", "b2", "c2"}
    assert {name: found[f"{name}2"] for name in "abc"} == {n: {f"{n}1"} for n in "abc"}


async def test_tools_are_interrupts_and_may_call_the_model(model: Probe, runs: list[Run]) -> None:
    @tool
    async def ask(what: str) -> str:
        """Ask the model."""
        await model.ainvoke(f"{what}1")
        await model.ainvoke(f"{what}2")
        return what

    async def node(state: State) -> State:
        await model.ainvoke("first")
        await asyncio.gather(ask.ainvoke({"what": "x"}), ask.ainvoke({"what": "y"}))
        await model.ainvoke("last")
        return {}

    await lone(node).ainvoke({})
    nodes = runs[0].dag.nodes()
    by_name = {node.name: node for node in nodes if node.kind is NodeKind.CALL}
    tools = [node for node in nodes if node.kind is NodeKind.TOOL]
    first = by_name["first"].id
    assert [(t.name, t.parents, t.state) for t in tools] == [("ask", (first,), NodeState.DONE)] * 2
    assert by_name["x1"].parents == by_name["y1"].parents == (first,)
    ends = {by_name["x2"].id, by_name["y2"].id, *(t.id for t in tools)}
    assert set(by_name["last"].parents) == ends


async def test_tasks_fork_from_their_caller_and_join_it(model: Probe, runs: list[Run]) -> None:
    """Two @tasks run side by side, then a third; a pipeline of tasks inside a gather."""

    @task
    async def say(name: str) -> str:
        await model.ainvoke(name)
        return name

    async def pipe(name: str) -> None:
        await say(f"{name}1")
        await say(f"{name}2")

    @entrypoint()
    async def agent(start: str) -> str:
        await model.ainvoke(start)
        one, two = say("one"), say("two")
        await one
        await two
        await say("three")
        await asyncio.gather(pipe("x"), pipe("y"))
        await model.ainvoke("end")
        return "done"

    await agent.ainvoke("start")
    [run] = runs
    assert run.type == "agent"
    assert edges(run) == {
        "start": set(),
        "one": {"start"},
        "two": {"start"},
        "three": {"one", "two"},
        "x1": {"three"},
        "x2": {"x1"},
        "y1": {"three"},
        "y2": {"y1"},
        "end": {"x2", "y2"},
    }


def test_sync_tasks_too(model: Probe, runs: list[Run]) -> None:
    @task
    def say(name: str) -> str:
        model.invoke(name)
        return name

    @entrypoint()
    def agent(start: str) -> str:
        model.invoke(start)
        futures = [say("one"), say("two")]
        for future in futures:
            future.result()
        say("three").result()
        return "done"

    both = threading.Barrier(2)
    model.meet.update(one=both, two=both)
    agent.invoke("start")
    assert edges(runs[0]) == {
        "start": set(),
        "one": {"start"},
        "two": {"start"},
        "three": {"one", "two"},
    }


async def test_a_node_that_is_tried_again_goes_on(model: Probe, runs: list[Run]) -> None:
    attempts: list[int] = []

    async def flaky(state: State) -> State:
        attempts.append(1)
        await model.ainvoke(f"try{len(attempts)}")
        if len(attempts) < 2:
            raise ConnectionError("once")
        return {}

    graph = StateGraph(State)
    policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    graph.add_node("flaky", flaky, retry_policy=policy)
    graph.add_node("beside", calls(model, "beside"))
    graph.add_node("end", calls(model, "end"))
    graph.add_edge(START, "flaky")
    graph.add_edge(START, "beside")
    graph.add_edge("flaky", "end")
    await graph.compile().ainvoke({})
    found = edges(runs[0])
    assert found == {"try1": set(), "beside": set(), "try2": {"try1"}, "end": {"try2", "beside"}}
