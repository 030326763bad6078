"""States of threads as clients see them, from LangGraph's snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import PregelTask, StateSnapshot

from agentrt.integrations.langgraph.graphs import Graph


async def last_state(
    graph: Graph, config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """A thread's last state, with what tasks have written to it since.

    If that does not go together, as when two of them write a value that can only be one, it is
    the state without it.
    """
    try:
        return await graph.aget_state(config, subgraphs=subgraphs)
    except Exception:  # a reducer is the graph's own, and may raise anything
        async for state in graph.aget_state_history(config, limit=1):
            return state
        raise


def interrupts_by_task(state: StateSnapshot) -> dict[str, Any]:
    """The pending interrupts of a thread, by the ids of their tasks."""
    return {task.id: list(task.interrupts) for task in state.tasks if task.interrupts}


def state_json(
    state: StateSnapshot, thread: str, select: Sequence[str] | None = None
) -> dict[str, Any]:
    """A snapshot of the thread."""
    whole = {
        "values": state.values,
        "next": list(state.next),
        "tasks": [_task_json(task, thread) for task in state.tasks],
        "metadata": state.metadata or {},
        "created_at": state.created_at,
        "checkpoint": checkpoint_json(state.config, thread),
        "parent_checkpoint": (
            checkpoint_json(state.parent_config, thread) if state.parent_config else None
        ),
        "interrupts": list(state.interrupts),
        "checkpoint_id": _configurable(state.config).get("checkpoint_id"),
        "parent_checkpoint_id": _configurable(state.parent_config).get("checkpoint_id"),
    }
    return whole if select is None else _selected(whole, select)


def checkpoint_json(config: RunnableConfig | None, thread: str) -> dict[str, Any]:
    """Where a snapshot was taken."""
    found = _configurable(config)
    place = {
        "thread_id": found.get("thread_id", thread),
        "checkpoint_ns": found.get("checkpoint_ns", ""),
        "checkpoint_id": found.get("checkpoint_id"),
    }
    if "checkpoint_map" in found:
        place["checkpoint_map"] = found["checkpoint_map"]
    return place


def _configurable(config: RunnableConfig | None) -> dict[str, Any]:
    return dict((config or {}).get("configurable") or {})


def _task_json(task: PregelTask, thread: str) -> dict[str, Any]:
    inner = task.state
    snapshot = state_json(inner, thread) if isinstance(inner, StateSnapshot) else None
    place = inner.config if isinstance(inner, StateSnapshot) else inner
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": list(task.interrupts),
        "checkpoint": None if place is None else checkpoint_json(place, thread),
        "state": snapshot,
        "result": task.result,
    }


def _selected(whole: dict[str, Any], select: Sequence[str]) -> dict[str, Any]:
    """Of a snapshot, what was asked for; ``values.KEY`` is one value of the state."""
    chosen: dict[str, Any] = {}
    for name in select:
        key, _, inner = name.partition(".")
        if not inner:
            chosen[key] = whole[key]
        elif isinstance(whole["values"], dict) and inner in whole["values"]:
            chosen.setdefault("values", {})[inner] = whole["values"][inner]
    return chosen
