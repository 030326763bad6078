"""The routes of assistants."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.answers import JSON, missing, unfit
from agentrt.serving.langgraph.auth import Asking, Caller
from agentrt.serving.langgraph.graphs import schemas_of, subgraphs_of
from agentrt.serving.langgraph.tenant_state import TenantState

_A = "/assistants/{assistant_id}"


class AssistantRoutes:
    """Assistants, and what can be asked of their graphs."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state
        self._all = tenant_state.assistants

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        add = router.add_api_route
        add("/assistants", self.create, methods=["POST"])
        add("/assistants/search", self.search, methods=["POST"])
        add("/assistants/count", self.count, methods=["POST"])
        add(_A, self.get)
        add(_A, self.patch, methods=["PATCH"])
        add(_A, self.delete, methods=["DELETE"], status_code=204)
        add(f"{_A}/graph", self.graph)
        add(f"{_A}/schemas", self.schemas)
        add(f"{_A}/subgraphs", self.subgraphs)
        add(f"{_A}/subgraphs/{{namespace}}", self.subgraphs_in)
        add(f"{_A}/versions", self.versions, methods=["POST"])
        add(f"{_A}/latest", self.latest, methods=["POST"])

    async def create(self, body: bodies.AssistantCreate, caller: Asking) -> JSON:
        """A new assistant."""
        value: dict[str, Any] = body.model_dump()
        await caller.may("assistants", "create", value)
        body = body.model_copy(update={"metadata": value["metadata"]})
        return JSON(await self._all.create(caller.tenant, body))

    async def search(self, body: bodies.AssistantSearch, caller: Asking) -> JSON:
        """Assistants that fit. X-Pagination-Next is where the next ones begin, if there are."""
        only = await caller.may("assistants", "search", body.model_dump())
        more = body.model_copy(update={"limit": body.limit + 1})
        found = await self._all.search(caller.tenant, more, only)
        headers = {}
        if len(found) > body.limit:
            headers["X-Pagination-Next"] = str(body.offset + body.limit)
        return JSON(found[: body.limit], headers=headers)

    async def count(self, body: bodies.AssistantCount, caller: Asking) -> JSON:
        """How many fit."""
        only = await caller.may("assistants", "search", body.model_dump())
        return JSON(await self._all.count(caller.tenant, body, only))

    async def get(self, assistant_id: str, caller: Asking) -> JSON:
        """One assistant, by its id or its graph's name."""
        return JSON(await self._read(caller, assistant_id))

    async def patch(self, assistant_id: UUID, body: bodies.AssistantPatch, caller: Asking) -> JSON:
        """A new version of an assistant."""
        value = {"assistant_id": assistant_id, **body.model_dump(exclude_unset=True)}
        only = await caller.may("assistants", "update", value)
        return JSON(await self._all.patch(caller.tenant, assistant_id, body, only))

    async def delete(
        self, assistant_id: UUID, caller: Asking, delete_threads: bool = False
    ) -> Response:
        """Forget an assistant and its versions; its threads stay."""
        if delete_threads:
            raise unfit("delete_threads: not supported here; delete the threads by their ids")
        only = await caller.may("assistants", "delete", {"assistant_id": assistant_id})
        await self._all.delete(caller.tenant, assistant_id, only)
        return Response(status_code=204)

    async def graph(self, assistant_id: str, caller: Asking, xray: bool | int = False) -> JSON:
        """The nodes and edges of an assistant's graph; with ``xray``, of those inside, too."""
        _, graph = await self._graph(caller, assistant_id)
        if not isinstance(xray, bool) and not 0 <= xray <= 32:
            raise unfit("xray: true, false, or a depth of up to 32")
        drawn = await graph.aget_graph(xray=xray)
        return JSON(drawn.to_json())

    async def schemas(self, assistant_id: UUID, caller: Asking) -> JSON:
        """The JSON schemas of an assistant's graph."""
        name, graph = await self._graph(caller, str(assistant_id))
        return JSON(schemas_of(graph, name))

    async def subgraphs(self, assistant_id: str, caller: Asking, recurse: bool = False) -> JSON:
        """The schemas of the graphs inside."""
        _, graph = await self._graph(caller, assistant_id)
        return JSON(subgraphs_of(graph, None, recurse))

    async def subgraphs_in(
        self, assistant_id: str, namespace: str, caller: Asking, recurse: bool = False
    ) -> JSON:
        """The schemas of the graphs inside, from one of them on."""
        _, graph = await self._graph(caller, assistant_id)
        return JSON(subgraphs_of(graph, namespace, recurse))

    async def versions(
        self, assistant_id: UUID, body: bodies.VersionSearch, caller: Asking
    ) -> JSON:
        """An assistant's versions, the last one first."""
        only = await caller.may("assistants", "read", {"assistant_id": assistant_id})
        return JSON(await self._all.history(caller.tenant, assistant_id, body, only))

    async def latest(self, assistant_id: UUID, body: bodies.Latest, caller: Asking) -> JSON:
        """Make a version the one that is used."""
        value = {"assistant_id": assistant_id, "version": body.version}
        only = await caller.may("assistants", "update", value)
        return JSON(await self._all.set_latest(caller.tenant, assistant_id, body.version, only))

    # -- inside ------------------------------------------------------------------------

    async def _read(self, caller: Caller, name: str) -> dict[str, Any]:
        key = self._all.id_of(name)
        only = await caller.may("assistants", "read", {"assistant_id": UUID(key)})
        return await self._all.get(caller.tenant, name, only)

    async def _graph(self, caller: Caller, name: str) -> tuple[str, Graph]:
        graph_id: str = (await self._read(caller, name))["graph_id"]
        if graph_id not in self._tenant_state.graphs:  # it was, when the assistant was made
            raise missing("graph", graph_id)
        return graph_id, self._tenant_state.graphs.of(graph_id, caller.tenant)
