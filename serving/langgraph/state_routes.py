"""The routes of threads' states and histories: LangGraph's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import StateSnapshot, StateUpdate

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.answers import JSON, conflict, missing, unfit
from agentrt.serving.langgraph.auth import Asking, Caller
from agentrt.serving.langgraph.bodies import Checkpoint
from agentrt.serving.langgraph.execution import thread_standing
from agentrt.serving.langgraph.states import checkpoint_json, last_state, state_json
from agentrt.serving.langgraph.tenant_state import TenantState

_S = "/threads/{thread_id}/state"
_BadUpdate = (InvalidUpdateError, EmptyInputError, ValueError, TypeError, KeyError)
"""What LangGraph, or a reducer of the graph, raises for values that do not fit."""
_Select = Annotated[list[bodies.StateField] | None, Query()]


class StateRoutes:
    """Reads and changes states."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        add = router.add_api_route
        add(_S, self.get)
        add(_S, self.update, methods=["POST"])
        add(f"{_S}/checkpoint", self.at, methods=["POST"])
        add(f"{_S}/{{checkpoint_id}}", self.get_at)
        add("/threads/{thread_id}/history", self.history, methods=["POST"])

    async def get(
        self, thread_id: UUID, caller: Asking, subgraphs: bool = False, select: _Select = None
    ) -> JSON:
        """A thread's state now."""
        return await self._answer(caller, thread_id, Checkpoint(), subgraphs, select)

    async def get_at(
        self,
        thread_id: UUID,
        checkpoint_id: UUID,
        caller: Asking,
        subgraphs: bool = False,
        select: _Select = None,
    ) -> JSON:
        """A thread's state at a checkpoint."""
        place = Checkpoint(checkpoint_id=checkpoint_id)
        return await self._answer(caller, thread_id, place, subgraphs, select)

    async def at(self, thread_id: UUID, body: bodies.StateAt, caller: Asking) -> JSON:
        """A thread's state at a checkpoint, also one of a subgraph."""
        return await self._answer(caller, thread_id, body.checkpoint, body.subgraphs, body.select)

    async def update(self, thread_id: UUID, body: bodies.StateUpdate, caller: Asking) -> JSON:
        """Write values into a thread's state, as if a node had; from a checkpoint: fork it."""
        graph = await self._graph(caller, thread_id, "update")
        if graph is None:
            raise unfit(f"thread {thread_id} has no graph yet: run one, or give metadata.graph_id")
        if self._tenant_state.queue.running_in(str(thread_id)):
            raise conflict(f"thread {thread_id} has a run under way; wait for its end")
        place = body.checkpoint or Checkpoint(checkpoint_id=body.checkpoint_id)
        config = place_config(thread_id, place)
        try:
            written = await graph.aupdate_state(config, body.values, body.as_node)
        except _BadUpdate as error:
            raise unfit(f"values: {_told(error)}") from error
        key = str(thread_id)
        await self._tenant_state.threads.settle(key, await thread_standing(graph, key))
        checkpoint = checkpoint_json(written, key)
        return JSON(
            {
                "checkpoint": checkpoint,
                "configurable": checkpoint,
                "checkpoint_id": checkpoint["checkpoint_id"],
            }
        )

    async def history(self, thread_id: UUID, body: bodies.History, caller: Asking) -> JSON:
        """A thread's states, the last one first."""
        graph = await self._graph(caller, thread_id, "read")
        if graph is None:
            return JSON([])
        config = place_config(thread_id, body.checkpoint or Checkpoint())
        before = body.before
        if isinstance(before, UUID):
            before = Checkpoint(checkpoint_id=before)
        earlier = place_config(thread_id, before) if before and before.checkpoint_id else None
        found = graph.aget_state_history(
            config, filter=body.metadata, before=earlier, limit=body.limit
        )
        try:
            states = [one async for one in found]
        except ValueError as error:
            raise unfit(str(error)) from error
        return JSON([state_json(one, str(thread_id), body.select) for one in states])

    # -- inside ------------------------------------------------------------------------

    async def _answer(
        self,
        caller: Caller,
        thread_id: UUID,
        place: Checkpoint,
        subgraphs: bool,
        select: Sequence[str] | None,
    ) -> JSON:
        graph = await self._graph(caller, thread_id, "read")
        config = place_config(thread_id, place)
        if graph is None:
            state = StateSnapshot({}, (), config, None, None, None, (), ())
        else:
            state = await self._state(graph, config, subgraphs)
        if state.created_at is None and place.checkpoint_id:
            raise missing("checkpoint", place.checkpoint_id)
        return JSON(state_json(state, str(thread_id), select))

    async def _state(self, graph: Graph, config: RunnableConfig, subgraphs: bool) -> StateSnapshot:
        try:
            return await last_state(graph, config, subgraphs=subgraphs)
        except ValueError as error:  # no such subgraph
            raise missing("checkpoint_ns", f"{error}") from error

    async def _graph(self, caller: Caller, thread_id: UUID, action: str) -> Graph | None:
        """The graph that a thread has run, or is to run."""
        only = await caller.may("threads", action, {"thread_id": thread_id})
        row = await self._tenant_state.threads.get(caller.tenant, thread_id, only)
        name = row._mapping["metadata"].get("graph_id")
        if name not in self._tenant_state.graphs:
            return None
        return self._tenant_state.graphs.of(name, caller.tenant)


def place_config(thread_id: UUID, place: Checkpoint) -> RunnableConfig:
    """Where in the thread. Raises 422 for a checkpoint that names another thread."""
    if place.thread_id not in (None, thread_id):
        raise unfit(f"checkpoint.thread_id is not {thread_id}, the thread of the path")
    configurable = {"checkpoint_ns": "", **place.configurable(), "thread_id": str(thread_id)}
    return {"configurable": configurable}


async def write_supersteps(
    graph: Graph, thread: str, supersteps: Sequence[bodies.Superstep]
) -> None:
    """Give a new thread a history. Raises 422 for values that do not fit."""
    updates = [
        [StateUpdate(one.values, one.as_node) for one in superstep.updates]
        for superstep in supersteps
    ]
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    try:
        await graph.abulk_update_state(config, updates)
    except _BadUpdate as error:
        raise unfit(f"supersteps: {_told(error)}") from error


def _told(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
