"""The routes for the states and histories of threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal
from uuid import UUID

from fastapi import HTTPException, Query
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import StateSnapshot, StateUpdate

from agentrt.integrations.langgraph.graphs import Graph, Purpose
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
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
    """The routes that read and write the states of threads."""

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
        """Return a thread's latest state, or its state at a checkpoint."""
        checkpoint = Checkpoint(checkpoint_id=checkpoint_id)
        return JSON(await self.state(caller, thread_id, checkpoint, subgraphs, select))

    @route("POST", f"{_S}/checkpoint", writes=False)
    async def state_at(self, thread_id: UUID, body: bodies.StateAt, caller: CallerDep) -> JSON:
        """Return a thread's state at a checkpoint, which may belong to a subgraph."""
        at, subgraphs = body.checkpoint, body.subgraphs
        return JSON(await self.state(caller, thread_id, at, subgraphs, body.select))

    @route("POST", _S)
    async def update_state(
        self, thread_id: UUID, body: bodies.StateUpdate, caller: CallerDep
    ) -> JSON:
        """Write values into a thread's state, as if a node had written them. Writing at an earlier
        checkpoint forks the thread's history there.
        """
        key = str(thread_id)
        async with self._graph(caller, thread_id, "update") as opened:
            if opened is None:
                raise invalid(
                    f"thread {key} has no graph of this server; start a run in it, or set its "
                    "metadata.graph_id"
                )
            graph_id, graph = opened
            if self._queue.live_in(key):
                raise conflict(f"thread {key} has a run under way; wait for its end, or cancel it")
            start = body.checkpoint or Checkpoint(checkpoint_id=body.checkpoint_id)
            config = _with_metadata(_config(thread_id, start), caller, graph_id)
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
        """Return the states of a thread's history, the newest first."""
        return await self.history(
            thread_id, bodies.HistoryQuery(limit=limit, before=before), caller
        )

    @route("POST", f"{_T}/history", writes=False)
    async def history(self, thread_id: UUID, body: bodies.HistoryQuery, caller: CallerDep) -> JSON:
        """Return the states of a thread's history, the newest first."""
        return JSON(await self.states(thread_id, body, caller))

    async def states(
        self, thread_id: UUID, body: bodies.HistoryQuery, caller: Requester
    ) -> list[Object]:
        """Return the states of a thread's history, the newest first.

        Raises 403 and 404 as `TenantState.thread` does, and 422 for a checkpoint of another thread,
        an unknown namespace, or a filter that the checkpointer refuses.
        """
        config = _config(thread_id, body.checkpoint or Checkpoint())
        before = body.before
        if isinstance(before, UUID):
            before = Checkpoint(checkpoint_id=before)
        earlier = _config(thread_id, before) if before and before.checkpoint_id else None
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                return []
            history = opened[1].aget_state_history(
                config, filter=body.metadata, before=earlier, limit=body.limit
            )
            try:
                states = [state async for state in history]
            except ValueError as error:
                raise invalid(str(error)) from error
        return [state_json(state, str(thread_id), body.select) for state in states]

    async def write(
        self,
        caller: Requester,
        graph_id: str,
        key: str,
        supersteps: Sequence[bodies.SuperstepUpdates],
    ) -> None:
        """Write supersteps into the state of a new thread. Raises 422 for values that the graph
        refuses.
        """
        steps = [
            [StateUpdate(update.values, update.as_node) for update in step.updates]
            for step in supersteps
        ]
        access = await self._state.access_to(caller, key, graph_id, "threads.update")
        async with self._state.graphs.opened(graph_id, caller.tenant, access) as graph:
            with _refused_updates("supersteps"):
                config = _with_metadata(_config(UUID(key), Checkpoint()), caller, graph_id)
                await graph.abulk_update_state(config, steps)
            await self._state.threads.update_state(key, await thread_state(graph, key))

    # -- inside ------------------------------------------------------------------------

    async def state(
        self,
        caller: Requester,
        thread_id: UUID,
        checkpoint: Checkpoint,
        subgraphs: bool = False,
        select: Sequence[str] | None = None,
    ) -> Object:
        """Return a thread's state at a checkpoint. Raises 404 if the thread, the checkpoint or its
        namespace does not exist, and 422 for a checkpoint of another thread.
        """
        config = _config(thread_id, checkpoint)
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                state = StateSnapshot({}, (), config, None, None, None, (), ())
            else:
                try:
                    state = await last_state(opened[1], config, subgraphs=subgraphs)
                except ValueError as error:
                    if not checkpoint.checkpoint_ns:  # an error of the graph itself
                        raise
                    raise HTTPException(404, f"checkpoint_ns: {error}") from error
        if state.created_at is None and checkpoint.checkpoint_id:
            raise not_found("checkpoint", checkpoint.checkpoint_id)
        return state_json(state, str(thread_id), select)

    async def at_rest(self, caller: Requester, thread_id: UUID) -> Object:
        """Return the columns of a thread's row that depend on its state, as they are without
        unfinished runs. Without a graph, return only the status.
        """
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                return {"status": "idle"}
            return await thread_state(opened[1], str(thread_id))

    @asynccontextmanager
    async def _graph(
        self, caller: Requester, thread_id: UUID, action: Literal["read", "update"]
    ) -> AsyncIterator[tuple[str, Graph] | None]:
        """Open the graph of a thread, and yield the graph's name and the graph; yield None if the
        thread has no graph that this server serves.
        """
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
    """Return the config that names a checkpoint of a thread. Raises 422 for a checkpoint of another
    thread.
    """
    if checkpoint.thread_id not in (None, thread_id):
        raise invalid(
            f"checkpoint.thread_id {checkpoint.thread_id} is not {thread_id}, the thread of the "
            "path; leave it out"
        )
    configurable = {"checkpoint_ns": "", **checkpoint.configurable(), "thread_id": str(thread_id)}
    return {"configurable": configurable}


def _with_metadata(config: RunnableConfig, caller: Requester, graph_id: str) -> RunnableConfig:
    """Add the user and the graph to the config of an update. LangGraph stores them in the metadata
    of the new checkpoint.
    """
    user = {} if caller.user is None else {"user_id": caller.user.identity}
    configurable = {**config["configurable"], **user}
    return {"configurable": configurable, "metadata": {"graph_id": graph_id}}


@contextmanager
def _refused_updates(field: str) -> Iterator[None]:
    """Turn errors that LangGraph or the graph's reducers raise for bad values into 422. ``field``
    is the body's field with the values.
    """
    try:
        yield
    except (InvalidUpdateError, EmptyInputError, ValueError, TypeError, KeyError) as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise invalid(f"{field}: {first_line}") from error
