"""Graphs that the tests serve, and the gates at which some of them wait."""

from __future__ import annotations

import asyncio
import operator
from collections import defaultdict
from concurrent.futures import Future
from decimal import Decimal
from typing import Annotated, Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime as GraphRuntime
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentrt import Context, program
from agentrt.integrations.langchain import ChatAgentRT

TURN_S = 60.0
"""The longest that anything in these tests waits."""


class Gates:
    """A test holds a node at a gate, and learns when it is there. Threads may differ."""

    def __init__(self) -> None:
        self._reached: dict[str, Future[None]] = defaultdict(Future)
        self._opened: dict[str, Future[None]] = defaultdict(Future)

    async def passing(self, name: str) -> None:
        """Called by a node: it is here now, and continues when the test says so."""
        _once(self._reached[name])
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._opened[name])), TURN_S)

    async def reached(self, name: str) -> None:
        """Wait until a node is at the gate."""
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._reached[name])), TURN_S)

    def open(self, name: str) -> None:
        """Let through who waits, and all who come."""
        _once(self._opened[name])


def _once(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


GATES = Gates()


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


class Gated(TypedDict):
    gate: str
    steps: Annotated[list[str], operator.add]


def first(state: Steps) -> Steps:
    get_stream_writer()({"note": "from first"})
    return {"steps": ["first"]}


def inner(state: Steps) -> Steps:
    return {"steps": ["inner"]}


def last(state: Steps) -> Steps:
    return {"steps": ["last"]}


def steps_graph() -> StateGraph[Any]:
    """first, a subgraph with one node, last."""
    sub = StateGraph(Steps).add_node("inner", inner).add_edge(START, "inner")
    builder = StateGraph(Steps)
    builder.add_node("first", first).add_node("sub", _only_new(sub.compile()))
    builder.add_node("last", last)
    return builder.add_edge(START, "first").add_edge("first", "sub").add_edge("sub", "last")


def nested_graph() -> StateGraph[Any]:
    """A subgraph as a node."""
    sub = StateGraph(Steps).add_node("inner", inner).add_edge(START, "inner").compile()
    return StateGraph(Steps).add_node("sub", sub).add_edge(START, "sub")


def _only_new(sub: Any) -> Any:
    async def run(state: Steps) -> Steps:
        before = len(state["steps"])
        result = await sub.ainvoke(state)
        return {"steps": result["steps"][before:]}

    return run


def ask(state: Steps) -> Steps:
    answer = interrupt({"question": "which way?"})
    return {"steps": [f"answered {answer}"]}


def ask_graph() -> StateGraph[Any]:
    """first, then a question to a human, then last."""
    builder = StateGraph(Steps)
    builder.add_node("first", lambda _: {"steps": ["first"]})
    builder.add_node("ask", ask).add_node("last", last)
    return builder.add_edge(START, "first").add_edge("first", "ask").add_edge("ask", "last")


def twice(state: Steps) -> Steps:
    return {"steps": [interrupt("one"), interrupt("two")]}


def twice_graph() -> StateGraph[Any]:
    """One node that asks two questions, one after the other."""
    return StateGraph(Steps).add_node("twice", twice).add_edge(START, "twice")


async def wait(state: Gated) -> dict[str, Any]:
    await GATES.passing(state["gate"])
    return {"steps": ["waited"]}


def gate_graph() -> StateGraph[Any]:
    """before, then a node that waits at the gate that the input names, then after."""
    builder = StateGraph(Gated)
    builder.add_node("before", lambda _: {"steps": ["before"]})
    builder.add_node("wait", wait)
    builder.add_node("after", lambda _: {"steps": ["after"]})
    return builder.add_edge(START, "before").add_edge("before", "wait").add_edge("wait", "after")


def fail(state: Steps) -> Steps:
    raise ValueError("no such luck")


def fail_graph() -> StateGraph[Any]:
    """One node that raises."""
    return StateGraph(Steps).add_node("fail", fail).add_edge(START, "fail")


class Choice(TypedDict, total=False):
    chosen: str


def clash_graph() -> StateGraph[Any]:
    """Two nodes at once write what can only have one value."""
    builder = StateGraph(Choice)
    for name in ("left", "right"):
        builder.add_node(name, lambda _: {"chosen": "mine"}).add_edge(START, name)
    return builder


class Settings(TypedDict, total=False):
    who: str


async def remember(state: Steps, runtime: GraphRuntime[Settings]) -> Steps:
    """Count the visits of somebody in the store."""
    store = get_store()
    who = (runtime.context or {}).get("who", "nobody")
    item = await store.aget(("visits",), who)
    visits = 1 + (item.value["visits"] if item is not None else 0)
    await store.aput(("visits",), who, {"visits": visits})
    return {"steps": [f"{who} {visits}"]}


def memory_graph() -> Any:
    """A graph with a context, which uses the store."""
    builder = StateGraph(Steps, context_schema=Settings)
    return builder.add_node("remember", remember).add_edge(START, "remember")


class Order(BaseModel):
    amount: Decimal = Decimal(0)
    secret: str = ""


class Receipt(BaseModel):
    total: Decimal


class OrderState(Order):
    total: Decimal = Decimal(0)


def order_graph() -> StateGraph[Any]:
    """A state with a type for each value, of which only the total is the graph's output."""

    def add_up(state: OrderState) -> dict[str, Any]:
        return {"total": 2 * state.amount, "secret": "of the house"}

    builder = StateGraph(OrderState, input_schema=Order, output_schema=Receipt)
    return builder.add_node("add_up", add_up).add_edge(START, "add_up")


def chat_graph() -> StateGraph[Any]:
    """One call of the server's model."""
    model = ChatAgentRT(max_tokens=16)

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")


def fan_graph() -> StateGraph[Any]:
    """Some questions at once."""

    def ask_one(state: Steps) -> Steps:
        return {"steps": [str(interrupt(state["steps"][0]))]}

    def spread(state: Steps) -> list[Send]:
        return [Send("ask_one", {"steps": [name]}) for name in ("a", "b")]

    builder = StateGraph(Steps).add_node("ask_one", ask_one)
    return builder.add_conditional_edges(START, spread, ["ask_one"])


def bare_graph() -> StateGraph[Any]:
    """A message that is made without a model."""

    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("hello", id="m1")]}

    return StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")


@tool
def weather(city: str) -> str:
    """Say the weather of a city."""
    return f"sunny in {city}"


@tool
def move(city: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Go to a city."""
    return Command(
        update={"messages": [ToolMessage(f"moved to {city}", tool_call_id=tool_call_id, id="m9")]}
    )


def tools_graph() -> StateGraph[Any]:
    """A message that calls two tools, one after the other, and their results."""

    def calls(name: str, key: str) -> Any:
        call = {"name": name, "args": {"city": "Rome"}, "id": key}
        return lambda _: {"messages": [AIMessage("", id=f"ai-{key}", tool_calls=[call])]}

    builder = StateGraph(MessagesState)
    builder.add_sequence(
        [
            ("ask_weather", calls("weather", "c1")),
            ("weather", ToolNode([weather])),
            ("ask_move", calls("move", "c2")),
            ("move", ToolNode([move])),
        ]
    )
    return builder.add_edge(START, "ask_weather")


@program
async def poem(ctx: Context, topic: str = "tea") -> dict[str, str]:
    """A native program."""
    reply = await ctx.llm(f"a poem on {topic}")
    return {"topic": topic, "poem": reply.text}


@program
async def approval(ctx: Context, what: str) -> str:
    """A native program that asks a human."""
    return f"{what}: {await ctx.human(f'approve {what}?')}"


@program
async def approvals(ctx: Context, request: dict[str, Any]) -> list[str]:
    """A native program that asks a human all at once, in one of two ways, and then once more."""
    names = request["names"]
    if request["how"] == "gather":
        first = await asyncio.gather(*(ctx.human(f"approve {name}?") for name in names))
    else:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ctx.human(f"approve {name}?")) for name in names]
        first = [task.result() for task in asking]
    return [*first, await ctx.human("all in all?")]


def all_graphs() -> dict[str, Any]:
    """Every graph of this file, by name; new ones for each server."""
    return {
        "steps": steps_graph().compile(name="steps"),
        "ask": ask_graph(),
        "twice": twice_graph(),
        "gate": gate_graph,
        "fail": fail_graph(),
        "clash": clash_graph(),
        "memory": memory_graph(),
        "chat": chat_graph(),
        "fan": fan_graph(),
        "bare": bare_graph(),
        "nested": nested_graph(),
        "tools": tools_graph(),
        "order": order_graph(),
    }
