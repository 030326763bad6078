"""LangGraph files for the tests of the command line."""

from __future__ import annotations

HEAD = """
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated
from typing_extensions import TypedDict
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from agentrt.integrations.langchain import ChatAgentRT

model = ChatAgentRT(max_tokens=8)

class Tea(TypedDict, total=False):
    text: str
    cups: int
    seen: Annotated[list[str], operator.add]

def chain(schema, *nodes, **options):
    builder = StateGraph(schema)
    for before, node in zip((None, *nodes), nodes):
        builder.add_node(node)
        builder.add_edge(START if before is None else before.__name__, node.__name__)
    return builder.compile(**options)
"""

ECHO = f"""{HEAD}
async def say(state: Tea) -> Tea:
    reply = await model.ainvoke(state["text"])
    return {{"text": reply.content + "!"}}

async def again(state: Tea) -> Tea:
    return {{"text": (await model.ainvoke(state["text"])).content}}

graph = chain(Tea, say, again)
"""

ASKS = f"""{HEAD}
async def draft(state: Tea) -> Tea:
    return {{"seen": [(await model.ainvoke("draft")).content]}}

def approve(state: Tea) -> Tea:
    return {{"seen": [repr(interrupt("Is it good?"))]}}

def sign(state: Tea) -> Tea:
    return {{"seen": [repr(interrupt("Who signs?"))]}}

graph = chain(Tea, draft, approve, sign)
"""

FORK = f"""{HEAD}
def left(state: Tea) -> Tea:
    return {{"seen": [f"left {{interrupt('left?')}}"]}}

def right(state: Tea) -> Tea:
    return {{"seen": [f"right {{interrupt('right?')}}"]}}

builder = StateGraph(Tea)
for node in (left, right):
    builder.add_node(node)
    builder.add_edge(START, node.__name__)
graph = builder.compile()
"""
