"""The routes of threads."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Header, Response
from sqlalchemy import Row

from agentrt.serving.langgraph import bodies, checkpoints
from agentrt.serving.langgraph.answers import JSON, conflict, unfit
from agentrt.serving.langgraph.assistants import Filter
from agentrt.serving.langgraph.auth import Asking, Caller
from agentrt.serving.langgraph.execution import thread_standing
from agentrt.serving.langgraph.state_routes import write_supersteps
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.langgraph.threads import as_json

_T = "/threads/{thread_id}"


class ThreadRoutes:
    """Threads, without their states."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state
        self._all = tenant_state.threads

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        add = router.add_api_route
        add("/threads", self.create, methods=["POST"])
        add("/threads/search", self.search, methods=["POST"])
        add("/threads/count", self.count, methods=["POST"])
        add("/threads/prune", self.prune, methods=["POST"])
        add(_T, self.get)
        add(_T, self.patch, methods=["PATCH"])
        add(_T, self.delete, methods=["DELETE"], status_code=204)
        add(f"{_T}/copy", self.copy, methods=["POST"])

    async def create(self, body: bodies.ThreadCreate, caller: Asking) -> JSON:
        """A new thread; ``supersteps`` are written into its state, if it is new."""
        graph_id = str(body.metadata.get("graph_id"))
        if body.supersteps and graph_id not in self._tenant_state.graphs:
            raise unfit("supersteps: name the thread's graph in metadata.graph_id")
        value: dict[str, Any] = body.model_dump(exclude={"supersteps"})
        only = await caller.may("threads", "create", value)
        body = body.model_copy(update={"metadata": value["metadata"]})
        made, is_new = await self._all.create(caller.tenant, body, only)
        if not body.supersteps or not is_new:  # what is there already is left as it is
            return JSON(made)
        graph = self._tenant_state.graphs.of(graph_id, caller.tenant)
        try:
            await write_supersteps(graph, made["thread_id"], body.supersteps)
        except BaseException:
            await self._forget(made["thread_id"])
            raise
        await self._all.settle(made["thread_id"], await thread_standing(graph, made["thread_id"]))
        return JSON(as_json(await self._all.get(caller.tenant, UUID(made["thread_id"]))))

    async def search(self, body: bodies.ThreadSearch, caller: Asking) -> JSON:
        """Threads that fit."""
        only = await caller.may("threads", "search", body.model_dump())
        return JSON(await self._all.search(caller.tenant, body, only))

    async def count(self, body: bodies.ThreadCount, caller: Asking) -> JSON:
        """How many fit."""
        only = await caller.may("threads", "search", body.model_dump())
        return JSON(await self._all.count(caller.tenant, body, only))

    async def prune(self, body: bodies.Prune, caller: Asking) -> JSON:
        """Forget threads, or all but their last checkpoints. Those that are not there are left."""
        pruned = 0
        for key in dict.fromkeys(body.thread_ids):
            only = await caller.may("threads", "delete", {"thread_id": key})
            found = bodies.ThreadSearch(ids=[key])
            if not await self._all.search(caller.tenant, found, only):
                continue
            if body.strategy == "delete":
                await self._forget(str(key))
            else:
                self._check_at_rest(key)
                await checkpoints.keep_latest(self._tenant_state.storage.database, str(key))
            pruned += 1
        return JSON({"pruned_count": pruned})

    async def get(self, thread_id: UUID, caller: Asking) -> JSON:
        """One thread."""
        row, _ = await self._read(caller, thread_id, "read")
        return JSON(as_json(row))

    async def patch(
        self,
        thread_id: UUID,
        body: bodies.ThreadPatch,
        caller: Asking,
        prefer: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Merge metadata."""
        value: dict[str, Any] = {"thread_id": thread_id, "metadata": body.metadata}
        only = await caller.may("threads", "update", value)
        patched = await self._all.patch(caller.tenant, thread_id, value["metadata"], only)
        return Response(status_code=204) if prefer == "return=minimal" else JSON(patched)

    async def delete(self, thread_id: UUID, caller: Asking) -> Response:
        """Stop a thread's runs, and forget all of it."""
        await self._read(caller, thread_id, "delete")
        await self._forget(str(thread_id))
        return Response(status_code=204)

    async def copy(self, thread_id: UUID, caller: Asking) -> JSON:
        """A new thread with the state and the history of this one."""
        row, _ = await self._read(caller, thread_id, "read")
        self._check_at_rest(thread_id)
        value: dict[str, Any] = {"thread_id": uuid4(), "metadata": row._mapping["metadata"]}
        await caller.may("threads", "create", value)
        body = bodies.ThreadCreate(thread_id=value["thread_id"], metadata=value["metadata"])
        new, _ = await self._all.create(caller.tenant, body)
        await checkpoints.copy(self._tenant_state.storage.saver, str(thread_id), new["thread_id"])
        standing = {
            name: row._mapping[name] for name in ("status", "values", "interrupts", "error")
        }
        await self._all.settle(new["thread_id"], standing)
        return JSON(as_json(await self._all.get(caller.tenant, body.thread_id or uuid4())))

    # -- inside ------------------------------------------------------------------------

    async def _read(self, caller: Caller, key: UUID, action: str) -> tuple[Row[Any], Filter]:
        only = await caller.may("threads", action, {"thread_id": key})
        return await self._all.get(caller.tenant, key, only), only

    async def _forget(self, key: str) -> None:
        queue = self._tenant_state.queue
        await queue.stop_all(queue.live_in(key), "interrupt")
        await self._tenant_state.storage.saver.adelete_thread(key)
        await self._all.remove([key])

    def _check_at_rest(self, key: UUID) -> None:
        if self._tenant_state.queue.running_in(str(key)):
            raise conflict(f"thread {key} has a run under way; wait for its end, or cancel it")
