"""Where a thread stood before a run, for rollback, and where a run resumes after a crash.

Each run notes its thread's origin before its first attempt. A run adds checkpoints, to the graph
and to each of its subgraphs, and its tasks write to checkpoints that were there before. Ids of
checkpoints grow with time, over all of these, so one id divides what was there from what the run
added. What tasks write are rows beside a checkpoint. A task's question, the answers it has taken
and its error are rows that a later attempt replaces; other rows are never replaced. So of the
former the origin has the values, and of the latter only that they were there.

If the graph itself has added a checkpoint since, a run that was interrupted by a crash resumes
from it without input, which the checkpoint has. Otherwise it starts as it was asked for, but
without the answers that were taken: LangGraph would give them to the next questions. An answer is
taken once the task that asked has written something because of it. That task often belongs to a
subgraph, which adds checkpoints of its own meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from agentrt.serving.langgraph._compat import INTERRUPT, NULL_TASK, RESUME
from agentrt.serving.langgraph.database._compat import (
    Origin,
    Task,
    Write,
    delete_after,
    last_checkpoint,
    namespaces_since,
    restore_writes,
    writes_since,
)
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.interrupts import is_answer_map
from agentrt.serving.langgraph.database.runs import RunRecord
from agentrt.serving.langgraph.database.storage import Storage

# -- origins ------------------------------------------------------------------------------


async def origin_of(storage: Storage, record: RunRecord) -> Origin:
    """Where the run's thread was at the run's first start, which is now if it never started. A run
    writes to the end of its thread, and answers to the checkpoints at which it was asked to start:
    anything else continues from a new one.
    """
    if record.origin is not None:
        return record.origin
    database, thread = storage.database, record.thread_id
    command = record.kwargs.get("command") or {}
    also = _start_checkpoints(record.kwargs) if command.get("resume") is not None else set()
    async with database.reading(rows=True) as connection:
        own = await last_checkpoint(connection, thread, own=True)
        latest = await last_checkpoint(connection, thread)
        since = min([own, *also])
        rows = await writes_since(connection, database, thread, since)
    return Origin(checkpoint_id=own or None, latest=latest, since=since, rows=tuple(rows))


async def roll_back(database: Database, thread: str, origin: Origin) -> None:
    """Undo all that was done to the thread since."""
    async with database.writing() as connection:
        await delete_after(connection, database, thread, origin.latest)
        now = await writes_since(connection, database, thread, origin.since)
        await restore_writes(connection, database, thread, now, origin.rows)


async def _roll_back_command(
    database: Database, thread: str, origin: Origin, *, without_answers: bool
) -> None:
    """Undo what was written for a run's command, and drop answers that were there before."""
    task = ("", origin.checkpoint_id or "", NULL_TASK)
    async with database.writing() as connection:
        rows = await writes_since(connection, database, thread, origin.since)
        now = [row for row in rows if row.task == task]
        then = [
            row
            for row in origin.rows
            if row.task == task and not (without_answers and row.channel == RESUME)
        ]
        await restore_writes(connection, database, thread, now, then)


# -- recovery -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """How a run starts: at its thread's end without input if it ``resumes``, otherwise where and
    as it was asked to. Either may have a command.
    """

    resumes: bool
    command: Mapping[str, Any] | None


async def entry(storage: Storage, record: RunRecord) -> Entry:
    """How a run starts now. It may have been started before."""
    as_asked, origin = Entry(False, record.kwargs.get("command")), record.origin
    if origin is None:
        return as_asked
    async with storage.database.reading() as connection:
        tip = await last_checkpoint(connection, record.thread_id, own=True)
    if tip != (origin.checkpoint_id or ""):
        return Entry(True, None)
    if _starts_over(record.kwargs, tip):
        await roll_back(storage.database, record.thread_id, origin)
        return as_asked
    return as_asked if as_asked.command is None else await _remaining(storage, record, origin)


def _starts_over(kwargs: Mapping[str, Any], tip: str) -> bool:
    """Whether a run that has added no checkpoint starts over, because what its subgraphs stored
    is of no use without one. A run with neither input nor command only continues its thread.
    """
    if kwargs.get("durability") == "exit" or not _start_checkpoints(kwargs) <= {tip}:
        return True
    return kwargs.get("command") is None and kwargs.get("input") is not None


def _start_checkpoints(kwargs: Mapping[str, Any]) -> set[str]:
    """The checkpoints at which a run was asked to start."""
    asked = kwargs.get("checkpoint") or {}
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    ids = [kwargs.get("checkpoint_id"), asked.get("checkpoint_id")]
    ids += [configurable.get("checkpoint_id"), *(asked.get("checkpoint_map") or {}).values()]
    return {one for one in ids if one and isinstance(one, str)}


async def _remaining(storage: Storage, record: RunRecord, origin: Origin) -> Entry:
    """Start with what is left of a run's command, after undoing what it wrote."""
    command = dict(record.kwargs["command"])
    progress = await _progress_since(storage, record.thread_id, origin)
    resume = command.pop("resume", None)
    left = progress.left_of(resume)
    taken = left != resume
    await _roll_back_command(storage.database, record.thread_id, origin, without_answers=taken)
    if left is not None:
        command["resume"] = left
    return Entry(taken, command if any(given is not None for given in command.values()) else None)


@dataclass(frozen=True, slots=True)
class _Progress:
    """What became of the questions that were open at a run's start: which tasks had asked each,
    which of these tasks have ``moved`` since, and whether any task has taken an answer.
    """

    asked: Mapping[str, set[Task]]
    moved: set[Task]
    answered: bool

    def left_of(self, resume: Any) -> Any:
        """The answers that no task has taken, or None."""
        if not is_answer_map(resume):
            return None if self.moved or self.answered else resume
        left = {key: value for key, value in resume.items() if not self._took(key)}
        return left if left or not resume else None

    def _took(self, question: str) -> bool:
        tasks = self.asked.get(question)
        return self.answered if tasks is None else bool(tasks & self.moved)


async def _progress_since(storage: Storage, thread: str, origin: Origin) -> _Progress:
    async with storage.database.reading() as connection:
        now = await writes_since(connection, storage.database, thread, origin.since)
        added = await namespaces_since(connection, thread, origin.latest)
    rows = origin.rows
    before, after = _answers(storage, rows), _answers(storage, now)
    more = {task for task, count in after.items() if count > before[task]}
    done = {row.task for row in now if not row.replaceable}
    done -= {row.task for row in rows if not row.replaceable}
    asked: dict[str, set[Task]] = defaultdict(set)
    for row in rows:
        if row.channel == INTERRUPT:
            for one in _as_list(_value(storage, row)):
                asked[one.id].add(row.task)
    waited = set().union(*asked.values())
    moved = {task for task in waited if task in more | done or task[0] in added}
    return _Progress(asked, moved, bool(more))


def _answers(storage: Storage, rows: Iterable[Write]) -> Counter[Task]:
    """How many answers each task has taken."""
    taken = [row for row in rows if row.channel == RESUME and row.task_id != NULL_TASK]
    return Counter({row.task: len(_as_list(_value(storage, row))) for row in taken})


def _value(storage: Storage, row: Write) -> Any:
    assert row.value is not None
    return storage.saver.serde.loads_typed((row.type or "", row.value))


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


# -- what was asked for -------------------------------------------------------------------


def as_command(given: Mapping[str, Any]) -> Command[Any]:
    """A client's command as LangGraph takes it."""
    goto = given.get("goto") or ()
    nodes = [goto] if isinstance(goto, str | dict) else goto
    update = given.get("update")
    if isinstance(update, list):
        update = [tuple(one) for one in update]
    return Command(
        update=update,
        resume=given.get("resume"),
        goto=[n if isinstance(n, str) else Send(n["node"], n.get("input")) for n in nodes],
    )


def at_checkpoint(kwargs: Mapping[str, Any]) -> RunnableConfig:
    """The config of where a run was asked to start; by default its thread's end."""
    where = dict(kwargs.get("checkpoint") or {})
    where.pop("thread_id", None)
    if kwargs.get("checkpoint_id"):
        where["checkpoint_id"] = kwargs["checkpoint_id"]
    return {"configurable": {key: value for key, value in where.items() if value is not None}}
