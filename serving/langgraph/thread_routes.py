"""The routes of threads."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import Header, HTTPException, Response

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph._compat import keep_latest
from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.responses import JSON, conflict, invalid
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.state_routes import StateRoutes
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.langgraph.threads import thread_json

_T = "/threads/{thread_id}"


class ThreadRoutes(Routes):
    """Makes, finds, changes and forgets threads; ``states`` writes the past of a new one."""

    def __init__(self, state: TenantState, queue: RunQueue, states: StateRoutes) -> None:
        self._state = state
        self._queue = queue
        self._states = states
        self._all = state.threads

    @route("POST", "/threads")
    async def create(self, body: bodies.ThreadCreate, caller: CallerDep) -> JSON:
        """A new thread; ``supersteps`` are written into its state, if it is new."""
        graph_id = str(body.metadata.get("graph_id"))
        if body.supersteps and graph_id not in self._state.graphs:
            raise invalid("supersteps: name the thread's graph in metadata.graph_id")
        value: dict[str, Any] = body.model_dump(exclude={"supersteps"})
        only = await caller.authorize("threads", "create", value)
        body = body.model_copy(update={"metadata": value["metadata"]})
        made, is_new = await self._all.create(caller.tenant, body, only)
        if not body.supersteps or not is_new:  # what is there already is left as it is
            return JSON(made)
        try:
            await self._states.write(caller, graph_id, made["thread_id"], body.supersteps)
        except BaseException:
            await self._forget(made["thread_id"])
            raise
        return JSON(thread_json(await self._all.get(caller.tenant, UUID(made["thread_id"]))))

    @route("POST", "/threads/search")
    async def search(self, body: bodies.ThreadSearch, caller: CallerDep) -> JSON:
        """Threads that fit."""
        only = await caller.authorize("threads", "search", body.model_dump())
        found, headers = await self._all.search(caller.tenant, body, only)
        return JSON(found, headers=headers)

    @route("POST", "/threads/count")
    async def count(self, body: bodies.ThreadCount, caller: CallerDep) -> JSON:
        """How many fit."""
        only = await caller.authorize("threads", "search", body.model_dump())
        return JSON(await self._all.count(caller.tenant, body, only))

    @route("POST", "/threads/prune")
    async def prune(self, body: bodies.Prune, caller: CallerDep) -> JSON:
        """Forget threads, or all but their last checkpoints. Those that are not there are left."""
        pruned = 0
        for key in dict.fromkeys(body.thread_ids):
            if not await self._may_delete(caller, key):
                continue
            if body.strategy == "delete":
                await self._forget(str(key))
            else:
                self._check_at_rest(key)
                if not await keep_latest(self._state.storage.database, str(key)):
                    raise conflict(
                        f"thread {key}: its graph has a DeltaChannel, and needs the past"
                    )
            pruned += 1
        return JSON({"pruned_count": pruned})

    @route("GET", _T)
    async def get(self, thread_id: UUID, caller: CallerDep, include: str | None = None) -> JSON:
        """One thread; with ``include=ttl``, and how long it is kept."""
        if include not in (None, "ttl"):
            raise invalid("include: ttl, and nothing else")
        row = await self._state.thread(caller, thread_id, "read")
        ttl = await self._all.lifetime(row) if include else None
        return JSON(thread_json(row) | ({"ttl": ttl} if ttl else {}))

    @route("PATCH", _T)
    async def patch(
        self,
        thread_id: UUID,
        body: bodies.ThreadPatch,
        caller: CallerDep,
        prefer: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Merge metadata, and set how long it is kept."""
        value: dict[str, Any] = {"thread_id": thread_id, "metadata": body.metadata}
        only = await caller.authorize("threads", "update", value)
        patched = await self._all.patch(caller.tenant, thread_id, value["metadata"], body.ttl, only)
        return Response(status_code=204) if prefer == "return=minimal" else JSON(patched)

    @route("DELETE", _T, 204)
    async def delete(self, thread_id: UUID, caller: CallerDep) -> Response:
        """Stop a thread's runs, and forget all of it."""
        await self._state.thread(caller, thread_id, "delete")
        await self._forget(str(thread_id))
        return Response(status_code=204)

    @route("POST", f"{_T}/copy")
    async def copy(self, thread_id: UUID, caller: CallerDep) -> JSON:
        """A new thread with the state and the history of this one. Raises 409 if it is not there:
        clients of LangGraph's own server know no 404 here.
        """
        try:
            row = await self._state.thread(caller, thread_id, "read")
        except HTTPException as error:
            raise (conflict(error.detail) if error.status_code == 404 else error) from None
        self._check_at_rest(thread_id)
        value: dict[str, Any] = {"thread_id": uuid4(), "metadata": row._mapping["metadata"]}
        await caller.authorize("threads", "create", value)
        body = bodies.ThreadCreate(thread_id=value["thread_id"], metadata=value["metadata"])
        new, _ = await self._all.create(caller.tenant, body)
        await self._state.storage.copy_thread(str(thread_id), new["thread_id"])
        columns = ("status", "values", "interrupts", "error")
        state = {name: row._mapping[name] for name in columns}
        await self._all.update_state(new["thread_id"], state)
        return JSON(thread_json(await self._all.get(caller.tenant, body.thread_id or uuid4())))

    async def forget_all_of(self, caller: Caller, assistant_id: str) -> None:
        """Forget the threads whose last run was an assistant's, of those that the caller sees.
        Raises 403 where a hook refuses.
        """
        only = {"assistant_id": assistant_id}
        page = bodies.ThreadSearch(metadata=only, select=["thread_id"], limit=bodies.MAX_LIMIT)
        while (found := await self._all.search(caller.tenant, page, None))[0]:
            left = 0
            for key in (one["thread_id"] for one in found[0]):
                if await self._may_delete(caller, UUID(key)):
                    await self._forget(key)
                else:
                    left += 1
            page = page.model_copy(update={"offset": page.offset + left})

    # -- inside ------------------------------------------------------------------------

    async def _may_delete(self, caller: Caller, key: UUID) -> bool:
        """Whether there is a thread that hooks let the caller delete."""
        only = await caller.authorize("threads", "delete", {"thread_id": key})
        found, _ = await self._all.search(caller.tenant, bodies.ThreadSearch(ids=[key]), only)
        return bool(found)

    async def _forget(self, key: str) -> None:
        await self._queue.stop_all(self._queue.live_in(key), "interrupt")
        await self._all.remove([key])

    def _check_at_rest(self, key: UUID) -> None:
        if self._queue.is_running(str(key)):
            raise conflict(f"thread {key} has a run under way; wait for its end, or cancel it")
