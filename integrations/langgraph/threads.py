"""How a thread stands: what LangGraph's checkpoints say of its next step and its questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agentrt.integrations.langgraph.graphs import Graph


@dataclass(frozen=True, slots=True)
class Question:
    """What a graph asks a human: the id and the value of its ``interrupt()``."""

    id: str
    value: Any


@dataclass(frozen=True, slots=True)
class Standing:
    """A thread's last checkpoint, if there is one.

    ``next`` are the nodes that are to run, and ``questions`` what they wait for.
    """

    exists: bool
    next: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()


def thread_config(thread: str) -> RunnableConfig:
    """The config that makes a graph run in ``thread``."""
    return {"configurable": {"thread_id": thread}}


async def standing_of(graph: Graph, thread: str) -> Standing:
    """How ``thread`` stands with the graph's checkpointer, which it must have."""
    state = await graph.aget_state(thread_config(thread))
    questions = tuple(Question(one.id, one.value) for one in state.interrupts)
    return Standing(state.created_at is not None, state.next, questions)


def answer(replies: Mapping[str, Any]) -> Command[Any]:
    """The input that answers questions, by their ids."""
    return Command(resume=dict(replies))
