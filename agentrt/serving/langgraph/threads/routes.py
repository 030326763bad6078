"""The routes that create, find, change and delete threads, and those for their states and
histories.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Literal, get_args
from uuid import UUID, uuid4

import sqlalchemy as sa
from fastapi import Header, HTTPException, Query, Response
from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import StateSnapshot, StateUpdate
from orjson import Fragment
from pydantic import ValidationError

from agentrt.integrations.langgraph.graphs import Graph, Purpose
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import Checkpoint, Object, extracted
from agentrt.serving.langgraph.database._compat import keep_latest
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.tables import matching, selected, threads
from agentrt.serving.langgraph.database.threads import lifetime_json, thread_json
from agentrt.serving.langgraph.responses import JSON, conflict, invalid, not_found, reason
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.states import (
    REFUSALS,
    checkpoint_json,
    last_state,
    readable_state,
    state_json,
    thread_state,
)
from agentrt.serving.langgraph.tenant_state import TenantState

_T = "/threads/{thread_id}"
_S = f"{_T}/state"
_JSON = {name for name, column in threads.c.items() if isinstance(column.type, sa.JSON)}
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

        LangGraph stores values that a later node will refuse. The client then gets a 422, because
        the thread can go on only from an earlier checkpoint.
        """
        key = str(thread_id)
        opening = self._graph(caller, thread_id, "update")
        async with opening as opened, self._queue.holding(key):
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
            try:
                state = await thread_state(graph, key)
            except REFUSALS as error:
                await self._state.threads.update_state(key, {"status": "idle"})
                raise _unreadable(thread_id, error) from error
            await self._state.threads.update_state(key, state)
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
        an unknown namespace, a filter that the checkpointer refuses, or a checkpoint with values
        that the graph does not accept.
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
            except REFUSALS as error:
                # Also the error for an unknown namespace, or of a checkpointer about the filter.
                has_terms = bool(body.metadata or config["configurable"].get("checkpoint_ns"))
                if has_terms and not isinstance(error, ValidationError):
                    raise invalid(reason(error)) from error
                raise _unreadable(thread_id, error) from error
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
                state = await thread_state(graph, key)  # the graph may refuse the last values
            await self._state.threads.update_state(key, state)

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
        namespace does not exist, and 422 for a checkpoint of another thread, or with values that
        the graph does not accept.
        """
        config = _config(thread_id, checkpoint)
        async with self._graph(caller, thread_id, "read") as opened:
            if opened is None:
                state = StateSnapshot({}, (), config, None, None, None, (), ())
            else:
                try:
                    state = await last_state(opened[1], config, subgraphs=subgraphs)
                except REFUSALS as error:
                    if not checkpoint.checkpoint_ns:
                        raise _unreadable(thread_id, error) from error
                    raise HTTPException(404, f"checkpoint_ns: {reason(error)}") from error
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
            return await readable_state(opened[1], str(thread_id))

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
        raise invalid(f"{field}: {reason(error)}") from error


def _unreadable(thread_id: UUID, error: Exception) -> HTTPException:
    """Return the error for a checkpoint with values that the graph's state does not accept, for
    example because a run had an invalid input. LangGraph then starts no run at this checkpoint.
    """
    return invalid(
        f"the graph does not accept the values in the state of thread {thread_id}: "
        f"{reason(error)}; use another thread, or start a run from an earlier checkpoint"
    )


class ThreadRoutes(Routes):
    """The routes that create, find, change and delete threads. ``states`` writes the history of a
    new thread.
    """

    def __init__(self, state: TenantState, queue: RunQueue, states: StateRoutes) -> None:
        self._state = state
        self._queue = queue
        self._states = states
        self._all = state.threads
        self._database = state.storage.database

    @route("POST", "/threads")
    async def create(self, body: bodies.ThreadCreate, caller: CallerDep) -> JSON:
        """Create a thread, and write ``supersteps`` into its state if it is new."""
        graph_id = str(body.metadata.get("graph_id"))
        if body.supersteps and graph_id not in self._state.graphs:
            raise invalid(
                f"supersteps need a graph of this server, and metadata.graph_id is {graph_id}; use "
                f"one of {', '.join(self._state.graphs.names())}"
            )
        key = body.thread_id or uuid4()
        value: dict[str, Any] = {"thread_id": key, "metadata": dict(body.metadata)}
        value["if_exists"] = body.if_exists
        if body.ttl is not None:
            value["ttl"] = body.ttl.model_dump()
        only = await caller.authorize("threads", "create", value)
        metadata = caller.metadata_after("threads.create", value)
        body = body.model_copy(update={"thread_id": key, "metadata": metadata})
        made, is_new = await self._all.create(caller.tenant, body, only)
        if not body.supersteps or not is_new:  # an existing thread stays unchanged
            return JSON(made)
        async with self._whole_or_none(made["thread_id"]):
            await self._state.thread(caller, key, "update")
            await self._states.write(caller, graph_id, made["thread_id"], body.supersteps)
        return JSON(thread_json(await self._all.get(caller.tenant, key)))

    @route("POST", "/threads/search", writes=False)
    async def search(self, body: bodies.ThreadSearch, caller: CallerDep) -> JSON:
        """Return a page of the threads that meet the conditions."""
        only = await self._may_search(caller, body, body.limit, body.offset)
        parsed = {
            path.partition(".")[0].partition("[")[0] for path in (body.extract or {}).values()
        }
        names = [*(body.select or get_args(bodies.ThreadField)), *parsed]
        columns = selected(threads, names, parsed)
        rows, headers = await self._page(caller.tenant, body, only, columns)
        return JSON([_shown(thread_json(row), body, parsed) for row in rows], headers=headers)

    @route("POST", "/threads/count", writes=False)
    async def count(self, body: bodies.ThreadCount, caller: CallerDep) -> JSON:
        """Return the number of threads that meet the conditions."""
        only = await self._may_search(caller, body, 0, 0)
        conditions = _matching(caller.tenant, body, only)
        return JSON(await self._database.count(threads, conditions))

    @route("POST", "/threads/prune", writes=False)
    async def prune(self, body: bodies.Prune, caller: CallerDep) -> JSON:
        """Delete threads, or all their checkpoints except the latest. Unknown threads are
        ignored.
        """
        every: dict[str, Any] = {"thread_ids": [str(key) for key in body.thread_ids]}
        await caller.authorize("threads", "delete", every)
        pruned = 0
        for key in dict.fromkeys(body.thread_ids):
            if not await self._may_delete(caller, key):
                continue
            if body.strategy == "delete":
                await self._forget(str(key))
            else:
                async with self._queue.holding(str(key)):
                    self._check_at_rest(key)
                    is_pruned = await keep_latest(self._database, str(key))
                if not is_pruned:
                    raise conflict(
                        f"thread {key} cannot be pruned, because its graph has a DeltaChannel and "
                        "needs earlier checkpoints; delete the thread instead"
                    )
            pruned += 1
        return JSON({"pruned_count": pruned})

    @route("GET", _T)
    async def get(self, thread_id: UUID, caller: CallerDep, include: str | None = None) -> JSON:
        """Return a thread. With ``include=ttl``, also return its lifetime."""
        if include not in (None, "ttl"):
            raise invalid(f"include: unknown value {include!r}; the only value is ttl")
        row = await self._state.thread(caller, thread_id, "read")
        ttl = await lifetime_json(self._database, row) if include else None
        return JSON(thread_json(row) | ({"ttl": ttl} if ttl else {}))

    @route("PATCH", _T)
    async def patch(
        self,
        thread_id: UUID,
        body: bodies.ThreadPatch,
        caller: CallerDep,
        prefer: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Merge metadata into a thread's metadata, and set the thread's lifetime if the body has a
        lifetime.
        """
        value: dict[str, Any] = {"thread_id": thread_id, "metadata": dict(body.metadata)}
        only = await caller.authorize("threads", "update", value)
        metadata = caller.metadata_after("threads.update", value)
        patched = await self._all.patch(caller.tenant, thread_id, metadata, body.ttl, only)
        is_minimal = prefer is not None and prefer.lower() == "return=minimal"
        return Response(status_code=204) if is_minimal else JSON(patched)

    @route("DELETE", _T, 204)
    async def delete(self, thread_id: UUID, caller: CallerDep) -> Response:
        """Stop a thread's runs, and delete the thread with all its data."""
        await self._state.thread(caller, thread_id, "delete")
        await self._forget(str(thread_id))
        return Response(status_code=204)

    @route("POST", f"{_T}/copy")
    async def copy(self, thread_id: UUID, caller: CallerDep) -> JSON:
        """Create a thread with the state and the history of another thread, but without its runs.
        Raises 409 if the other thread does not exist, as LangGraph's own server does.
        """
        async with self._queue.holding(str(thread_id)):
            return JSON(await self._copy(caller, thread_id))

    async def _copy(self, caller: Requester, thread_id: UUID) -> Object:
        try:
            row = await self._state.thread(caller, thread_id, "read")
        except HTTPException as error:
            raise (conflict(error.detail) if error.status_code == 404 else error) from None
        self._check_at_rest(thread_id)
        # LangGraph's own server passes no metadata to the hook here; we pass the original's
        # metadata.
        key = uuid4()
        value: dict[str, Any] = {"thread_id": key, "metadata": dict(row._mapping["metadata"])}
        await caller.authorize("threads", "create", value)
        metadata = caller.metadata_after("threads.create", value)
        body = bodies.ThreadCreate(thread_id=key, metadata=metadata)
        new, _ = await self._all.create(caller.tenant, body)
        async with self._whole_or_none(new["thread_id"]):
            await self._state.storage.copy_thread(str(thread_id), new["thread_id"])
            columns = ("status", "values", "interrupts", "error")
            state = {name: row._mapping[name] for name in columns}
            if state["status"] == "busy":  # because of runs that wait, which are not copied
                state |= await self._states.at_rest(caller, thread_id)
            await self._all.update_state(new["thread_id"], state)
        return thread_json(await self._all.get(caller.tenant, key))

    async def forget_all_of(self, caller: Requester, assistant_id: str) -> None:
        """Delete the threads whose last run belongs to an assistant, and that the caller may
        delete. Raises 403 if a hook refuses.
        """
        only = {"assistant_id": assistant_id}
        page = bodies.ThreadSearch(metadata=only, limit=bodies.MAX_LIMIT)
        while rows := (await self._page(caller.tenant, page, None))[0]:
            left = 0
            for row in rows:
                if await self._may_delete(caller, UUID(row.thread_id)):
                    await self._forget(row.thread_id)
                else:
                    left += 1
            page = page.model_copy(update={"offset": page.offset + left})

    # -- inside ------------------------------------------------------------------------

    async def _may_search(
        self, caller: Requester, body: bodies.ThreadCount, limit: int, offset: int
    ) -> Filter | None:
        value = {"metadata": dict(body.metadata or {}), "values": dict(body.values or {})}
        about = {"status": body.status, "limit": limit, "offset": offset}
        return await caller.authorize("threads", "search", {**value, **about})

    async def _may_delete(self, caller: Requester, key: UUID) -> bool:
        """Return whether a thread exists and the hooks let the caller delete it."""
        only = await caller.authorize("threads", "delete", {"thread_id": key})
        rows, _ = await self._page(caller.tenant, bodies.ThreadSearch(ids=[key]), only)
        return bool(rows)

    async def _page(
        self,
        tenant: str,
        body: bodies.ThreadSearch,
        only: Filter | None,
        columns: Sequence[sa.ColumnElement[Any]] = (threads.c.thread_id,),
    ) -> tuple[Sequence[sa.Row[Any]], dict[str, str]]:
        """Return a page of the threads that meet the conditions, with these ``columns``, and the
        response's headers.
        """
        conditions = _matching(tenant, body, only)
        if body.ids is not None:
            conditions.append(threads.c.thread_id.in_([str(key) for key in body.ids]))
        return await self._database.page(threads, conditions, "thread_id", body, columns)

    @asynccontextmanager
    async def _whole_or_none(self, key: str) -> AsyncIterator[None]:
        """Delete a new thread if the ``with`` block, which writes its state, raises."""
        try:
            yield
        except BaseException:
            await self._forget(key)
            raise

    async def _forget(self, key: str) -> None:
        await self._queue.stop_all(self._queue.live_in(key), "interrupt")
        await self._all.remove([key])

    def _check_at_rest(self, key: UUID) -> None:
        if self._queue.is_running(str(key)):
            raise conflict(f"thread {key} has a run under way; wait for its end, or cancel it")


def _matching(
    tenant: str, body: bodies.ThreadCount, only: Filter | None
) -> list[sa.ColumnElement[bool]]:
    contained = [("metadata", body.metadata), ("values", body.values)]
    return matching(threads, tenant, {"status": body.status, "temporary": False}, contained, only)


def _shown(
    thread: dict[str, Any], body: bodies.ThreadSearch, parsed: Collection[str]
) -> dict[str, Any]:
    """Return the fields of a thread that a search selects. In ``thread``, JSON fields are texts,
    except the fields in ``parsed``.
    """
    for name in _JSON - {*parsed}:
        if thread.get(name) is not None:
            thread[name] = Fragment(thread[name])
    shown = {key: thread[key] for key in body.select or get_args(bodies.ThreadField)}
    return shown | ({"extracted": extracted(thread, body.extract)} if body.extract else {})
