"""Where a run goes on that a server was killed in.

Each run notes, before its first attempt, where its thread stood. If checkpoints have been added
since, its input is in them, and it goes on with no input. An answer to an interrupt, too, has
been taken once a task has it. Else it starts as it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Command, Send

from agentrt.integrations.langgraph.threads import thread_config
from agentrt.serving.langgraph.runs import RunRecord

_RESUME = "__resume__"
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""The task to which LangGraph writes an answer that no task has taken yet."""


async def standing_before(saver: BaseCheckpointSaver[Any], thread: str) -> dict[str, Any]:
    """Where a thread stands, for a run that starts now."""
    tip = await saver.aget_tuple(thread_config(thread))
    return {
        "checkpoint_id": _id_of(tip),
        "answers": 0 if tip is None else _answers(tip),
        "writes": [] if tip is None else sorted({task for task, _, _ in tip.pending_writes or ()}),
    }


async def goes_on(saver: BaseCheckpointSaver[Any], record: RunRecord) -> bool:
    """Whether a run that was started before has got as far as its thread."""
    if record.origin is None:
        return False
    tip = await saver.aget_tuple(thread_config(record.thread_id))
    if _id_of(tip) != record.origin["checkpoint_id"]:
        return True
    return tip is not None and _answers(tip) > record.origin["answers"]


def _id_of(tip: CheckpointTuple | None) -> str | None:
    return None if tip is None else str(tip.checkpoint["id"])


def _answers(tip: CheckpointTuple) -> int:
    """How many answers tasks have taken."""
    writes: Iterable[tuple[str, str, Any]] = tip.pending_writes or ()
    taken = [value for task, channel, value in writes if channel == _RESUME and task != _NOBODY]
    return sum(len(value) if isinstance(value, list) else 1 for value in taken)


def as_command(given: dict[str, Any]) -> Command[Any]:
    """A client's command as LangGraph takes it."""
    goto = given.get("goto") or ()
    places = [goto] if isinstance(goto, str | dict) else goto
    update = given.get("update")
    if isinstance(update, list):
        update = [tuple(one) for one in update]
    return Command(
        update=update,
        resume=given.get("resume"),
        goto=[p if isinstance(p, str) else Send(p["node"], p.get("input")) for p in places],
    )


def at_checkpoint(kwargs: dict[str, Any]) -> RunnableConfig:
    """The configurable of where a run was asked to start; its thread's end by default."""
    where = dict(kwargs.get("checkpoint") or {})
    where.pop("thread_id", None)
    if kwargs.get("checkpoint_id"):
        where["checkpoint_id"] = kwargs["checkpoint_id"]
    return {"configurable": {key: value for key, value in where.items() if value is not None}}
