"""The routes of threads' states and histories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal
from uuid import UUID

from fastapi import Query
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import StateSnapshot, StateUpdate

from agentrt.integrations.langgraph.graphs import Graph, Purpose
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth.hooks import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Checkpoint, Object
from agentrt.serving.langgraph.responses import JSON, conflict, invalid, not_found
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.states import checkpoint_json, last_state, state_json, thread_state
from agentrt.serving.langgraph.tenant_state import TenantState

_T = "/threads/{thread_id}"
_S = f"{_T}/state"
_Select = Annotated[list[bodies.StateField] | None, Query()]


class StateRoutes(Routes):
    """Reads and writes the states of threads."""

    def __init__(self, state: TenantState, queue: RunQueue) -> None:
        self._state = state
        self._queue = queue

    @route("GET", _S)
    @route("GET", f"{_S}/{{checkpoint_id}}")
    async def get_state(
        self,
        thread_id: UUID,
        caller: CallerDep,
        checkpoint_id: UUID | None = None,
        subgraphs: bool = False,
        select: _Select = None,
    ) -> JSON:
        """A thread's state now, or at a checkpoint."""
        checkpoint = Checkpoint(checkpoint_id=checkpoint_id)
        return JSON(await self.state(caller, thread_id, checkpoint, subgraphs, select))

    @route("POST", f"{_S}/checkpoint")
    async def state_at(self, thread_id: UUID, body: bodies.StateAt, caller: CallerDep) -> JSON:
        """A thread's state at a checkpoint, also one of a subgraph."""
        at, subgraphs = body.checkpoint, body.subgraphs
        return JSON(await self.state(caller, thread_id, at, subgraphs, body.select))

    @route("POST", _S)
    async def update_state(
        self, thread_id: UUID, body: bodies.StateUpdate, caller: CallerDep
    ) -> JSON:
        """Write values into a thread's state, as if a node had; from a checkpoint: fork it."""
        key = str(thread_id)
        async with self._graph(caller, thread_id, "update") as found:
            if found is None:
                raise invalid(f"thread {key} has no graph yet: run one, or give metadata.graph_id")
            graph_id, graph = found
            if self._queue.live_in(key):
                raise conflict(f"thread {key} has a run under way; wait for its end, or cancel it")
            start = body.checkpoint or Checkpoint(checkpoint_id=body.checkpoint_id)
            config = _known(_config(thread_id, start), caller, graph_id)
            with _refused_updates("values"):
                written = await graph.aupdate_state(config, body.values, body.as_node)
            await self._state.threads.update_state(key, await thread_state(graph, key))
        checkpoint = checkpoint_json(written, key)
        own_id = checkpoint["checkpoint_id"]
        return JSON({"checkpoint": checkpoint, "configurable": checkpoint, "checkpoint_id": own_id})

    @route("GET", f"{_T}/history")
    async def get_history(
        self,
        thread_id: UUID,
        caller: CallerDep,
        limit: bodies.Limit = 10,
        before: UUID | None = None,
    ) -> JSON:
        """A thread's states, the last one first."""
        return await self.history(thread_id, bodies.History(limit=limit, before=before), caller)

    @route("POST", f"{_T}/history")
    async def history(self, thread_id: UUID, body: bodies.History, caller: CallerDep) -> JSON:
        """A thread's states, the last one first."""
        return JSON(await self.states(thread_id, body, caller))

    async def states(self, thread_id: UUID, body: bodies.History, caller: Caller) -> list[Object]:
        """A thread's states, the last one first."""
        config = _config(thread_id, body.checkpoint or Checkpoint())
        before = body.before
        if isinstance(before, UUID):
            before = Checkpoint(checkpoint_id=before)
        earlier = _config(thread_id, before) if before and before.checkpoint_id else None
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                return []
            found = opened[1].aget_state_history(
                config, filter=body.metadata, before=earlier, limit=body.limit
            )
            try:
                states = [one async for one in found]
            except ValueError as error:
                raise invalid(str(error)) from error
        return [state_json(one, str(thread_id), body.select) for one in states]

    async def write(
        self, caller: Caller, graph_id: str, key: str, supersteps: Sequence[bodies.Superstep]
    ) -> None:
        """Write supersteps into the state of a new thread."""
        steps = [[StateUpdate(one.values, one.as_node) for one in s.updates] for s in supersteps]
        access = await self._state.access_to(caller, key, graph_id, "threads.update")
        async with self._state.graphs.opened(graph_id, caller.tenant, access) as graph:
            with _refused_updates("supersteps"):
                config = _known(_config(UUID(key), Checkpoint()), caller, graph_id)
                await graph.abulk_update_state(config, steps)
            await self._state.threads.update_state(key, await thread_state(graph, key))

    # -- inside ------------------------------------------------------------------------

    async def state(
        self,
        caller: Caller,
        thread_id: UUID,
        checkpoint: Checkpoint,
        subgraphs: bool = False,
        select: Sequence[str] | None = None,
    ) -> Object:
        """A thread's state at a place. Raises 404 where there is none."""
        config = _config(thread_id, checkpoint)
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                state = StateSnapshot({}, (), config, None, None, None, (), ())
            else:
                try:
                    state = await last_state(opened[1], config, subgraphs=subgraphs)
                except ValueError as error:  # no such subgraph
                    raise not_found("checkpoint_ns", f"{error}") from error
        if state.created_at is None and checkpoint.checkpoint_id:
            raise not_found("checkpoint", checkpoint.checkpoint_id)
        return state_json(state, str(thread_id), select)

    @asynccontextmanager
    async def _graph(
        self, caller: Caller, thread_id: UUID, action: Literal["read", "update"]
    ) -> AsyncIterator[tuple[str, Graph] | None]:
        """The graph that a thread has run, or is to run, and its name."""
        row = await self._state.thread(caller, thread_id, action)
        name = row._mapping["metadata"].get("graph_id")
        if name not in self._state.graphs:
            yield None
            return
        purpose: Purpose = "threads.read" if action == "read" else "threads.update"
        access = await self._state.access_to(caller, str(thread_id), name, purpose)
        async with self._state.graphs.opened(name, caller.tenant, access) as graph:
            yield name, graph


def _config(thread_id: UUID, checkpoint: Checkpoint) -> RunnableConfig:
    """Where in the thread. Raises 422 for a checkpoint that names another thread."""
    if checkpoint.thread_id not in (None, thread_id):
        raise invalid(f"checkpoint.thread_id is not {thread_id}, the thread of the path")
    configurable = {"checkpoint_ns": "", **checkpoint.configurable(), "thread_id": str(thread_id)}
    return {"configurable": configurable}


def _known(config: RunnableConfig, caller: Caller, graph_id: str) -> RunnableConfig:
    """The config of an update, for the metadata of its checkpoint."""
    who = {} if caller.user is None else {"user_id": caller.user.identity}
    configurable = {**config["configurable"], **who}
    return {"configurable": configurable, "metadata": {"graph_id": graph_id}}


@contextmanager
def _refused_updates(what: str) -> Iterator[None]:
    """Turn what LangGraph, or a reducer of the graph, raises for bad values into 422."""
    try:
        yield
    except (InvalidUpdateError, EmptyInputError, ValueError, TypeError, KeyError) as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise invalid(f"{what}: {first_line}") from error
