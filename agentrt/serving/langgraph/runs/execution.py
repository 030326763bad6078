"""The execution of a run: a program of the runtime that streams events into the run's log.

While the database has an outage, storing the run's end is repeated, so that a full disk or an
unreachable database delays the end, but loses nothing.

Before its first attempt, each run stores the state of its thread as the run's origin, for a
rollback and to find where the run resumes after a crash. A run adds checkpoints to the graph and to
its subgraphs, and its tasks add pending writes to earlier checkpoints. The ids of all these
checkpoints rise with time, so an id separates the checkpoints before the run from the checkpoints
of the run. A pending write is a row that belongs to a checkpoint. The rows with a task's question,
with the answers that the task has taken, and with its error are replaced by later attempts of the
task, so the origin has their values. Other rows are never replaced, so the origin only has their
keys.

A run that was interrupted by a crash resumes from the graph's latest checkpoint, if the graph
itself, and not only a subgraph, has added a checkpoint since the run's start. This checkpoint
already contains the run's input. Otherwise, the run starts again as it was requested. In this case,
either the changes of the earlier attempt are undone first (`_starts_over`), or the run starts
without the answers that tasks have taken, because LangGraph would give these answers to the next
questions. An answer counts as taken if the task that asked has written something since the run's
start, or if the subgraph to which this task belongs has added checkpoints since then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.types import Command, Send

from agentrt.errors import ProgramLoadError
from agentrt.integrations.langgraph.graphs import (
    Graph,
    Purpose,
    program_of_graph,
    program_result,
    program_terms,
)
from agentrt.integrations.langgraph.inputs import ignored_keys
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.program import Context, Program
from agentrt.runtime.run import cancel_until_ended
from agentrt.serving.background import Background
from agentrt.serving.error_responses import failure
from agentrt.serving.langgraph._compat import INTERRUPT, NULL_TASK, RESUME
from agentrt.serving.langgraph.assistants.configs import context_for, run_access, run_config
from agentrt.serving.langgraph.assistants.graphs import enter_program, native_input
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
from agentrt.serving.langgraph.database.runs import CANCEL_REASON, RunRecord
from agentrt.serving.langgraph.database.storage import Storage
from agentrt.serving.langgraph.outages import is_outage
from agentrt.serving.langgraph.responses import encode, error_json
from agentrt.serving.langgraph.runs.graph_events import ProtocolAdapter, StreamAdapter
from agentrt.serving.langgraph.runs.streams import LiveRun
from agentrt.serving.langgraph.states import REFUSALS, thread_state
from agentrt.serving.langgraph.tenant_state import TenantState

# -- origins ------------------------------------------------------------------------------


async def _origin_of(storage: Storage, record: RunRecord) -> Origin:
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


async def _roll_back(database: Database, thread: str, origin: Origin) -> None:
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
class _Entry:
    """How a run starts. If the run ``resumes``, it starts at the thread's latest checkpoint without
    input. Otherwise, it starts as it was requested. In both cases, the run may have a ``command``.
    """

    resumes: bool
    command: Mapping[str, Any] | None


async def _entry_of(storage: Storage, record: RunRecord) -> _Entry:
    """Return how a run starts now, and undo those writes of an earlier attempt that must not
    stay.
    """
    as_requested, origin = _Entry(False, record.kwargs.get("command")), record.origin
    if origin is None:
        return as_requested
    async with storage.database.reading() as connection:
        _, tip = await last_checkpoints(connection, record.thread_id)
    if tip != (origin.checkpoint_id or ""):
        return _Entry(True, None)
    if _starts_over(record.kwargs, tip):
        await _roll_back(storage.database, record.thread_id, origin)
        return as_requested
    if as_requested.command is None:
        return as_requested
    return await _remaining(storage, record, origin)


def _starts_over(kwargs: Mapping[str, Any], tip: str) -> bool:
    """Return whether a resumed run, whose graph has added no checkpoint, starts from its beginning.

    If it does not, the checkpoints that its subgraphs have added are kept. Then a
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


async def _remaining(storage: Storage, record: RunRecord, origin: Origin) -> _Entry:
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
    return _Entry(taken, None if is_empty else command)


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


def _as_command(command: Mapping[str, Any]) -> Command[Any]:
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


def _at_checkpoint(kwargs: Mapping[str, Any]) -> RunnableConfig:
    """Return the config with the checkpoint at which a run was requested to start, by default the
    thread's latest.
    """
    where = dict(kwargs.get("checkpoint") or {})
    where.pop("thread_id", None)
    if kwargs.get("checkpoint_id"):
        where["checkpoint_id"] = kwargs["checkpoint_id"]
    return {"configurable": {key: value for key, value in where.items() if value is not None}}


CANCELLED = {"error": "UserInterrupt", "message": "the run was cancelled"}
FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 10.0
_WORK = "ends of runs"
_log = logging.getLogger(__name__)


async def store_end(
    live: LiveRun, background: Background, end: Callable[[], Awaitable[None]]
) -> None:
    """Call ``end``, which stores a run's end, until it succeeds.

    Retries with exponential backoff while the database has an outage. Cancelling the run triggers
    the next try at once. Gives up when the server stops, so that the next server resumes the run.
    Raises errors that are not outages.
    """
    backoff_s = FIRST_BACKOFF_S
    while live.action != "shutdown":
        try:
            await end()
        except Exception as error:
            if not is_outage(error):
                raise
            background.failed(_WORK, error)
            live.cannot_end(error)
            if live.closing:
                return
        else:
            background.went_well(_WORK)
            return
        await _back_off(live, backoff_s)
        backoff_s = min(_LONGEST_BACKOFF_S, 2 * backoff_s)


async def _back_off(live: LiveRun, seconds: float) -> None:
    """Wait for ``seconds``, or until the run is stopped."""
    live.retry_now = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await live.retry_now.wait()
    live.retry_now = None


@cache
def _warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same text already."""
    _log.warning(text)


class GraphNotServedError(ProgramLoadError):
    """The error of an unfinished run that an earlier server started, if this server does not serve
    the run's graph.
    """


class Execution:
    """The execution of a run, from its start to its end."""

    def __init__(self, live: LiveRun, state: TenantState) -> None:
        self._live = live
        self._state = state
        self._record = live.record
        self._opened = AsyncExitStack()  # closes the graph that a factory has made
        self._rolled_back = False  # whether a rollback of the run was tried
        self._graph: Graph | None = None
        self._begun = live.record.attempt > 0
        self._began = time.time()
        self._stream = adapter_of(live.record)
        self._tried = False
        """Whether a try to store the run's end began. The end may be stored although the try
        failed.
        """
        self._ignored = ""
        """A sentence about the keys of the input that the graph ignores."""

    async def run(self) -> None:
        """Run the graph, and store the run's end. A run that was stopped while it waited in the
        queue only stores its end. If the run's task is cancelled, the run stops as
        `LiveRun.action` says.
        """
        background = self._state.server.background
        async with self._opened:
            error = await self._run_program() if self._live.action is None else None
            if error is not None and self._live.action is None:
                run, thread = self._record.run_id, self._record.thread_id
                why = str(error) if isinstance(error, GraphNotServedError) else failure(error)
                _log.warning("run %s of thread %s failed: %s", run, thread, why)
            try:
                await store_end(self._live, background, partial(self._end, error))
            except Exception as fault:  # a bug, or a result that the database cannot store
                _log.exception("run %s: the end could not be stored", self._record.run_id)
                await store_end(self._live, background, partial(self._fail, fault, {}))
        if self._live.action == "rollback" and not self._rolled_back:
            await self._roll_back_late()
        self._live.over = True

    async def _roll_back_late(self) -> None:
        """Roll the run back after its end was stored, because a client asked for that while the
        end was being stored. If that fails, the stored end stays.
        """
        self._graph = None
        async with self._opened:
            await store_end(self._live, self._state.server.background, self._roll_back)

    async def _run_program(self) -> Exception | None:
        """Run the graph as a program of the runtime, and return the error of its end, or None."""
        self._live.stoppable = True
        try:
            await self._begin()
            graph = self._graph = await self._open("threads.create_run")
            record, terms = self._record, program_terms(graph)
            if not self._entry.resumes and not self._state.graphs.is_native(record.graph_id):
                raw_input = record.kwargs.get("input")
                self._ignored = ignored_keys(graph, record.graph_id, raw_input)
                if self._ignored:
                    _warn_once(f"a run's input: {self._ignored}; LangGraph ignores other keys")
            run = self._state.server.runtime.start(
                self._program(graph),
                self._input(),
                session=record.thread_id,
                **{**terms, "tenant": record.tenant},
            )
            try:
                await run.wait()
            except asyncio.CancelledError:
                # No effect if the program itself was cancelled, and has ended. A node may catch
                # the cancellation and go on, so one may not be enough.
                cancel_until_ended(run)
                assert run.task is not None
                await asyncio.wait([run.task])
                raise
        except asyncio.CancelledError:
            self._live.action = self._live.action or "interrupt"
        except Exception as error:
            return error
        finally:
            self._live.stoppable = False
        return None

    # -- the start ---------------------------------------------------------------------

    async def _begin(self) -> None:
        """Store the run's origin (the state of its thread before the run) and the status
        ``running``, and begin the run's stream.
        """
        record = self._record
        self._entry = await _entry_of(self._state.storage, record)
        origin = await _origin_of(self._state.storage, record)
        record = dataclasses.replace(record, attempt=record.attempt + 1, origin=origin)
        self._live.record = self._record = record
        await self._state.runs.began(record)
        self._begun = True
        about = {"run_id": record.run_id, "attempt": record.attempt}
        await self._live.log.put([("metadata", encode(about))])

    def _program(self, graph: Graph) -> Program:
        """Make the program that runs ``graph``, and streams its events into the run's log."""
        record, stream, log = self._record, self._stream, self._live.log
        config, options = run_config(record), self._options(graph)
        if self._entry.resumes:  # from the thread's latest checkpoint, not the requested one
            config["configurable"].pop("checkpoint_id", None)
        else:
            config = merge_configs(config, _at_checkpoint(record.kwargs))

        async def run_graph(ctx: Context, input: Any) -> Any:
            if self._state.graphs.is_native(record.graph_id):
                enter_program(ctx)
            async for name, data in stream.parts(graph, input, config, options):
                await log.put([(name, encode(data))])
            values = dict(stream.result) if isinstance(stream.result, dict) else stream.result
            return await program_result(graph, thread_config(record.thread_id), values)

        return program_of_graph(run_graph, record.graph_id)

    def _input(self) -> Any:
        kwargs = self._record.kwargs
        if self._entry.command is not None:
            return _as_command(self._entry.command)
        if self._entry.resumes:
            return None
        native = self._state.graphs.is_native(self._record.graph_id)
        # None as input makes a graph resume, so pass a program's missing input as a value.
        at_start = self._record.origin is None or self._record.origin.checkpoint_id is None
        if native and (kwargs.get("input") is not None or at_start):
            return native_input(kwargs.get("input"))
        return kwargs.get("input")

    def _options(self, graph: Graph) -> dict[str, Any]:
        """Return the options for `Pregel.astream`."""
        kwargs = self._record.kwargs
        names = ("interrupt_before", "interrupt_after", "durability")
        options = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        options["context"] = context_for(graph, kwargs.get("context"))
        # By default, LangGraph streams all values of the state, also those that are not part of the
        # graph's output.
        options["output_keys"] = graph.output_channels
        return options

    # -- the end -----------------------------------------------------------------------

    async def _end(self, error: Exception | None) -> None:
        if self._live.action == "rollback":
            await self._roll_back()
        elif self._live.action != "shutdown":
            await self._finish(error)

    async def _finish(self, error: Exception | None) -> None:
        """Store the run's end with its status and result. The result of a cancelled run is the
        thread's values, and not an error.
        """
        try:
            state = await self._thread_state()
        except REFUSALS as unreadable:  # the graph does not accept the thread's values
            error, state = error or unreadable, {"status": "idle"}
        # A run that has ended before the server began to stop is not cancelled.
        if self._live.action not in (None, "shutdown"):
            result = encode(state.get("values") or {})
            if self._begun:
                state |= {"status": "interrupted", "error": CANCELLED}
            await self._store("interrupted", result, state, reason=CANCEL_REASON)
        elif error is not None:
            await self._fail(error, state)
        else:
            await self._store("success", encode(self._stream.result), state)

    async def _fail(self, error: Exception, state: Mapping[str, Any]) -> None:
        """Store that the run ended with an error. ``state`` has the known part of the thread's
        state.
        """
        fault = error_json(error)
        if self._ignored:  # probably the cause
            fault = {**fault, "message": f"{fault['message']} ({self._ignored})"}
        failed = {**state, "status": "error", "error": fault}
        await self._store("error", encode({"__error__": fault}), failed, fault)

    async def _store(
        self,
        status: str,
        result: bytes,
        state: Mapping[str, Any],
        fault: dict[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        """Store the run's end with the thread's state and the last events of the run's stream, then
        publish these events. All is stored in one transaction, because `store_end` repeats a call
        that fails. If the failed call has stored the end nevertheless, nothing is stored again.
        """
        record, webhooks, log = self._record, self._state.webhooks, self._live.log
        if self._tried and (stored := await self._state.runs.stored_end(record.run_id)) is not None:
            await self._take_over(stored)
            return
        self._tried = True
        values = state.get("values")
        hook = [] if reason else webhooks.note(record, self._began, values, fault)
        end = self._state.runs.end(record.run_id, status, result, reason)
        parts = self._stream.end(state["status"], fault)
        last = await log.numbered([(name, encode(data)) for name, data in parts])
        statements = (end, *hook, *log.inserts(last))
        await self._state.threads.update_state(record.thread_id, state, *statements)
        self._live.result = result
        if hook:
            webhooks.begin(record.run_id)
        await log.publish(last)

    async def _take_over(self, result: bytes) -> None:
        """Go on with the end that an earlier try has stored although it seemed to fail, for example
        because the connection broke after the commit.
        """
        await self._live.log.publish_stored()
        self._live.result = result
        if self._record.kwargs.get("webhook"):
            self._state.webhooks.begin(self._record.run_id)

    async def _roll_back(self) -> None:
        """Undo the run's changes to the state of its thread, and delete the run. The run's row is
        deleted in the transaction that stores the thread's state, because only a run can change the
        status of a busy thread after a kill.
        """
        self._rolled_back = True
        record, storage = self._record, self._state.storage
        if record.origin is not None:
            await storage.revoked.revoke(record.run_id)
            await _roll_back(storage.database, record.thread_id, record.origin)
        try:
            state = await self._thread_state()
        except REFUSALS:  # as in `_finish`
            state = {"status": "idle"}
        removal = self._state.runs.removal(record.run_id)
        await self._state.threads.update_state(record.thread_id, state, *removal)
        self._live.result = encode(state.get("values") or {})

    async def _thread_state(self) -> dict[str, Any]:
        """Return the thread's current state. If the graph cannot be made, return only the status
        ``idle``, so that the stored values stay unchanged.
        """
        try:
            graph = self._graph or await self._open("threads.read")
        except ProgramLoadError:
            return {"status": "idle"}
        return await thread_state(graph, self._record.thread_id)

    async def _open(self, purpose: Purpose) -> Graph:
        """Open the run's graph, which closes at the run's end."""
        record, graphs = self._record, self._state.graphs
        if record.graph_id not in graphs:
            raise GraphNotServedError(
                f"an earlier server started this run of the graph {record.graph_id!r}, but this "
                "server does not serve the graph; serve its file, too, and start the run again"
            )
        opening = graphs.opened(record.graph_id, record.tenant, run_access(record, purpose))
        return await self._opened.enter_async_context(opening)


def adapter_of(record: RunRecord) -> StreamAdapter | ProtocolAdapter:
    """Return the adapter that makes the run's events in the form that the client requested."""
    kwargs = record.kwargs
    if kwargs.get("protocol"):
        return ProtocolAdapter(record.graph_id)
    return StreamAdapter(kwargs["stream_mode"], subgraphs=bool(kwargs.get("stream_subgraphs")))
