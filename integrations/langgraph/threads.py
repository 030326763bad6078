"""How a thread stands: what LangGraph's checkpoints say of its next step and its questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agentrt.errors import ConfigError
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
    """How ``thread`` stands with the graph's checkpointer, which it must have.

    Raises `ConfigError` if the checkpointer cannot be read.
    """
    try:
        state = await graph.aget_state(thread_config(thread))
    except NotImplementedError as error:
        raise ConfigError(
            f"the graph's checkpointer, {type(graph.checkpointer).__name__}, has no async methods; "
            "compile it with one that has, or give --checkpointer sqlite:FILE"
        ) from error
    except Exception as error:  # a database, a network, or bytes that are no checkpoint
        raise ConfigError(
            f"the checkpoints of thread {thread!r} cannot be read: {error}"
        ) from error
    questions = tuple(Question(one.id, one.value) for one in state.interrupts)
    return Standing(state.created_at is not None, state.next, questions)


def answer(replies: Mapping[str, Any]) -> Command[Any]:
    """The input that answers questions, by their ids."""
    return Command(resume=dict(replies))
