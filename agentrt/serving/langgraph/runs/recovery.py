"""Finds the state of a thread before a run, for a rollback, and where a run resumes after a crash.

Before its first attempt, each run stores that state as the run's origin. A run adds checkpoints
to the graph and to its subgraphs, and its tasks add pending writes to earlier checkpoints. The ids
of all these checkpoints rise with time, so an id separates the checkpoints before the run from the
checkpoints of the run. A pending write is a row that belongs to a checkpoint. The rows with a
task's question, with the answers that the task has taken, and with its error are replaced by later
attempts of the task, so the origin has their values. Other rows are never replaced, so the origin
only has their keys.

A run that was interrupted by a crash resumes from the graph's latest checkpoint, if the graph
itself, and not only a subgraph, has added a checkpoint since the run's start. This checkpoint
already contains the run's input. Otherwise, the run starts again as it was requested. In this case,
either the changes of the earlier attempt are undone first (`_starts_over`), or the run starts
without the answers that tasks have taken, because LangGraph would give these answers to the next
questions. An answer counts as taken if the task that asked has written something since the run's
start, or if the subgraph to which this task belongs has added checkpoints since then.
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
    last_checkpoints,
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
    """Return the origin of a run: the state of its thread before the run's first start.

    At the first start, the origin is read from the thread. At later starts, it is the origin that
    was stored at the first start. The origin has the pending writes that the run can change: the
    writes of all checkpoints from the graph's latest checkpoint on or, for a run that answers
    questions, from the earliest checkpoint that the request names as the run's start. Any other run
    from an earlier checkpoint begins with a new checkpoint, and changes no earlier writes.
    """
    if record.origin is not None:
        return record.origin
    database, thread = storage.database, record.thread_id
    command = record.kwargs.get("command") or {}
    answered = _start_checkpoints(record.kwargs) if command.get("resume") is not None else set()
    async with database.reading(rows=True) as connection:
        latest, own = await last_checkpoints(connection, thread)
        since = min([own, *answered])
        rows = await writes_since(connection, database, thread, since)
    return Origin(checkpoint_id=own or None, latest=latest, since=since, rows=tuple(rows))


async def roll_back(database: Database, thread: str, origin: Origin) -> None:
    """Undo all changes to a thread's checkpoints and pending writes since ``origin``."""
    async with database.writing() as connection:
        await delete_after(connection, database, thread, origin.latest)
        now = await writes_since(connection, database, thread, origin.since)
        await restore_writes(connection, database, thread, now, origin.rows)


async def _roll_back_command(
    database: Database, thread: str, origin: Origin, *, without_answers: bool
) -> None:
    """Undo the pending writes of a run's command. ``without_answers`` also drops answers that were
    stored before the run.
    """
    task = ("", origin.checkpoint_id or "", NULL_TASK)
    async with database.writing() as connection:
        rows = await writes_since(connection, database, thread, origin.since)
        now = [row for row in rows if row.task == task]
        before = [
            row
            for row in origin.rows
            if row.task == task and not (without_answers and row.channel == RESUME)
        ]
        await restore_writes(connection, database, thread, now, before)


# -- recovery -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """How a run starts. If the run ``resumes``, it starts at the thread's latest checkpoint without
    input. Otherwise, it starts as it was requested. In both cases, the run may have a ``command``.
    """

    resumes: bool
    command: Mapping[str, Any] | None


async def entry(storage: Storage, record: RunRecord) -> Entry:
    """Return how a run starts now, and undo those writes of an earlier attempt that must not
    stay.
    """
    as_requested, origin = Entry(False, record.kwargs.get("command")), record.origin
    if origin is None:
        return as_requested
    async with storage.database.reading() as connection:
        _, tip = await last_checkpoints(connection, record.thread_id)
    if tip != (origin.checkpoint_id or ""):
        return Entry(True, None)
    if _starts_over(record.kwargs, tip):
        await roll_back(storage.database, record.thread_id, origin)
        return as_requested
    if as_requested.command is None:
        return as_requested
    return await _remaining(storage, record, origin)


def _starts_over(kwargs: Mapping[str, Any], tip: str) -> bool:
    """Return whether a run whose graph has added no checkpoint starts over.

    If the run does not start over, the checkpoints that its subgraphs have added are kept. Then a
    run with a command continues with the rest of the command, and a run with neither input nor
    command continues its thread.
    """
    if kwargs.get("durability") == "exit" or not _start_checkpoints(kwargs) <= {tip}:
        return True
    return kwargs.get("command") is None and kwargs.get("input") is not None


def _start_checkpoints(kwargs: Mapping[str, Any]) -> set[str]:
    """Return the ids of the checkpoints at which a run was requested to start."""
    checkpoint = kwargs.get("checkpoint") or {}
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    ids = [kwargs.get("checkpoint_id"), checkpoint.get("checkpoint_id")]
    ids += [configurable.get("checkpoint_id"), *(checkpoint.get("checkpoint_map") or {}).values()]
    return {key for key in ids if key and isinstance(key, str)}


async def _remaining(storage: Storage, record: RunRecord, origin: Origin) -> Entry:
    """Undo the writes of a run's command, and return an entry with the part of the command that is
    still to be done.
    """
    command = dict(record.kwargs["command"])
    progress = await _progress_since(storage, record.thread_id, origin)
    resume = command.pop("resume", None)
    left = progress.left_of(resume)
    taken = left != resume
    await _roll_back_command(storage.database, record.thread_id, origin, without_answers=taken)
    if left is not None:
        command["resume"] = left
    is_empty = all(value is None for value in command.values())
    return Entry(taken, None if is_empty else command)


@dataclass(frozen=True, slots=True)
class _QuestionProgress:
    """The progress of the questions that were open at a run's start."""

    askers: Mapping[str, set[Task]]  # the tasks that asked each question, by the question's id
    moved: set[Task]  # the askers that have written since, or whose subgraph added checkpoints
    answered: bool  # whether any task has taken an answer since

    def left_of(self, resume: Any) -> Any:
        """Return the part of a command's ``resume`` that no task has taken, or None."""
        if not is_answer_map(resume):
            return None if self.moved or self.answered else resume
        left = {key: value for key, value in resume.items() if not self._took(key)}
        return left if left or not resume else None

    def _took(self, question: str) -> bool:
        tasks = self.askers.get(question)
        return self.answered if tasks is None else bool(tasks & self.moved)


async def _progress_since(storage: Storage, thread: str, origin: Origin) -> _QuestionProgress:
    async with storage.database.reading() as connection:
        now = await writes_since(connection, storage.database, thread, origin.since)
        added = await namespaces_since(connection, thread, origin.latest)
    rows = origin.rows
    before, after = _answers(storage, rows), _answers(storage, now)
    answered = {task for task, count in after.items() if count > before[task]}
    done = {row.task for row in now if not row.replaceable}
    done -= {row.task for row in rows if not row.replaceable}
    askers: dict[str, set[Task]] = defaultdict(set)
    for row in rows:
        if row.channel == INTERRUPT:
            for interrupt in _as_list(_value(storage, row)):
                askers[interrupt.id].add(row.task)
    waited = set().union(*askers.values())
    moved = {task for task in waited if task in answered | done or task[0] in added}
    return _QuestionProgress(askers, moved, bool(answered))


def _answers(storage: Storage, rows: Iterable[Write]) -> Counter[Task]:
    """Return how many answers each task has taken."""
    taken = [row for row in rows if row.channel == RESUME and row.task_id != NULL_TASK]
    return Counter({row.task: len(_as_list(_value(storage, row))) for row in taken})


def _value(storage: Storage, row: Write) -> Any:
    assert row.value is not None
    return storage.saver.serde.loads_typed((row.type or "", row.value))


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


# -- the request of a run in LangGraph's form -----------------------------------------------


def as_command(command: Mapping[str, Any]) -> Command[Any]:
    """Convert a client's command to LangGraph's `Command`."""
    goto = command.get("goto") or ()
    nodes = [goto] if isinstance(goto, str | dict) else goto
    update = command.get("update")
    if isinstance(update, list):
        update = [tuple(pair) for pair in update]
    return Command(
        update=update,
        resume=command.get("resume"),
        goto=[n if isinstance(n, str) else Send(n["node"], n.get("input")) for n in nodes],
    )


def at_checkpoint(kwargs: Mapping[str, Any]) -> RunnableConfig:
    """Return the config with the checkpoint at which a run was requested to start, by default the
    thread's latest.
    """
    where = dict(kwargs.get("checkpoint") or {})
    where.pop("thread_id", None)
    if kwargs.get("checkpoint_id"):
        where["checkpoint_id"] = kwargs["checkpoint_id"]
    return {"configurable": {key: value for key, value in where.items() if value is not None}}
