"""Assistants, which are graphs with a config of their own, in versions; and their routes.

Each graph has a default assistant, whose id anybody can compute from the graph's name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

from fastapi import APIRouter, HTTPException, Response
from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.auth import Caller, Calling
from agentrt.serving.langgraph.database import Database
from agentrt.serving.langgraph.graphs import Graphs, schemas_of, subgraphs_of
from agentrt.serving.langgraph.responses import (
    JSON,
    conflict,
    invalid,
    not_found,
    timestamp,
)
from agentrt.serving.langgraph.tables import LONGEST_TENANT, Filter, assistants, has, versions

_A = "/assistants/{assistant_id}"
_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The UUID namespace of default assistants in LangGraph's own servers."""
_MAX_VERSIONS = 1000
_CONTENT = ("graph_id", "name", "description", "config", "context", "metadata")
"""The columns that a version has."""
_DEFAULT_METADATA = {"created_by": "system"}


def default_assistant(graph_id: str) -> str:
    """The id of a graph's default assistant."""
    return str(uuid5(_NAMESPACE, graph_id))


def assistant_json(row: Row[Any]) -> dict[str, Any]:
    """An assistant, or a version of one, as clients see it."""
    one = dict(row._mapping)
    del one["tenant"]
    for key in ("created_at", "updated_at"):
        if key in one:
            one[key] = timestamp(one[key])
    return one


class Assistants:
    """The assistants of all tenants; every request names its tenant."""

    def __init__(self, database: Database, graphs: Graphs) -> None:
        self._database = database
        self._graphs = graphs
        self._known_tenants: set[str] = set()

    async def get(self, tenant: str, name: str, only: Filter = None) -> dict[str, Any]:
        """The assistant of that id, or the default one of the graph of that name."""
        row = await self._find(tenant, self.id_of(name), only)
        if row is None:
            raise not_found("assistant", name)
        return assistant_json(row)

    def id_of(self, name: str) -> str:
        """The id that clients mean by ``name``: a graph's name, or an id. Raises 404."""
        if name in self._graphs:
            return default_assistant(name)
        try:
            return str(UUID(name))
        except ValueError:
            raise self._no_graph(name) from None

    async def create(self, tenant: str, body: bodies.AssistantCreate) -> dict[str, Any]:
        """A new one. Raises 409 if its id is taken, 404 for a graph that is not served."""
        self._check_graph(body.graph_id)
        await self._add_defaults(tenant)
        now, key = time.time(), str(body.assistant_id or uuid4())
        content = {
            "graph_id": body.graph_id,
            "name": body.name or "Untitled",
            "description": body.description,
            "config": body.config.given(),
            "context": body.context,
            "metadata": body.metadata,
        }
        try:
            async with self._database.writing() as connection:
                await _add(connection, tenant, key, content, now)
        except IntegrityError:
            if body.if_exists == "raise":
                raise conflict(f"assistant {key} exists already") from None
        return await self.get(tenant, key)

    async def patch(
        self, tenant: str, key: UUID, body: bodies.AssistantPatch, only: Filter
    ) -> dict[str, Any]:
        """A new version, which is the latest. Metadata is merged, all else replaced."""
        if body.graph_id is not None:
            self._check_graph(body.graph_id)
        old = await self.get(tenant, str(key), only)
        content = {name: old[name] for name in _CONTENT}
        given = body.model_dump(exclude_unset=True, exclude_none=True)
        if body.config is not None:
            given["config"] = body.config.given()
        given["metadata"] = {**old["metadata"], **given.get("metadata", {})}
        await self._add_version(tenant, str(key), {**content, **given})
        return await self.get(tenant, str(key))

    async def _add_version(self, tenant: str, key: str, content: Mapping[str, Any]) -> None:
        now = time.time()
        async with self._database.writing() as connection:
            last = select(func.max(versions.c.version)).where(*_is(versions, tenant, key))
            number = ((await connection.execute(last)).scalar() or 0) + 1
            if number > _MAX_VERSIONS:
                raise conflict(f"assistant {key} has {_MAX_VERSIONS} versions; make a new one")
            row = {"tenant": tenant, "assistant_id": key, "version": number, **content}
            await connection.execute(insert(versions).values(**row, created_at=now))
            await _point_to(connection, tenant, key, {**content, "version": number}, now)

    async def delete(self, tenant: str, key: UUID, only: Filter) -> None:
        """Delete it and its versions. Raises 409 for a default one, which stays with its graph."""
        found = await self.get(tenant, str(key), only)
        if str(key) in {default_assistant(name) for name in self._graphs.names()}:
            raise conflict(f"assistant {key} comes with the graph {found['graph_id']!r}")
        both = [delete(t).where(*_is(t, tenant, str(key))) for t in (assistants, versions)]
        await self._database.write(*both)

    async def search(
        self, tenant: str, body: bodies.AssistantSearch, only: Filter
    ) -> list[dict[str, Any]]:
        """A page of those that match."""
        await self._add_defaults(tenant)
        conditions = _matching(tenant, body, only)
        rows = await self._database.search(assistants, conditions, "assistant_id", body)
        found = [assistant_json(row) for row in rows]
        return [{k: one[k] for k in body.select} for one in found] if body.select else found

    async def count(self, tenant: str, body: bodies.AssistantCount, only: Filter) -> int:
        """How many match."""
        await self._add_defaults(tenant)
        return await self._database.count(assistants, _matching(tenant, body, only))

    async def history(
        self, tenant: str, key: UUID, body: bodies.VersionSearch, only: Filter
    ) -> list[dict[str, Any]]:
        """Its versions, the last one first."""
        await self.get(tenant, str(key), only)
        query = select(versions).where(*_is(versions, tenant, str(key)))
        if body.metadata:
            query = query.where(has(versions.c.metadata, body.metadata))
        query = query.order_by(versions.c.version.desc()).limit(body.limit).offset(body.offset)
        return [assistant_json(row) for row in await self._database.rows(query)]

    async def set_latest(self, tenant: str, key: UUID, number: int, only: Filter) -> dict[str, Any]:
        """Make a version the latest one."""
        await self.get(tenant, str(key), only)
        async with self._database.writing() as connection:
            query = select(versions).where(
                *_is(versions, tenant, str(key)), versions.c.version == number
            )
            row = (await connection.execute(query)).first()
            if row is None:
                raise not_found(f"version of assistant {key}", number)
            content = {name: row._mapping[name] for name in (*_CONTENT, "version")}
            await _point_to(connection, tenant, str(key), content, time.time())
        return await self.get(tenant, str(key))

    def _check_graph(self, graph_id: str) -> None:
        if graph_id not in self._graphs:
            raise self._no_graph(graph_id)

    def _no_graph(self, name: str) -> HTTPException:
        known = ", ".join(self._graphs.names()) or "none"
        return not_found("graph", f"{name} (there is: {known})")

    async def _find(self, tenant: str, key: str, only: Filter) -> Row[Any] | None:
        await self._add_defaults(tenant)
        query = select(assistants).where(*_is(assistants, tenant, key))
        if only:
            query = query.where(has(assistants.c.metadata, only))
        return await self._database.first(query)

    async def _add_defaults(self, tenant: str) -> None:
        """Give a new tenant the default assistants of all graphs."""
        if tenant in self._known_tenants:
            return
        if len(tenant) > LONGEST_TENANT:
            raise invalid(f"a tenant's name has at most {LONGEST_TENANT} characters")
        async with self._database.writing() as connection:
            known = select(assistants.c.assistant_id).where(assistants.c.tenant == tenant)
            there = set((await connection.execute(known)).scalars())
            for name in self._graphs.names():
                if (key := default_assistant(name)) not in there:
                    await _add(connection, tenant, key, _default_content(name), time.time())
        self._known_tenants.add(tenant)


def _default_content(graph_id: str) -> dict[str, Any]:
    return {
        "graph_id": graph_id,
        "name": graph_id,
        "description": None,
        "config": {},
        "context": {},
        "metadata": _DEFAULT_METADATA,
    }


async def _add(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any], now: float
) -> None:
    row = {"tenant": tenant, "assistant_id": key, "version": 1, "created_at": now, **content}
    await connection.execute(insert(assistants).values(**row, updated_at=now))
    await connection.execute(insert(versions).values(**row))


async def _point_to(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any], now: float
) -> None:
    changed = update(assistants).where(*_is(assistants, tenant, key))
    await connection.execute(changed.values(**content, updated_at=now))


def _is(table: Any, tenant: str, key: str) -> Sequence[ColumnElement[bool]]:
    return (table.c.tenant == tenant, table.c.assistant_id == key)


def _matching(
    tenant: str, body: bodies.AssistantCount, only: Filter
) -> Sequence[ColumnElement[bool]]:
    column = assistants.c
    query: list[ColumnElement[bool]] = [column.tenant == tenant]
    if body.graph_id is not None:
        query.append(column.graph_id == body.graph_id)
    if body.name is not None:
        query.append(func.lower(column.name).contains(body.name.lower(), autoescape=True))
    query.extend(has(column.metadata, wanted) for wanted in (body.metadata, only) if wanted)
    return query


# -- routes -------------------------------------------------------------------------------


class AssistantRoutes:
    """Assistants, and what can be asked of their graphs."""

    def __init__(self, assistants: Assistants, graphs: Graphs) -> None:
        self._all = assistants
        self._graphs = graphs

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
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

    async def create(self, body: bodies.AssistantCreate, caller: Calling) -> JSON:
        """A new assistant."""
        value: dict[str, Any] = body.model_dump()
        await caller.authorize("assistants", "create", value)
        body = body.model_copy(update={"metadata": value["metadata"]})
        return JSON(await self._all.create(caller.tenant, body))

    async def search(self, body: bodies.AssistantSearch, caller: Calling) -> JSON:
        """Assistants that fit. X-Pagination-Next is where the next ones begin, if there are."""
        only = await caller.authorize("assistants", "search", body.model_dump())
        more = body.model_copy(update={"limit": body.limit + 1})
        found = await self._all.search(caller.tenant, more, only)
        headers = {}
        if len(found) > body.limit:
            headers["X-Pagination-Next"] = str(body.offset + body.limit)
        return JSON(found[: body.limit], headers=headers)

    async def count(self, body: bodies.AssistantCount, caller: Calling) -> JSON:
        """How many fit."""
        only = await caller.authorize("assistants", "search", body.model_dump())
        return JSON(await self._all.count(caller.tenant, body, only))

    async def get(self, assistant_id: str, caller: Calling) -> JSON:
        """One assistant, by its id or its graph's name."""
        return JSON(await self._read(caller, assistant_id))

    async def patch(self, assistant_id: UUID, body: bodies.AssistantPatch, caller: Calling) -> JSON:
        """A new version of an assistant."""
        value = {"assistant_id": assistant_id, **body.model_dump(exclude_unset=True)}
        only = await caller.authorize("assistants", "update", value)
        return JSON(await self._all.patch(caller.tenant, assistant_id, body, only))

    async def delete(
        self, assistant_id: UUID, caller: Calling, delete_threads: bool = False
    ) -> Response:
        """Forget an assistant and its versions; its threads stay."""
        if delete_threads:
            raise invalid("delete_threads: not supported here; delete the threads by their ids")
        only = await caller.authorize("assistants", "delete", {"assistant_id": assistant_id})
        await self._all.delete(caller.tenant, assistant_id, only)
        return Response(status_code=204)

    async def graph(self, assistant_id: str, caller: Calling, xray: bool | int = False) -> JSON:
        """The nodes and edges of an assistant's graph; with ``xray``, of those inside, too."""
        _, graph = await self._graph(caller, assistant_id)
        if not isinstance(xray, bool) and not 0 <= xray <= 32:
            raise invalid("xray: true, false, or a depth of up to 32")
        drawn = await graph.aget_graph(xray=xray)
        return JSON(drawn.to_json())

    async def schemas(self, assistant_id: UUID, caller: Calling) -> JSON:
        """The JSON schemas of an assistant's graph."""
        name, graph = await self._graph(caller, str(assistant_id))
        return JSON(schemas_of(graph, name))

    async def subgraphs(self, assistant_id: str, caller: Calling, recurse: bool = False) -> JSON:
        """The schemas of the graphs inside."""
        _, graph = await self._graph(caller, assistant_id)
        return JSON(subgraphs_of(graph, None, recurse))

    async def subgraphs_in(
        self, assistant_id: str, namespace: str, caller: Calling, recurse: bool = False
    ) -> JSON:
        """The schemas of the graphs inside, from one of them on."""
        _, graph = await self._graph(caller, assistant_id)
        return JSON(subgraphs_of(graph, namespace, recurse))

    async def versions(
        self, assistant_id: UUID, body: bodies.VersionSearch, caller: Calling
    ) -> JSON:
        """An assistant's versions, the last one first."""
        only = await caller.authorize("assistants", "read", {"assistant_id": assistant_id})
        return JSON(await self._all.history(caller.tenant, assistant_id, body, only))

    async def latest(self, assistant_id: UUID, body: bodies.Latest, caller: Calling) -> JSON:
        """Make a version the one that is used."""
        value = {"assistant_id": assistant_id, "version": body.version}
        only = await caller.authorize("assistants", "update", value)
        return JSON(await self._all.set_latest(caller.tenant, assistant_id, body.version, only))

    async def _read(self, caller: Caller, name: str) -> dict[str, Any]:
        key = self._all.id_of(name)
        only = await caller.authorize("assistants", "read", {"assistant_id": UUID(key)})
        return await self._all.get(caller.tenant, name, only)

    async def _graph(self, caller: Caller, name: str) -> tuple[str, Graph]:
        graph_id: str = (await self._read(caller, name))["graph_id"]
        return graph_id, self._graphs.of(graph_id, caller.tenant)
