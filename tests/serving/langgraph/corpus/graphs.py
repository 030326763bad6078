"""The graphs that the corpus asks: both this server and a reference serve them.

They need LangGraph alone, so that a reference's environment can load them.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


class Settings(TypedDict, total=False):
    who: str


def _step(name: str) -> Any:
    return lambda state: {"steps": [name]}


def _first(state: Steps) -> Steps:
    get_stream_writer()({"note": "from first"})
    return {"steps": ["first"]}


def _ask(state: Steps) -> Steps:
    return {"steps": [f"answered {interrupt({'question': 'which way?'})}"]}


def _ask_one(state: Steps) -> Steps:
    return {"steps": [str(interrupt(state["steps"][0]))]}


def _spread(state: Steps) -> list[Send]:
    return [Send("ask_one", {"steps": [name]}) for name in ("a", "b")]


def _twice(state: Steps) -> Steps:
    return {"steps": [interrupt("one"), interrupt("two")]}


def _fail(state: Steps) -> Steps:
    raise ValueError("no such luck")


async def _wait(state: Steps) -> Steps:
    await asyncio.Event().wait()  # until its run is cancelled
    return {"steps": ["waited"]}


async def _remember(state: Steps, runtime: Runtime[Settings]) -> Steps:
    """Count the visits of somebody in the store."""
    store = get_store()
    who = (runtime.context or {}).get("who", "nobody")
    item = await store.aget(("visits",), who)
    visits = 1 + (item.value["visits"] if item is not None else 0)
    await store.aput(("visits",), who, {"visits": visits})
    return {"steps": [f"{who} {visits}"]}


async def _reply(state: MessagesState) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world", id="m1")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


_inner = StateGraph(Steps).add_node("inner", _step("inner")).add_edge(START, "inner").compile()
_asking = StateGraph(Steps).add_node("ask", _ask).add_edge(START, "ask").compile()
_chain = [("first", _first), ("middle", _step("middle")), ("last", _step("last"))]

steps = StateGraph(Steps).add_sequence(_chain).add_edge(START, "first").compile()
nested = (
    StateGraph(Steps)
    .add_sequence([("first", _first), ("sub", _inner), ("last", _step("last"))])
    .add_edge(START, "first")
    .compile()
)
ask = (
    StateGraph(Steps)
    .add_sequence([("first", _step("first")), ("ask", _ask), ("last", _step("last"))])
    .add_edge(START, "first")
    .compile()
)
deep = StateGraph(Steps).add_node("sub", _asking).add_edge(START, "sub").compile()
twice = StateGraph(Steps).add_node("twice", _twice).add_edge(START, "twice").compile()
fan = (
    StateGraph(Steps)
    .add_node("ask_one", _ask_one)
    .add_conditional_edges(START, _spread, ["ask_one"])
    .compile()
)
fail = StateGraph(Steps).add_node("fail", _fail).add_edge(START, "fail").compile()
wait = (
    StateGraph(Steps)
    .add_sequence([("before", _step("before")), ("wait", _wait)])
    .add_edge(START, "before")
    .compile()
)
memory = (
    StateGraph(Steps, context_schema=Settings)
    .add_node("remember", _remember)
    .add_edge(START, "remember")
    .compile()
)
chat = StateGraph(MessagesState).add_node("reply", _reply).add_edge(START, "reply").compile()
