"""One run, from its start to its end: a program of the runtime that streams into a log."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from agentrt.integrations.langgraph.graphs import Graph, graph_program, program_terms
from agentrt.integrations.langgraph.threads import thread_config
from agentrt.program import Context, Program
from agentrt.runtime import Runtime
from agentrt.serving.langgraph import natives, origins, recovery
from agentrt.serving.langgraph.encoding import encode, error_json, to_json
from agentrt.serving.langgraph.eventlog import EventLog
from agentrt.serving.langgraph.graphs import Graphs
from agentrt.serving.langgraph.keepers import Storage
from agentrt.serving.langgraph.modes import Modes
from agentrt.serving.langgraph.runs import RunRecord, Runs
from agentrt.serving.langgraph.states import interrupts_by_task, last_state
from agentrt.serving.langgraph.threads import Threads

Action = Literal["interrupt", "rollback", "shutdown"]
"""Why a run is stopped: a client's wish, or a server that ends and will go on with it later."""

_STRICT = "__pregel_strict_resume"  # LangGraph's own name for it
_CANCELLED = {"error": "UserInterrupt", "message": "the run was cancelled"}


@dataclass(frozen=True, slots=True)
class Services:
    """What all runs share."""

    runtime: Runtime
    storage: Storage
    graphs: Graphs
    runs: Runs
    threads: Threads


@dataclass(slots=True, eq=False)
class Live:
    """A run that has not ended. ``action`` is why it is to stop, once it is.

    It has a ``task`` once it has left the queue, which is ``stoppable`` until its end is written.
    One that is done without a ``result`` has not ended: another server goes on with it.
    """

    record: RunRecord
    log: EventLog
    done: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    action: Action | None = None
    task: asyncio.Task[None] | None = None
    stoppable: bool = False
    result: bytes | None = None

    def stop(self, action: Action) -> None:
        """Stop it for this reason, unless it has one: then it is stopping already."""
        if self.action is not None:
            return  # to cancel again would break off its wait for its program's end
        self.action = action
        if self.task is not None and self.stoppable:
            self.task.cancel()


class Execution:
    """Carries one run out."""

    def __init__(self, live: Live, services: Services) -> None:
        self._live = live
        self._with = services
        self._record = live.record
        self._modes = Modes(
            live.record.kwargs["stream_mode"],
            subgraphs=bool(live.record.kwargs.get("stream_subgraphs")),
        )

    async def run(self) -> None:
        """From pending to its end. Cancelled, it stops as `Live.action` says."""
        error = await self._until_end() if self._live.action is None else None
        if self._live.action == "rollback":
            await self._undo()
        elif self._live.action != "shutdown":
            await self._finish(error)

    async def _until_end(self) -> Exception | None:
        """Run, and give the error that it ended with."""
        self._live.stoppable = True
        try:
            await self._begin()
            await self._run_program()
        except asyncio.CancelledError:
            self._live.action = self._live.action or "interrupt"
        except Exception as error:
            return error
        finally:
            self._live.stoppable = False
        return None

    # -- the start ---------------------------------------------------------------------

    async def _begin(self) -> None:
        """Note where the thread stands, and that the run is running."""
        record = self._record
        self._entry = await recovery.entry(self._with.storage, record)
        origin = await recovery.origin_of(self._with.storage, record)
        record = dataclasses.replace(record, attempt=record.attempt + 1, origin=origin)
        self._live.record = self._record = record
        await self._with.runs.began(record)
        await self._live.log.open()
        about = {"run_id": record.run_id, "attempt": record.attempt}
        await self._live.log.put([("metadata", encode(about))])

    async def _run_program(self) -> None:
        record = self._record
        graph = self._with.graphs.of(record.graph_id, record.tenant)
        terms = {**program_terms(graph), "tenant": record.tenant}
        program, given = self._program(graph)
        run = self._with.runtime.start(program, given, session=record.thread_id, **terms)
        try:
            await run.wait()
        except asyncio.CancelledError:
            run.cancel()  # it was we who were cancelled; if it was the program, it is over
            assert run.task is not None
            await asyncio.wait([run.task])
            raise

    def _program(self, graph: Graph) -> tuple[Program, Any]:
        record, modes, log = self._record, self._modes, self._live.log
        config, terms = run_config(record), self._terms()
        if self._entry.goes_on:  # at its thread's end: it has left where it was asked to start
            config["configurable"].pop("checkpoint_id", None)
        else:
            config = merge_configs(config, recovery.at_checkpoint(dict(record.kwargs)))

        async def drive(ctx: Context, given: Any) -> Any:
            if self._with.graphs.is_native(record.graph_id):
                natives.enter(ctx)
            async for name, data in modes.parts(graph, given, config, terms):
                await log.put([(name, encode(data))])
            result = modes.result
            return dict(result) if isinstance(result, dict) else result

        at_end = thread_config(record.thread_id)
        return graph_program(graph, record.graph_id, at_end, drive=drive), self._input()

    def _input(self) -> Any:
        kwargs = self._record.kwargs
        if self._entry.command is not None:
            return recovery.as_command(self._entry.command)
        if self._entry.goes_on:
            return None
        native = self._with.graphs.is_native(self._record.graph_id)
        # Without input a graph goes on; a program that needs none begins.
        at_start = self._record.origin is None or self._record.origin["checkpoint_id"] is None
        if native and (kwargs.get("input") is not None or at_start):
            return natives.native_input(kwargs.get("input"))
        return kwargs.get("input")

    def _terms(self) -> dict[str, Any]:
        """How the graph is to be run, for `Pregel.astream`."""
        kwargs = self._record.kwargs
        names = ("interrupt_before", "interrupt_after", "durability", "context")
        return {name: kwargs[name] for name in names if kwargs.get(name) is not None}

    # -- the end -----------------------------------------------------------------------

    async def _finish(self, error: Exception | None) -> None:
        """Keep what came of it, then tell."""
        live, cancelled = self._live, self._live.action is not None
        fault = _CANCELLED if cancelled else error_json(error) if error is not None else None
        result = encode(self._modes.result if fault is None else {"__error__": fault})
        status = "interrupted" if cancelled else "success" if fault is None else "error"
        standing = await self._standing(fault, cancelled)
        reason = "the client cancelled it" if cancelled else None
        ending = self._with.runs.ending(self._record.run_id, status, result, reason)
        await self._with.threads.settle(self._record.thread_id, standing, ending)
        live.result = result
        if fault is not None:
            await live.log.put([("error", encode(fault))])

    async def _standing(self, fault: Mapping[str, str] | None, cancelled: bool) -> dict[str, Any]:
        """How the thread stands now, as its row says it."""
        graph = self._with.graphs.of(self._record.graph_id, self._record.tenant)
        standing = await thread_standing(graph, self._record.thread_id)
        if fault is not None:
            standing |= {"status": "interrupted" if cancelled else "error", "error": fault}
        return standing

    async def _undo(self) -> None:
        """Make it as if the run had never been."""
        record, origin = self._record, self._record.origin
        if origin is not None:
            began = origins.Origin.of(origin)
            await self._with.storage.fence.close(record.run_id)
            await origins.go_back(self._with.storage.database, record.thread_id, began)
        await self._with.runs.remove(record.run_id)
        graph = self._with.graphs.of(record.graph_id, record.tenant)
        standing = await thread_standing(graph, record.thread_id)
        await self._with.threads.settle(record.thread_id, standing)
        self._live.result = encode({"__error__": _CANCELLED})
        await self._live.log.put([("error", encode(_CANCELLED))])


def run_config(record: RunRecord) -> RunnableConfig:
    """What the graph is told of its run. The server's own keys come last: nobody sets them."""
    given: dict[str, Any] = dict(record.kwargs.get("config") or {})
    about = {
        "run_id": record.run_id,
        "thread_id": record.thread_id,
        "graph_id": record.graph_id,
        "assistant_id": record.assistant_id,
    }
    configurable = {**given.pop("configurable", {}), **about}
    configurable |= record.kwargs.get("user") or {}
    if record.kwargs.get("strict_resume"):
        configurable[_STRICT] = True
    metadata = {**given.pop("metadata", {}), **record.metadata, **about}
    own: RunnableConfig = {
        "run_id": UUID(record.run_id),
        "configurable": configurable,
        "metadata": metadata,
    }
    return merge_configs(cast("RunnableConfig", given), own)


async def thread_standing(graph: Graph, thread: str) -> dict[str, Any]:
    """The columns of a thread's row, from its last checkpoint."""
    state = await last_state(graph, thread_config(thread))
    return {
        "status": "interrupted" if state.next else "idle",
        "values": None if state.created_at is None else to_json(state.values),
        "interrupts": to_json(interrupts_by_task(state)),
        "error": None,
    }
