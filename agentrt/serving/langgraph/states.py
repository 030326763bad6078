"""The states of threads, which are LangGraph checkpoints, in the JSON form that clients get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import PregelTask, StateSnapshot

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.responses import to_json

REFUSALS = (TypeError, ValueError)
"""The errors of a graph that does not accept the values in a checkpoint: a `ValueError` of pydantic
or of a check in a dataclass, and a `TypeError` of a dataclass that lacks the value of a field.
"""


async def last_state(
    graph: Graph, config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return a thread's latest state with the pending writes of its tasks, or the thread's state at
    the checkpoint that ``config`` names.

    If the writes conflict, for example because two tasks write a value that allows only one
    writer, return the latest state without the writes.
    """
    try:
        return await graph.aget_state(config, subgraphs=subgraphs)
    except Exception:  # a reducer is the graph's own, and may raise anything
        async for state in graph.aget_state_history(config, limit=1):
            return state
        raise


async def thread_state(graph: Graph, thread: str) -> dict[str, Any]:
    """Return the columns of a thread's row that depend on its latest checkpoint. Raises one of
    `REFUSALS` if the graph does not accept the values in the checkpoint, for example because a run
    had an invalid input.
    """
    state = await last_state(graph, thread_config(thread))
    interrupts = {task.id: list(task.interrupts) for task in state.tasks if task.interrupts}
    return {
        "status": "interrupted" if state.next else "idle",
        "values": None if state.created_at is None else to_json(state.values),
        "interrupts": to_json(interrupts),
        "error": None,
    }


async def readable_state(graph: Graph, thread: str) -> dict[str, Any]:
    """Return the `thread_state`. If the graph does not accept the values in the checkpoint, return
    only the status ``idle``, so that the stored values stay unchanged.
    """
    try:
        return await thread_state(graph, thread)
    except REFUSALS:
        return {"status": "idle"}


def state_json(
    state: StateSnapshot, thread: str, select: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return a snapshot of the thread in the form that clients get."""
    parent = state.parent_config
    whole = {
        "values": state.values,
        "next": list(state.next),
        "tasks": [_task_json(task, thread) for task in state.tasks],
        "metadata": {**state.metadata, "thread_id": thread} if state.metadata else {},
        "created_at": state.created_at,
        "checkpoint": {"checkpoint_id": None, **checkpoint_json(state.config, thread)},
        "parent_checkpoint": checkpoint_json(parent, thread) if parent else None,
        "interrupts": list(state.interrupts),
        "checkpoint_id": _configurable(state.config).get("checkpoint_id"),
        "parent_checkpoint_id": _configurable(parent).get("checkpoint_id"),
    }
    return whole if select is None else _selected(whole, select)


def checkpoint_json(config: RunnableConfig | None, thread: str | None = None) -> dict[str, Any]:
    """Return the checkpoint that a config names. A config without a checkpoint id names the latest
    checkpoint of its namespace.
    """
    configurable = _configurable(config)
    checkpoint = {
        "thread_id": configurable.get("thread_id", thread),
        "checkpoint_ns": configurable.get("checkpoint_ns", ""),
    }
    for key in ("checkpoint_id", "checkpoint_map"):
        if configurable.get(key):
            checkpoint[key] = configurable[key]
    return checkpoint


def _configurable(config: RunnableConfig | None) -> dict[str, Any]:
    return dict((config or {}).get("configurable") or {})


def _task_json(task: PregelTask, thread: str) -> dict[str, Any]:
    inner = task.state
    snapshot = state_json(inner, thread) if isinstance(inner, StateSnapshot) else None
    config = inner.config if isinstance(inner, StateSnapshot) else inner
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": list(task.interrupts),
        "checkpoint": None if config is None else checkpoint_json(config, thread),
        "state": snapshot,
        "result": task.result,
    }


def _selected(whole: dict[str, Any], select: Sequence[str]) -> dict[str, Any]:
    """Return the requested parts of a snapshot; ``values.KEY`` is a single value of the state."""
    chosen: dict[str, Any] = {}
    for name in select:
        key, _, inner = name.partition(".")
        if not inner:
            chosen[key] = whole[key]
        elif isinstance(whole["values"], dict) and inner in whole["values"]:
            chosen.setdefault("values", {})[inner] = whole["values"][inner]
    return chosen
