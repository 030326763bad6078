"""Assistants: their rows, their versions and their routes. An assistant is a graph with a config
and a context.

Each graph has a default assistant, whose id follows from the graph's name.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any
from uuid import UUID, uuid4, uuid5

import sqlalchemy as sa
from fastapi import HTTPException, Response
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.assistants.configs import caller_access, in_both
from agentrt.serving.langgraph.assistants.graphs import (
    Graphs,
    input_schema_of,
    subgraphs_of,
)
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.quotas import Quotas
from agentrt.serving.langgraph.database.tables import (
    LONGEST_TENANT,
    assistants,
    crons,
    matching,
    versions,
)
from agentrt.serving.langgraph.responses import JSON, conflict, invalid, not_found, row_json
from agentrt.serving.langgraph.routes import Routes, route

_A = "/assistants/{assistant_id}"
_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The UUID namespace of default assistants in LangGraph's own servers."""
_BY_SYSTEM = {"created_by": "system"}
_MAX_VERSIONS = 1000
_MOST_READ = 1000
"""Maximum number of assistants that are kept in memory after they were read."""
_CONTENT = ("graph_id", "name", "description", "config", "context", "metadata")
"""The columns that a version of an assistant has."""
_FIND = sa.select(assistants).where(
    assistants.c.tenant == sa.bindparam("tenant"), assistants.c.assistant_id == sa.bindparam("key")
)  # built once: building it takes as long as executing it


class Assistants(Routes):
    """The assistants of all tenants, and the routes for them and their graphs.

    ``configs`` has the config of each graph's default assistant. ``forget_threads`` deletes those
    threads of an assistant that a caller may delete. It is assigned later, because the routes of
    threads are made with this object.
    """

    forget_threads: Callable[[Requester, str], Awaitable[None]]

    def __init__(
        self,
        database: Database,
        quotas: Quotas,
        graphs: Graphs,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._graphs = graphs
        self._configs = configs or {}
        self._known_tenants: set[str] = set()
        self._read_rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._changes = 0

    @route("POST", "/assistants")
    async def create(self, body: bodies.AssistantCreate, caller: CallerDep) -> JSON:
        """Create an assistant."""
        key = body.assistant_id or uuid4()
        name = body.name or "Untitled"
        value = _for_hooks(key, body, name=name, if_exists=body.if_exists)
        only = await caller.authorize("assistants", "create", value)
        self._check_graph(body.graph_id)
        await self._add_defaults(caller.tenant)
        content = {name: getattr(body, name) for name in _CONTENT}
        content["name"] = name
        content["metadata"] = caller.metadata_after("assistants.create", value)
        content["config"], content["context"] = in_both(body.config.fields_set(), body.context)
        try:
            async with self._changing() as connection:
                await self._quotas.adding(connection, assistants, caller.tenant)
                await add_assistant(connection, caller.tenant, str(key), content)
                await self._quotas.added(connection, assistants, caller.tenant)
        except IntegrityError:
            existing = await self._first(caller.tenant, str(key), only)
            if body.if_exists == "raise" or existing is None:
                raise conflict(
                    f"assistant {key} exists already; use another assistant_id, or set if_exists "
                    "to do_nothing"
                ) from None
            return JSON(existing)
        return JSON(await self.find(caller.tenant, str(key)))

    @route("POST", "/assistants/search", writes=False)
    async def search(self, body: bodies.AssistantSearch, caller: CallerDep) -> JSON:
        """Return a page of the assistants that meet the conditions."""
        conditions = await self._matching(caller, body, body.limit, body.offset)
        columns = [assistants.c[name] for name in dict.fromkeys(body.select or assistants.c.keys())]
        rows, headers = await self._database.page(
            assistants, conditions, "assistant_id", body, columns
        )
        return JSON([as_json(row, body.select) for row in rows], headers=headers)

    @route("POST", "/assistants/count", writes=False)
    async def count(self, body: bodies.AssistantCount, caller: CallerDep) -> JSON:
        """Return the number of assistants that meet the conditions."""
        conditions = await self._matching(caller, body, 0, 0)
        return JSON(await self._database.count(assistants, conditions))

    @route("GET", _A)
    async def get(self, assistant_id: str, caller: CallerDep) -> JSON:
        """Return an assistant by its id, or the default assistant of a graph by the
        graph's name.
        """
        return JSON(await self._read(caller, assistant_id))

    @route("PATCH", _A)
    async def patch(
        self, assistant_id: UUID, body: bodies.AssistantPatch, caller: CallerDep
    ) -> JSON:
        """Change an assistant. The change makes a new version of the assistant."""
        value = _for_hooks(assistant_id, body, name=body.name)
        only = await caller.authorize("assistants", "update", value)
        tenant, key = caller.tenant, str(assistant_id)
        if body.graph_id is not None:
            self._check_graph(body.graph_id)
        await self.find(tenant, key, only)
        changed = caller.metadata_after("assistants.update", value)
        async with self._changing() as connection:
            # Read the assistant under a lock, so that changes at the same time follow one another.
            locked = _FIND.with_for_update()
            row = (await connection.execute(locked, {"tenant": tenant, "key": key})).first()
            if row is None:
                raise not_found("assistant", assistant_id)
            old = as_json(row)
            content = {name: old[name] for name in _CONTENT}
            content |= body.model_dump(exclude_unset=True, exclude_none=True)
            content["config"], content["context"] = changed_settings(old, body)
            content["metadata"] = {**old["metadata"], **changed}
            of_it = matching(versions, tenant, {"assistant_id": key})
            last = sa.select(sa.func.max(versions.c.version)).where(*of_it)
            number = ((await connection.execute(last)).scalar() or 0) + 1
            if number > _MAX_VERSIONS:
                raise conflict(
                    f"assistant {key} has {_MAX_VERSIONS} versions, the maximum; create a new "
                    "assistant"
                )
            content["version"] = number
            of_version = {"tenant": tenant, "assistant_id": key, "created_at": time.time()}
            await connection.execute(sa.insert(versions).values({**of_version, **content}))
            await connection.execute(set_latest(tenant, key, content))
        return JSON(await self.find(tenant, key))

    @route("DELETE", _A, 204)
    async def delete(
        self, assistant_id: UUID, caller: CallerDep, delete_threads: bool = False
    ) -> Response:
        """Delete an assistant with its versions and crons. With ``delete_threads``, also delete the
        assistant's threads, except threads that the caller may not delete.
        """
        only = await caller.authorize("assistants", "delete", {"assistant_id": assistant_id})
        tenant, key = caller.tenant, str(assistant_id)
        assistant = await self.find(tenant, key, only)
        if key in map(default_assistant, self._graphs.names()):
            raise conflict(
                f"assistant {key} cannot be deleted: it is the default assistant of the graph "
                f"{assistant['graph_id']!r}"
            )
        if delete_threads:
            await self.forget_threads(caller, key)
        async with self._changing() as connection:
            for table in (assistants, versions, crons):
                these = matching(table, tenant, {"assistant_id": key})
                await connection.execute(sa.delete(table).where(*these))
        return Response(status_code=204)

    @route("GET", f"{_A}/graph")
    async def graph(self, assistant_id: str, caller: CallerDep, xray: bool | int = False) -> JSON:
        """Return the nodes and edges of an assistant's graph. With ``xray``, add the nodes and
        edges of its subgraphs.
        """
        if not isinstance(xray, bool) and not 0 <= xray <= 32:
            raise invalid(f"xray {xray}: use true, false, or a depth from 0 to 32")
        async with self._graph(caller, assistant_id) as (_, graph):
            drawn = (await graph.aget_graph(xray=xray)).to_json()
        for node in drawn["nodes"]:
            if isinstance(node.get("data"), dict):
                node["data"].pop("id", None)  # the path of a class inside LangGraph
        return JSON(drawn)

    @route("GET", f"{_A}/schemas")
    async def schemas(self, assistant_id: UUID, caller: CallerDep) -> JSON:
        """Return the JSON schemas of an assistant's graph."""
        async with self._graph(caller, str(assistant_id)) as (name, graph):
            return JSON({"graph_id": name, **self._graphs.schemas(name, graph)})

    async def inputs(self, caller: Requester, name: str) -> list[str]:
        """Return the names of the input fields of an assistant's graph. Raises the errors of
        `runnable` and `Graphs.opened`.
        """
        async with self._graph_of(caller, await self.runnable(caller, name)) as (_, graph):
            schema = input_schema_of(graph) or {}
            return list(schema.get("properties") or ())

    @route("GET", f"{_A}/subgraphs")
    @route("GET", f"{_A}/subgraphs/{{namespace}}")
    async def subgraphs(
        self,
        assistant_id: str,
        caller: CallerDep,
        namespace: str | None = None,
        recurse: bool = False,
    ) -> JSON:
        """Return the schemas of the subgraphs of an assistant's graph, or only the schemas of the
        subgraph ``namespace``.
        """
        async with self._graph(caller, assistant_id) as (_, graph):
            return JSON(subgraphs_of(graph, namespace, recurse))

    @route("POST", f"{_A}/versions", writes=False)
    async def versions(
        self, assistant_id: UUID, body: bodies.VersionSearch, caller: CallerDep
    ) -> JSON:
        """Return a page of an assistant's versions, the newest first."""
        only = await caller.authorize("assistants", "read", {"assistant_id": assistant_id})
        key = str(assistant_id)
        await self.find(caller.tenant, key, only)
        contained = [("metadata", body.metadata)]
        these = matching(versions, caller.tenant, {"assistant_id": key}, contained)
        query = sa.select(versions).where(*these)
        query = query.order_by(versions.c.version.desc()).limit(body.limit).offset(body.offset)
        return JSON([as_json(row) for row in await self._database.rows(query)])

    @route("POST", f"{_A}/latest")
    async def latest(self, assistant_id: UUID, body: bodies.Latest, caller: CallerDep) -> JSON:
        """Make the assistant use one of its versions."""
        value = {"assistant_id": assistant_id, "version": body.version}
        only = await caller.authorize("assistants", "update", value)
        tenant, key = caller.tenant, str(assistant_id)
        await self.find(tenant, key, only)
        async with self._changing() as connection:
            this = matching(versions, tenant, {"assistant_id": key, "version": body.version})
            row = (await connection.execute(sa.select(versions).where(*this))).first()
            if row is None:
                raise not_found(f"assistant {key}: version", body.version)
            content = {name: row._mapping[name] for name in (*_CONTENT, "version")}
            await connection.execute(set_latest(tenant, key, content))
        return JSON(await self.find(tenant, key))

    # -- inside ------------------------------------------------------------------------

    async def _matching(
        self, caller: Requester, body: bodies.AssistantCount, limit: int, offset: int
    ) -> list[sa.ColumnElement[bool]]:
        value: dict[str, Any] = {"graph_id": body.graph_id, "metadata": dict(body.metadata or {})}
        value |= {"limit": limit, "offset": offset}
        only = await caller.authorize("assistants", "search", value)
        await self._add_defaults(caller.tenant)
        contained = [("metadata", body.metadata)]
        of_graph = {"graph_id": body.graph_id}
        conditions = matching(assistants, caller.tenant, of_graph, contained, only)
        if body.name is not None:
            name = sa.func.lower(assistants.c.name)
            conditions.append(name.contains(body.name.lower(), autoescape=True))
        return conditions

    async def find(self, tenant: str, name: str, only: Filter | None = None) -> dict[str, Any]:
        """Return the assistant with the id ``name``, or the default assistant of the graph
        ``name``.

        Raises 404 if the assistant does not exist or the filter ``only`` hides it, and 422 if
        ``name`` is neither an id nor a graph's name.
        """
        key = self._id_of(name)
        await self._add_defaults(tenant)
        assistant = await self._first(tenant, key, only)
        if assistant is None:
            raise not_found("assistant", name)
        return assistant

    async def runnable(self, caller: Requester, name: str) -> dict[str, Any]:
        """Return the assistant with the id ``name``, or the default assistant of the graph
        ``name``, for a run of the caller.

        Everybody may run default assistants, as on LangGraph's own server. For all other
        assistants, hooks decide whether the caller may read them. Raises 403 if a hook refuses, and
        404 and 422 as `find` does.
        """
        if self._id_of(name) in map(default_assistant, self._graphs.names()):
            return await self.find(caller.tenant, name)
        return await self._read(caller, name)

    async def _first(self, tenant: str, key: str, only: Filter | None) -> dict[str, Any] | None:
        """Return the assistant with the id ``key``, or None if it does not exist or the filter
        ``only`` hides it.

        Each run needs its assistant, so assistants are kept in memory after they were read, until
        any assistant changes. No other server changes assistants, because only one server at a time
        uses a database.
        """
        stored = self._read_rows.get((tenant, key))
        if stored is None:
            changes = self._changes
            row = await self._database.first(_FIND, {"tenant": tenant, "key": key}, quick=True)
            if row is None:
                return None
            stored = as_json(row)
            if changes == self._changes:  # else the row may have been read before the change
                if len(self._read_rows) >= _MOST_READ:
                    self._read_rows.clear()
                self._read_rows[tenant, key] = stored
        if only is not None and not only.allows(stored["metadata"]):
            return None
        return copy.deepcopy(stored)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that changes assistants."""
        try:
            async with self._database.writing() as connection:
                yield connection
        finally:
            self._changes += 1
            self._read_rows.clear()

    def _id_of(self, name: str) -> str:
        """Return an assistant's id. ``name`` is this id or the name of a graph; raises 422 if it is
        neither.
        """
        if name in self._graphs:
            return default_assistant(name)
        try:
            return str(UUID(name))
        except ValueError:
            raise invalid(
                f"assistant {name!r} is neither an id nor a graph's name; {self._known()}"
            ) from None

    def _check_graph(self, graph_id: str) -> None:
        if graph_id not in self._graphs:
            raise HTTPException(404, f"graph {graph_id!r} not found; {self._known()}")

    def _known(self) -> str:
        return f"the graphs are {', '.join(self._graphs.names()) or 'none'}"

    async def _read(self, caller: Requester, name: str) -> dict[str, Any]:
        key = UUID(self._id_of(name))
        only = await caller.authorize("assistants", "read", {"assistant_id": key})
        return await self.find(caller.tenant, name, only)

    @asynccontextmanager
    async def _graph(self, caller: Requester, name: str) -> AsyncIterator[tuple[str, Graph]]:
        """Open an assistant's graph, and yield the graph's name and the graph."""
        async with self._graph_of(caller, await self._read(caller, name)) as opened:
            yield opened

    @asynccontextmanager
    async def _graph_of(
        self, caller: Requester, assistant: Mapping[str, Any]
    ) -> AsyncIterator[tuple[str, Graph]]:
        config, _ = in_both(assistant["config"], assistant["context"])
        access = caller_access(caller, "assistants.read", config)
        async with self._graphs.opened(assistant["graph_id"], caller.tenant, access) as graph:
            yield assistant["graph_id"], graph

    async def _add_defaults(self, tenant: str) -> None:
        """Insert the default assistants of all graphs for a tenant, if they are missing. Default
        assistants that no client has changed get the present configs and descriptions.
        """
        if tenant in self._known_tenants:
            return
        if len(tenant) > LONGEST_TENANT:
            raise invalid(
                f"the tenant's name has {len(tenant)} characters; use at most {LONGEST_TENANT}"
            )
        c = assistants.c
        with suppress(IntegrityError):  # on PostgreSQL, another request may be faster
            async with self._changing() as connection:
                columns = (c.assistant_id, c.version, c.config, c.description)
                known = sa.select(*columns).where(c.tenant == tenant)
                existing = {row.assistant_id: row for row in await connection.execute(known)}
                for name in self._graphs.names():
                    key = default_assistant(name)
                    config, context = in_both(self._configs.get(name, {}), {})
                    description = self._graphs.description(name)
                    own = {"config": config, "context": context, "description": description}
                    if (row := existing.get(key)) is None:
                        about = {"graph_id": name, "name": name, "metadata": _BY_SYSTEM}
                        await add_assistant(connection, tenant, key, {**about, **own})
                    elif row.version == 1 and (row.config, row.description) != (
                        config,
                        description,
                    ):
                        # Only the server's config or description of the graph has changed.
                        for table in (assistants, versions):
                            mine = (table.c.tenant == tenant, table.c.assistant_id == key)
                            await connection.execute(
                                sa.update(table).where(*mine, table.c.version == 1).values(own)
                            )
        self._known_tenants.add(tenant)


def _for_hooks(
    key: UUID, body: bodies.AssistantCreate | bodies.AssistantPatch, **fields: Any
) -> dict[str, Any]:
    """Return the fields that hooks get about an assistant to create or change."""
    config = {} if body.config is None else body.config.fields_set()
    about = {"assistant_id": key, "graph_id": body.graph_id, "config": config}
    return {**about, "context": body.context, "metadata": dict(body.metadata or {}), **fields}


@cache
def default_assistant(graph_id: str) -> str:
    """Return the id of a graph's default assistant."""
    return str(uuid5(_NAMESPACE, graph_id))


# -- rows ----------------------------------------------------------------------------------


def as_json(row: sa.Row[Any], select: Sequence[str] | None = None) -> dict[str, Any]:
    """Return an assistant, or a version of an assistant, in the form that clients get."""
    assistant = row_json(row, "tenant")
    return {key: assistant[key] for key in select} if select else assistant


async def add_assistant(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any]
) -> None:
    """Insert a new assistant and its first version. Raises `IntegrityError` if the id is taken."""
    now = time.time()
    row = {"tenant": tenant, "assistant_id": key, "version": 1, "created_at": now, **content}
    await connection.execute(sa.insert(assistants).values(**row, updated_at=now))
    await connection.execute(sa.insert(versions).values(row))


def changed_settings(
    old: Mapping[str, Any], body: bodies.AssistantPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config and the context of a changed assistant.

    A new config replaces the old config. If the new config has a ``configurable``, this also
    replaces the old context. A new context replaces the old context and the old config's
    ``configurable``. Then `in_both` adds the keys of the config to the context, and the keys of the
    context to the config.
    """
    config, context = old["config"], old["context"]
    if body.config is not None:
        config = body.config.fields_set()
        context = config.get("configurable", context)
    if body.context is not None:
        context = body.context
        if body.config is None:
            config = {**config, "configurable": {}}
    return in_both(config, context)


def set_latest(tenant: str, key: str, content: Mapping[str, Any]) -> sa.Update:
    """Return the update that gives an assistant the ``content`` of one of its versions."""
    changed = sa.update(assistants).where(*matching(assistants, tenant, {"assistant_id": key}))
    return changed.values(**content, updated_at=time.time())
