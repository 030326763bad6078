"""A research agent with branches as a LangGraph graph: every step waits for the slowest sibling.

    agentrt run demos/barrier_langgraph.py --input '{"topic": "tea", "notes": {}}'

LangGraph runs its nodes in supersteps: `read` needs only `search`, but starts after `survey` as
well, which began together with `search`. `barrier_agentrt.py` is the same agent without
supersteps; `docs/langgraph.md` compares both.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agentrt.integrations.langchain import ChatAgentRT
from barrier_common import TASKS, TOPIC, prompt


class State(TypedDict):
    """What is asked for, and each finished step's words."""

    topic: str
    notes: Annotated[dict[str, str], operator.or_]


def step(model: BaseChatModel, name: str) -> Any:
    """Return the node ``name``: one call, whose text goes into the notes."""

    async def node(state: State) -> dict[str, Any]:
        notes = [state["notes"][need] for need in TASKS[name].needs]
        ask = prompt(name, state["topic"], *notes)
        reply = await model.ainvoke(ask, max_tokens=TASKS[name].tokens)
        return {"notes": {name: reply.text}}

    return node


def build(model: BaseChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return the agent, on any chat model."""
    graph = StateGraph(State)
    for name, task in TASKS.items():
        graph.add_node(name, step(model, name))
        if not task.needs:
            graph.add_edge(START, name)
        elif len(task.needs) == 1:
            graph.add_edge(task.needs[0], name)
        else:
            graph.add_edge(list(task.needs), name)  # starts once, after all of them
    return graph.compile(name="barrier_langgraph")


graph = build(ChatAgentRT())


async def main() -> None:
    state = await graph.ainvoke({"topic": TOPIC, "notes": {}})
    print(state["notes"]["write"])


if __name__ == "__main__":
    asyncio.run(main())
