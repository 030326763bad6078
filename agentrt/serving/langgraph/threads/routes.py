"""The routes that create, find, change and delete threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, get_args
from uuid import UUID, uuid4

import sqlalchemy as sa
from fastapi import Header, HTTPException, Response
from orjson import Fragment

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import extracted
from agentrt.serving.langgraph.database._compat import keep_latest
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.tables import matching, selected, threads
from agentrt.serving.langgraph.database.threads import lifetime_json, thread_json
from agentrt.serving.langgraph.responses import JSON, conflict, invalid
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.langgraph.threads.state_routes import StateRoutes

_T = "/threads/{thread_id}"
_JSON = {name for name, column in threads.c.items() if isinstance(column.type, sa.JSON)}


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
        try:
            await self._state.thread(caller, key, "update")
            await self._states.write(caller, graph_id, made["thread_id"], body.supersteps)
        except BaseException:
            await self._forget(made["thread_id"])
            raise
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
                self._check_at_rest(key)
                if not await keep_latest(self._database, str(key)):
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
        await self._state.storage.copy_thread(str(thread_id), new["thread_id"])
        columns = ("status", "values", "interrupts", "error")
        state = {name: row._mapping[name] for name in columns}
        if state["status"] == "busy":  # because of runs that wait, which are not copied
            state |= await self._states.at_rest(caller, thread_id)
        await self._all.update_state(new["thread_id"], state)
        return JSON(thread_json(await self._all.get(caller.tenant, key)))

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
