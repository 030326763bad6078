"""Checkpoints in streams: where each is, and its parent, as clients name places in a thread."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.runnables import RunnableConfig

from agentrt.serving.langgraph.threads import checkpoint_json


def with_places(mode: str, data: Any) -> Any:
    """An event of LangGraph of the mode ``checkpoints`` or ``debug``, with what clients expect."""
    if mode == "checkpoints":
        return _placed(data)
    if mode == "debug" and data.get("type") == "checkpoint":
        return {**data, "payload": _placed(data["payload"])}
    return data


def _placed(checkpoint: dict[str, Any]) -> dict[str, Any]:
    parent = checkpoint.get("parent_config")
    return {
        **checkpoint,
        "tasks": [_task(one) for one in checkpoint.get("tasks", ())],
        "checkpoint": checkpoint_json(checkpoint["config"]),
        "parent_checkpoint": None if parent is None else checkpoint_json(parent),
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """A task whose subgraph's state is named by a config: its place, to be asked for."""
    inner = task.get("state")
    if not isinstance(inner, dict) or "configurable" not in inner:
        return task
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": checkpoint_json(cast("RunnableConfig", inner))}
