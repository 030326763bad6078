"""LangGraph ReAct agents whose plan is fixed: how many turns, how many tokens, which tools.

A hand-written graph of an agent node and a `ToolNode` with two real tools. The model makes
every turn's tokens, but what it says is replaced by the script's words and tool calls: so
each side of a comparison sends the same prompts, whatever its model said.
"""

from __future__ import annotations

import operator
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

NAME = "react"
LEAST_TURNS, MOST_TURNS = 2, 6
LEAST_TOKENS, MOST_TOKENS = 16, 96
TAIL = 1.1
"""The exponent of the Pareto distributions: nearer to 1 is a heavier tail."""

_ITEMS = {"tea": 4, "coffee": 7, "sugar": 2, "flour": 3, "rice": 5, "honey": 9}
_SYSTEM = (
    "You work in a shop. Think aloud, then call a tool or answer. "
    "price_of(item) says what a pack costs. multiply(a, b) multiplies two numbers."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One agent's plan: its item, and the output tokens of each of its turns."""

    number: int
    item: str
    turns: tuple[int, ...]


class State(MessagesState):
    """The chat, the agent's plan, and the tokens (prompt, output) of each of its calls."""

    plan: Plan
    used: Annotated[list[tuple[int, int]], operator.add]


def draw_plans(count: int, seed: int, mix: str = "sized") -> list[Plan]:
    """``count`` plans, most of them short and a few long, of the mix of that name."""
    rng = random.Random(seed)
    return [Plan(number, rng.choice(list(_ITEMS)), MIXES[mix](rng)) for number in range(count)]


def _sized(rng: random.Random) -> tuple[int, ...]:
    size = rng.paretovariate(TAIL)
    turns = min(MOST_TURNS, int(LEAST_TURNS * size))
    words = (LEAST_TOKENS * size * rng.uniform(0.7, 1.3) for _ in range(turns))
    return tuple(min(MOST_TOKENS, max(LEAST_TOKENS, int(many))) for many in words)


def _independent(rng: random.Random) -> tuple[int, ...]:
    turns = _heavy(rng, LEAST_TURNS, MOST_TURNS)
    return tuple(_heavy(rng, LEAST_TOKENS, MOST_TOKENS) for _ in range(turns))


MIXES = {"sized": _sized, "independent": _independent}
"""How turns and their tokens are drawn. ``sized``: each agent's task has a heavy-tailed size,
and a larger one takes more turns and more words in each. ``independent``: the number of turns
and each turn's tokens are heavy-tailed, and have nothing to do with each other."""


def _heavy(rng: random.Random, least: int, most: int) -> int:
    return min(most, int(least * rng.paretovariate(TAIL)))


def react_graph(model: BaseChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The agent, on any chat model."""

    async def agent(state: State) -> dict[str, Any]:
        chat, plan = state["messages"], state["plan"]
        turn = sum(isinstance(message, AIMessage) for message in chat)
        reply = await model.ainvoke(list(map(_as_text, chat)), max_tokens=plan.turns[turn])
        return {"messages": [_script(plan, turn)], "used": [_tokens(reply)]}

    graph = StateGraph(State)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(_tools()))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(name=NAME)


def first_state(plan: Plan) -> dict[str, Any]:
    """What the graph is invoked with."""
    ask = f"Customer {plan.number} wants {len(plan.turns)} packs of {plan.item}. How much is it?"
    chat: Sequence[AnyMessage] = [SystemMessage(_SYSTEM), HumanMessage(ask)]
    return {"messages": chat, "plan": plan, "used": []}


def _as_text(message: AnyMessage) -> AnyMessage:
    """A message as a ReAct prompt has it: engines differ in how they show tool calls."""
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({call['args']})" for call in message.tool_calls]
        return AIMessage("\n".join([message.text, *calls]))
    if isinstance(message, ToolMessage):
        return HumanMessage(f"Observation: {message.text}")
    return message


def _script(plan: Plan, turn: int) -> AIMessage:
    """What the agent is taken to have said in this turn."""
    if turn == len(plan.turns) - 1:
        return AIMessage("That is all I need to know; the answer is the last number above.")
    if turn == 0:
        call = ToolCall(name="price_of", args={"item": plan.item}, id=f"call-{turn}")
        return AIMessage(f"I need the price of {plan.item} first.", tool_calls=[call])
    sizes = {"a": turn + 1, "b": _ITEMS[plan.item]}
    call = ToolCall(name="multiply", args=sizes, id=f"call-{turn}")
    return AIMessage(f"Now what {turn + 1} packs cost.", tool_calls=[call])


def _tokens(reply: AIMessage) -> tuple[int, int]:
    usage = reply.usage_metadata
    assert usage is not None
    return usage["input_tokens"], usage["output_tokens"]


def _tools() -> list[Any]:
    prices = sqlite3.connect(":memory:", check_same_thread=False)
    prices.execute("CREATE TABLE price (item TEXT, euros INT)")
    prices.executemany("INSERT INTO price VALUES (?, ?)", _ITEMS.items())

    @tool
    async def price_of(item: str) -> str:
        """What one pack of an item costs."""
        rows = prices.execute("SELECT euros FROM price WHERE item = ?", [item])
        return f"One pack of {item} costs {rows.fetchone()[0]} euros."

    @tool
    async def multiply(a: int, b: int) -> str:
        """Multiply two numbers."""
        return f"{a} * {b} = {a * b}"

    return [price_of, multiply]
