"""The routes of crons: runs by the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar
from uuid import UUID, uuid4

from fastapi import APIRouter, Body, HTTPException, Response
from langgraph_sdk import Auth

from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Object
from agentrt.serving.langgraph.cron_bodies import (
    CronBody,
    CronCount,
    CronSearch,
    changed,
    select_of,
)
from agentrt.serving.langgraph.crons import CronClock, Crons, cron_json
from agentrt.serving.langgraph.quotas import Quotas
from agentrt.serving.langgraph.responses import JSON, invalid
from agentrt.serving.langgraph.run_starts import StartRoutes
from agentrt.serving.langgraph.tables import Filter
from agentrt.serving.langgraph.tenant_state import TenantState

_CRONS = "/runs/crons"
_CRON = f"{_CRONS}/{{cron_id}}"
Wanted = TypeVar("Wanted", bound=CronCount)


class CronRoutes:
    """Makes, shows, changes and forgets crons."""

    def __init__(self, state: TenantState, starts: StartRoutes, crons: Crons) -> None:
        self._state = state
        self._starts = starts
        self._all = crons

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        add = router.add_api_route
        add(_CRONS, self.create, methods=["POST"])
        add("/threads/{thread_id}/runs/crons", self.create_in_thread, methods=["POST"])
        add(f"{_CRONS}/search", self.search, methods=["POST"])
        add(f"{_CRONS}/count", self.count, methods=["POST"])
        add(_CRON, self.get)
        add(_CRON, self.patch, methods=["PATCH"])
        add(_CRON, self.delete, methods=["DELETE"], status_code=204)

    async def create(self, body: CronBody, caller: CallerDep) -> JSON:
        """Runs by the clock, each in a thread of its own."""
        return await self._create(caller, None, body)

    async def create_in_thread(self, thread_id: UUID, body: CronBody, caller: CallerDep) -> JSON:
        """Runs by the clock in one thread."""
        only = await caller.authorize("threads", "update", {"thread_id": thread_id})
        await self._state.threads.get(caller.tenant, thread_id, only)
        return await self._create(caller, thread_id, body)

    async def _create(self, caller: Caller, thread: UUID | None, body: CronBody) -> JSON:
        assistant = await self._starts.assistant(caller, thread, body.run(thread))
        key = uuid4()
        body = _known_by(key, body.model_copy(update={"assistant_id": assistant["assistant_id"]}))
        _check_time_is_left(self._all, body)
        value: dict[str, Any] = {
            "cron_id": key,
            "thread_id": thread,
            "user_id": None if caller.user is None else caller.user.identity,
            "schedule": body.schedule,
            "end_time": body.end_time,
            "payload": body.payload(),
            "metadata": dict(body.metadata),
        }
        await caller.authorize("crons", "create", value)
        return JSON(cron_json(await self._all.add(caller, key, thread, body, value["metadata"])))

    async def search(self, body: CronSearch, caller: CallerDep) -> JSON:
        """Crons that fit."""
        only, body = await self._asked(caller, body)
        rows, headers = await self._all.search(caller.tenant, body, only)
        return JSON([select_of(cron_json(row), body.select) for row in rows], headers=headers)

    async def count(self, body: CronCount, caller: CallerDep) -> JSON:
        """How many fit."""
        only, body = await self._asked(caller, body)
        return JSON(await self._all.count(caller.tenant, body, only))

    async def _asked(self, caller: Caller, body: Wanted) -> tuple[Filter, Wanted]:
        only = await caller.authorize("crons", "search", body.model_dump())
        if body.assistant_id is None:
            return only, body
        found = await self._state.assistants.find(caller.tenant, body.assistant_id)
        return only, body.model_copy(update={"assistant_id": found["assistant_id"]})

    async def get(self, cron_id: UUID, caller: CallerDep) -> JSON:
        """One cron."""
        only = await caller.authorize("crons", "read", {"cron_id": cron_id})
        return JSON(cron_json(await self._all.get(caller.tenant, cron_id, only)))

    async def patch(
        self, cron_id: UUID, given: Annotated[Object, Body()], caller: CallerDep
    ) -> JSON:
        """Change a cron; its next run is counted from now."""
        if not given:
            raise HTTPException(400, "the body is empty: say what is to be changed")
        value: dict[str, Any] = {"cron_id": cron_id, "payload": given}
        value |= {"schedule": given.get("schedule"), "metadata": given.get("metadata") or {}}
        only = await caller.authorize("crons", "update", value)
        row = cron_json(await self._all.get(caller.tenant, cron_id, only))
        body = _known_by(cron_id, changed(row["payload"], given))
        thread = None if row["thread_id"] is None else UUID(row["thread_id"])
        await self._starts.assistant(caller, thread, body.run(thread))
        _check_time_is_left(self._all, body)
        metadata = {**row["metadata"], **value["metadata"]}
        patched = await self._all.change(caller.tenant, cron_id, thread, body, metadata, only)
        return JSON(cron_json(patched))

    async def delete(self, cron_id: UUID, caller: CallerDep) -> Response:
        """Forget a cron; what it has started goes on."""
        only = await caller.authorize("crons", "delete", {"cron_id": cron_id})
        await self._all.remove(caller.tenant, cron_id, only)
        return Response(status_code=204)


def _known_by(key: UUID, body: CronBody) -> CronBody:
    """The body whose runs know their cron, by their config."""
    configurable = {**body.config.configurable, "cron_id": str(key)}
    config = body.config.model_copy(update={"configurable": configurable})
    return body.model_copy(update={"config": config})


def _check_time_is_left(crons: Crons, body: CronBody) -> None:
    if crons.next_of(body) is None:
        raise invalid("end_time: no run would start before it")


@asynccontextmanager
async def open_crons(
    state: TenantState, starts: StartRoutes, auth: Auth | None
) -> AsyncIterator[CronRoutes]:
    """The crons and their routes; until the block ends their runs are started."""
    crons = Crons(state.storage.database, Quotas(state.server))
    clock = CronClock(crons, starts, auth)
    async with state.server.background.doing("runs by the clock", clock.go_on):
        yield CronRoutes(state, starts, crons)
