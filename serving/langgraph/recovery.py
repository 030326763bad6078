"""Where a run goes on that a server was killed in.

Each run notes, before its first attempt, where its thread stood (`origins`). If the graph itself
has added a checkpoint since, the run's input is in that, and it goes on with no input. Else it
starts as it was asked for, but without the answers that have been taken. LangGraph does not know
that they were: it would give them to the next questions.

An answer is taken once the task that had asked has written of it. That task is often not the
graph's own but one of a subgraph, which adds checkpoints of its own meanwhile.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from agentrt.serving.langgraph.keepers import Storage
from agentrt.serving.langgraph.origins import (
    Origin,
    Task,
    Written,
    go_back,
    last_id,
    rows_since,
    spaces_since,
    standing_now,
    take_back,
)
from agentrt.serving.langgraph.runs import RunRecord

_RESUME = "__resume__"
_INTERRUPT = "__interrupt__"
_ID = re.compile("[0-9a-f]{32}")
"""Of a question: by such keys, LangGraph tells a map of answers from one answer."""
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""The task to which LangGraph writes a command: an answer that no task has taken yet, and more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a run starts. One that ``goes_on`` does so at its thread's end, with no input; else it
    starts where, and as, it was asked to. Either may have a command.
    """

    goes_on: bool
    command: Mapping[str, Any] | None


async def origin_of(storage: Storage, record: RunRecord) -> Mapping[str, Any]:
    """Where the run's thread stood when it first started; that is now, if it never has."""
    if record.origin is not None:
        return record.origin
    command = record.kwargs.get("command") or {}
    # Nothing else writes to checkpoints of the past: it leaves them by a new one.
    also = _places(record.kwargs) if command.get("resume") is not None else set()
    return (await standing_now(storage.database, record.thread_id, also)).as_json()


async def entry(storage: Storage, record: RunRecord) -> Entry:
    """How a run starts now, which may have been started before."""
    anew = Entry(False, record.kwargs.get("command"))
    if record.origin is None:
        return anew
    origin = Origin.of(record.origin)
    async with storage.database.reading() as connection:
        tip = await last_id(connection, record.thread_id, own=True)
    if tip != origin.checkpoint_id:
        return Entry(True, None)
    if origin.writes is None:
        return anew
    if _starts_over(record.kwargs, tip):
        await go_back(storage.database, record.thread_id, origin)
        return anew
    return anew if anew.command is None else await _rest(storage, record, origin)


def _starts_over(kwargs: Mapping[str, Any], tip: str) -> bool:
    """Whether a run that has added no checkpoint begins again: what its subgraphs have kept is of
    no use without it. One with neither input nor command has begun nothing: it only goes on.
    """
    if kwargs.get("durability") == "exit" or not _places(kwargs) <= {tip}:
        return True
    return kwargs.get("command") is None and kwargs.get("input") is not None


def _places(kwargs: Mapping[str, Any]) -> set[str]:
    """The checkpoints at which a run was asked to start."""
    asked = kwargs.get("checkpoint") or {}
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    ids = [kwargs.get("checkpoint_id"), asked.get("checkpoint_id")]
    ids += [configurable.get("checkpoint_id"), *(asked.get("checkpoint_map") or {}).values()]
    return {one for one in ids if one and isinstance(one, str)}


# -- answers ------------------------------------------------------------------------------


async def _rest(storage: Storage, record: RunRecord, origin: Origin) -> Entry:
    """What is left of a run's command, once what it wrote was taken back."""
    command = dict(record.kwargs["command"])
    progress = await _progress_since(storage, record.thread_id, origin)
    resume = command.pop("resume", None)
    left = progress.left_of(resume)
    taken = left != resume
    place = ("", origin.checkpoint_id, _NOBODY)
    without = _RESUME if taken else None
    await take_back(storage.database, record.thread_id, origin, place, without)
    if left is not None:
        command["resume"] = left
    return Entry(taken, command if any(given is not None for given in command.values()) else None)


@dataclass(frozen=True, slots=True)
class _Progress:
    """What has come of the questions that were open at a run's start: which tasks had asked each,
    which of these tasks have ``moved`` since, and whether any task has taken an answer.
    """

    asked: Mapping[str, set[Task]]
    moved: set[Task]
    answered: bool

    def left_of(self, resume: Any) -> Any:
        """Those answers that nobody has taken, None if there are none."""
        if not (isinstance(resume, dict) and all(map(_ID.fullmatch, resume))):
            return None if self.moved or self.answered else resume
        left = {key: value for key, value in resume.items() if not self._took(key)}
        return left if left or not resume else None

    def _took(self, question: str) -> bool:
        tasks = self.asked.get(question)
        return self.answered if tasks is None else bool(tasks & self.moved)


async def _progress_since(storage: Storage, thread: str, origin: Origin) -> _Progress:
    async with storage.database.reading() as connection:
        now = await rows_since(connection, storage.database, thread, origin.since)
        added = await spaces_since(connection, thread, origin.latest)
    rows = origin.writes or ()
    before, after = _answers(storage, rows), _answers(storage, now)
    more = {task for task, count in after.items() if count > before[task]}
    done = {row.task for row in now if not row.replaceable}
    done -= {row.task for row in rows if not row.replaceable}
    asked: dict[str, set[Task]] = defaultdict(set)
    for row in rows:
        if row.channel == _INTERRUPT:
            for one in _listed(_value(storage, row)):
                asked[one.id].add(row.task)
    waited = set().union(*asked.values())
    moved = {task for task in waited if task in more | done or task[0] in added}
    return _Progress(asked, moved, bool(more))


def _answers(storage: Storage, rows: Iterable[Written]) -> Counter[Task]:
    """How many answers each task has taken."""
    taken = [row for row in rows if row.channel == _RESUME and row.task_id != _NOBODY]
    return Counter({row.task: len(_listed(_value(storage, row))) for row in taken})


def _value(storage: Storage, row: Written) -> Any:
    assert row.value is not None
    return storage.saver.serde.loads_typed((row.type or "", row.value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


# -- what was asked for -------------------------------------------------------------------


def as_command(given: Mapping[str, Any]) -> Command[Any]:
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
