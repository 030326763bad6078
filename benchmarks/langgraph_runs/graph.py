"""The graph that agentrt's and LangGraph's servers serve. It has one node, which appends a word."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph


class Steps(TypedDict):
    """The words of the thread so far."""

    steps: Annotated[list[str], operator.add]


_builder = StateGraph(Steps)
_builder.add_node("one", lambda state: {"steps": ["one"]})
_builder.add_edge(START, "one")
graph = _builder.compile(name="steps")
